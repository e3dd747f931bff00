"""Warping against a plain Python version, and its errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from layer_harness import LayerHarness

from pycaffe_dist.errors import LayerError


def build(x, flow, **rest):
    return LayerHarness(
        'type: "Warping" bottom: "x" bottom: "flow" top: "y"', {"x": x, "flow": flow}, **rest
    )


def plain(x, flow):
    y = np.empty_like(x)
    height, width = x.shape[2:]
    for n, c, h, w in np.ndindex(*x.shape):
        right, down = w + flow[n, 0, h, w], h + flow[n, 1, h, w]
        left, top = math.floor(right), math.floor(down)
        total = 0.0
        for row, column in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
            weight = (1 - abs(row - down)) * (1 - abs(column - right))
            cell = min(max(row, 0), height - 1), min(max(column, 0), width - 1)
            total += weight * x[n, c][cell]
        y[n, c, h, w] = total
    return y


@pytest.mark.parametrize("far", [0.4, 3, 40])
def test_warped_maps_are_those_of_plain_python(far):
    rng = np.random.default_rng(1)
    x, flow = rng.standard_normal((2, 3, 6, 5)), rng.normal(0, far, (2, 2, 6, 5))
    flow[0, :, 0] = np.rint(flow[0, :, 0])
    flow[1, :, 0, :2] = 0
    np.testing.assert_allclose(build(x, flow).forward()[0], plain(x, flow), atol=1e-9)


def test_a_flow_of_whole_cells_moves_the_map():
    x = np.random.default_rng(2).standard_normal((1, 2, 7, 9))
    flow = np.broadcast_to(np.array([2.0, -1]).reshape(1, 2, 1, 1), (1, 2, 7, 9))
    (found,) = build(x, flow).forward()
    np.testing.assert_array_equal(found[:, :, 1:, :-2], x[:, :, :-1, 2:])


@pytest.mark.parametrize("value", [math.nan, math.inf, -1e30])
def test_numbers_that_are_no_places_reach_the_top_or_the_border(value):
    flow = np.zeros((1, 2, 3, 3))
    flow[0, 0, 1, 1] = value
    (found,) = build(np.arange(9.0).reshape(1, 1, 3, 3), flow).forward()
    assert math.isnan(found[0, 0, 1, 1]) or found[0, 0, 1, 1] == 3
    assert np.isfinite(found).sum() >= 8


@pytest.mark.parametrize(
    ("x", "flow", "message"),
    [
        ((2, 3, 4), (2, 2, 4), r"needs 4 axes, found bottom 'x' \(2, 3, 4\)"),
        ((2, 3, 4, 5), (2, 3, 4, 5), r"'x' .* and 'flow' \(2, 3, 4, 5\) need the same shape but"),
        ((2, 3, 4, 5), (1, 2, 4, 5), "need the same shape but for 2 channels of flow"),
    ],
)
def test_wrong_shapes(x, flow, message):
    with pytest.raises(LayerError, match=message):
        build(np.zeros(x), np.zeros(flow))
