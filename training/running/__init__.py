"""One run: shape to model, the Trainer and its checkpoints, the run folder and its figure."""
