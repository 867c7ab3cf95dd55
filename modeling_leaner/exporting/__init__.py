"""`leaner export`: a model as a file that runs without this package: an ONNX graph, or a program of torch.export."""
