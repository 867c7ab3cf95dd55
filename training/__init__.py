"""Training with transformers' Trainer: a baseline and its lean twin by the very same recipe."""
