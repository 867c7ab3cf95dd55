"""Where rows come from: built-in sets, the Hub, local files; and the tokenizers trained on them."""
