"""PyTorch: a readable module of the same results, by a converter for each layer type."""
