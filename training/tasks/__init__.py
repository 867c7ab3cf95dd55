"""How rows become tensors, what is masked or cropped, how quality is read: one class a task."""
