"""Weights that stay 0 in training: ``connectivity_mode`` of IntelLabs/SkimCaffe."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.layers.base import Layer


def disconnect(layer: Layer, groups: int = 1) -> None:
    """Set the diff of the weights, the first parameter, to 0 where ``connectivity_mode`` says so.

    DISCONNECTED_ELTWISE: where the weight is 0.  DISCONNECTED_GRPWISE: where, within a group of
    outputs, all weights of the same output or of the same input are 0.  Unlike here, the fork also
    sets weights up to ``prune_threshold`` to 0 when it loads them.
    """
    param = layer.param
    if param.connectivity_mode == param.CONNECTED:
        return
    weights = layer.blobs[0]
    connected = weights.data != 0
    if param.connectivity_mode == param.DISCONNECTED_GRPWISE:
        connected = connected.reshape(groups, weights.shape[0] // groups, -1)
        connected = connected.any(axis=2, keepdims=True) & connected.any(axis=1, keepdims=True)
        diff = weights.diff.reshape(groups, weights.shape[0] // groups, -1)
    else:
        diff = weights.diff
    np.multiply(diff, connected, out=diff)
