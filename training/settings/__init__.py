"""The settings of a run: `arguments.py` has every one, `recipes.py` resolves them from a recipe and a command line."""
