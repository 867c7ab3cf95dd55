"""One run: shape to model, the Trainer and its checkpoints, its folder and results; how models are evaluated."""
