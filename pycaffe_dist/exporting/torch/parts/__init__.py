"""Classes and functions that exported PyTorch files contain if they use them.

The sources are copied, so they use only torch, nn, F, math and each other.
"""
