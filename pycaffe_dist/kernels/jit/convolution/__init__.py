"""Convolutions on microkernels: by rows, 1×1 with a stride, depthwise, and weight gradients."""
