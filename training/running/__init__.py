"""One run: shape to model, the Trainer and its checkpoints, the run folder, its figure and timing."""
