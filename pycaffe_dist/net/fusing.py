"""Which layers can do the work of the rectifier behind them while they store their top."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from pycaffe_dist.net.build import Node


def rectified_layers(nodes: Sequence[Node]) -> dict[int, float]:
    """Return, by index, the slope of the rectifier that is next and works in place on the top.

    Only for layers that offer `Layer.forward_rectified`; their tops' own values are then never
    stored, so neither of the two may count towards the loss.
    """
    found = {}
    for index, (node, following) in enumerate(itertools.pairwise(nodes)):
        slope = following.layer.rectifier_slope
        if slope is None or not node.layer.can_rectify or len(node.top) != 1:
            continue
        in_place = following.bottom[0] is node.top[0] and following.top[0] is node.top[0]
        if in_place and not any((*node.layer.loss_weights, *following.layer.loss_weights)):
            found[index] = slope
    return found
