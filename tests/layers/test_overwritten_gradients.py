"""Layers that set the diffs of parameters in their first contribution, in place of adding."""

from __future__ import annotations

import numpy as np
import pytest
from layer_cases import collect
from passes import give_top_diffs

from pycaffe_dist.layers import layer_class


def has_gradients(case):
    return layer_class(case.type).overwrites_gradients and case.build().layer.blobs


CASES = [case for case in collect() if has_gradients(case)]


def gradients(case, overwritten, before):
    """Return the diffs of the parameters that a net would train."""
    harness = case.build()
    layer = harness.layer
    untrained = layer.blobs if getattr(layer, "frozen", False) else layer.statistics_blobs()
    fixed = {id(blob) for blob in untrained}
    trained = [index for index, blob in enumerate(layer.blobs) if id(blob) not in fixed]
    harness.forward()
    give_top_diffs(harness, 3)
    for index in trained:
        layer.blobs[index].diff[...] = before
    if overwritten:
        layer.overwritten.update(trained)
    harness.backward()
    return [layer.blobs[index].diff.copy() for index in trained]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_old_values_are_replaced(case):
    expected = gradients(case, False, 0)
    for one, other in zip(gradients(case, True, np.nan), expected, strict=True):
        np.testing.assert_array_equal(one, other)
