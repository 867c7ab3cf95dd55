"""The settings of a run: fields with bounds, and the parser that reads recipes and command lines."""
