"""Layers with nothing to compute: if a Filter chooses no sample, the next blobs are empty.

As in Caffe, such a layer does not change its parameters' gradients.  A loss over no samples is 0;
some of Caffe's losses divide by 0.
"""

from __future__ import annotations

from pycaffe_dist.net.build import Node


def is_idle(node: Node) -> bool:
    """Tell whether a layer, whose tops have their shapes, has nothing to compute."""
    layer = node.layer
    if not node.bottom or not node.top or not layer.idle_when_empty:
        return False
    if layer.averages_samples and not node.bottom[0].count:
        return True
    return not any(top.count for top in node.top)


def forward(node: Node) -> None:
    """Take the place of an idle layer's forward."""
    for top in node.top:
        if top.count:
            top.data.fill(0)
    if node.layer.uses_rank_mean:
        node.layer.context.rank_mean(0)


def backward(node: Node) -> None:
    """Take the place of an idle layer's backward."""
    for bottom, wanted in zip(node.bottom, node.propagate_down):
        if wanted and bottom.count:
            bottom.diff.fill(0)
