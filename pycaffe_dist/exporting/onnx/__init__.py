"""ONNX: a model of the same results, by a converter for each layer type."""
