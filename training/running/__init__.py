"""One run: shape to model, the Trainer and its checkpoints, the run folder and its results; the evaluation of models."""
