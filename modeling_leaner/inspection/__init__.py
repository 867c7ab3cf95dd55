"""`leaner inspect`: the conditioning of a model, layer by layer."""
