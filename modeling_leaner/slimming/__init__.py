"""Making a trained model leaner: cuts in depth, heads, head size and MLP, and what to cut. No training here."""
