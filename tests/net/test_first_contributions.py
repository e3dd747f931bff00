"""Gradients that replace old values: `Net.backward` with ``accumulate=False``."""

from __future__ import annotations

import numpy as np
import pytest
from nets import build, input_layer, ip

DATA = input_layer("data", 2, 3) + input_layer("label", 2, 3)
LOSS = "layer { name: 'loss' type: 'EuclideanLoss' bottom: '%s' bottom: 'label' top: 'loss' }"
SHARED = "param { name: 'w' } param { name: 'b' }"
PRELU = "layer { name: 'prelu' type: 'PReLU' bottom: '%s' top: 'prelu' }"
BATCH_NORM = "layer { name: 'n' type: 'BatchNorm' bottom: '%s' top: '%s' %s }"
SCALE = (
    "layer { name: 'scale' type: 'Scale' bottom: '%s' top: '%s' scale_param { bias_term: true } }"
)
NETS = {
    "plain": DATA + ip("a", "data", 3) + LOSS % "a",
    "shared": DATA + ip("a", "data", 3, SHARED) + ip("b", "a", 3, SHARED) + LOSS % "b",
    # No layer overwrites a slope of PReLU.
    "added": DATA + ip("a", "data", 3) + PRELU % "a" + LOSS % "prelu",
    "joined": DATA
    + ip("a", "data", 3)
    + BATCH_NORM % ("a", "a", "")
    + SCALE % ("a", "a")
    + LOSS % "a",
    "one name twice": DATA
    + ip("a", "data", 3)
    + SCALE.replace("scale_param", SHARED.replace("'b'", "'w'") + " scale_param") % ("a", "c")
    + LOSS % "c",
    "frozen": DATA + ip("a", "data", 3, "param { lr_mult: 0 }") + LOSS % "a",
}


def gradients(net, before, passes, accumulate):
    """Return the diffs of all parameters with a gradient after some passes."""
    rng = np.random.default_rng(5)
    for name in ("data", "label"):
        net.blobs[name].data[...] = rng.standard_normal(net.blobs[name].shape)
    for parameter in net.parameters:
        parameter.gradient[...] = before
    for number in range(passes):
        net.forward()
        net.backward(accumulate=accumulate or number > 0)
    return [p.gradient.copy() for p in net.parameters if p.receives_gradient]


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("name", NETS)
def test_old_values_do_not_count(name, passes):
    found = gradients(build(NETS[name]), np.nan, passes, False)
    expected = gradients(build(NETS[name]), 0, passes, True)
    assert found
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_diffs_of_a_branch_without_a_loss_become_zero():
    net = build(DATA + ip("unused", "data", 3) + ip("a", "data", 3) + LOSS % "a")
    gradients(net, 7, 1, False)
    unused = [p.gradient for p in net.parameters if not p.receives_gradient]
    assert len(unused) == 2
    assert not any(gradient.any() for gradient in unused)


def test_they_are_added_unless_told_otherwise():
    first = gradients(build(NETS["plain"]), 0, 1, True)
    second = gradients(build(NETS["plain"]), 1, 1, True)
    for one, other in zip(first, second, strict=True):
        np.testing.assert_allclose(one + 1, other)
