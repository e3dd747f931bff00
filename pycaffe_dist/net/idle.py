"""Layers with nothing to compute: where a Filter chooses no sample, what follows is empty.

As in Caffe such a layer leaves its parameters' gradients alone.  A loss over no samples is 0; Caffe
divides by 0 for some.
"""

from __future__ import annotations

from pycaffe_dist.net.build import Node


def is_idle(node: Node) -> bool:
    """Tell whether a layer has nothing to compute; its tops have their shapes."""
    layer = node.layer
    if not node.bottom or not node.top or not layer.idle_when_empty:
        return False
    if layer.averages_samples and not node.bottom[0].count:
        return True
    return not any(top.count for top in node.top)


def forward(node: Node) -> None:
    """Do what an idle layer's forward would do."""
    for top in node.top:
        if top.count:
            top.data.fill(0)


def backward(node: Node) -> None:
    """Do what an idle layer's backward would do."""
    for bottom, wanted in zip(node.bottom, node.propagate_down):
        if wanted and bottom.count:
            bottom.diff.fill(0)
