"""Nets in which a pooling's mask tells an Upsample where to put values."""

from __future__ import annotations

import numpy as np
from nets import build, input_layer

POOL = """
force_backward: true
layer { name: 'pool' type: 'Pooling' bottom: 'x' top: 'p' top: 'mask'
  pooling_param { kernel_size: 2 stride: 2 } }
"""
UP = "layer {{ name: '{0}' type: 'Upsample' bottom: 'p' bottom: 'mask' top: '{0}' }}"


def test_a_value_comes_back_where_it_was():
    net = build(input_layer("x", 2, 3, 4, 6) + POOL + UP.format("up"))
    x = net.blobs["x"].data[...] = np.random.default_rng(0).standard_normal((2, 3, 4, 6))
    net.forward()
    kept = net.blobs["up"].data != 0
    assert kept.reshape(2, 3, 2, 2, 3, 2).sum(axis=(3, 5)).max() == 1 and kept.sum() == x.size / 4
    np.testing.assert_array_equal(net.blobs["up"].data[kept], x[kept])
    dy = net.blobs["up"].diff[...] = np.random.default_rng(1).standard_normal(x.shape)
    net.backward()
    np.testing.assert_array_equal(net.blobs["x"].diff, np.where(kept, dy, 0))


def test_two_layers_may_share_a_mask():
    net = build(input_layer("x", 2, 3, 4, 6) + POOL + UP.format("a") + UP.format("b"))
    net.blobs["x"].data[...] = np.random.default_rng(0).standard_normal((2, 3, 4, 6))
    net.forward()
    for name, value in (("a", 1), ("b", 2)):
        net.blobs[name].diff[...] = value
    net.backward()
    np.testing.assert_array_equal(net.blobs["x"].diff, np.where(net.blobs["a"].data != 0, 3, 0))
