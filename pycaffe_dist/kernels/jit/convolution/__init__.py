"""Convolutions on microkernels: by rows, by phases of a stride, 1×1 with a stride, depthwise."""
