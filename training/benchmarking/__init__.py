"""`leaner bench`: training steps and inference of this family and of its peers at equal shape, taking turns."""
