"""Named shapes: {vit,bert,gpt}/<name>.json, each a complete config.json. `modeling_leaner.shapes` reads them."""
