"""Layers and nets are freed by reference counting, as in Caffe: nobody has to wait for the
cycle collector."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
from layer_cases import collect
from layer_harness import LayerHarness
from test_layers_in_a_net import BLOCK, HEAD, TAIL, build

from pycaffe_dist.layers import layer_class


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Switch the cycle collector off."""
    gc.disable()
    yield
    gc.enable()


def used(case) -> LayerHarness:
    """Return a harness whose layer has run."""
    harness = case.build(dtype=np.float32)
    harness.forward()
    if layer_class(case.type).has_backward:
        for blob in harness.top:
            blob.diff.fill(1)
        harness.backward()
    return harness


@pytest.mark.parametrize("case", collect(), ids=lambda case: case.name)
def test_a_layer_is_freed_with_its_last_reference(case, no_collector):
    used(case)  # compiling may leave frames to the collector
    harness = used(case)
    layer = weakref.ref(harness.layer)
    del harness
    assert layer() is None


def test_a_net_with_joined_layers_is_freed_with_its_last_reference(no_collector):
    net = build(HEAD + BLOCK + TAIL)
    net.forward()
    net.backward()
    parts = [weakref.ref(part) for part in (net, *net.layers, *net.parameters)]
    del net
    assert [part() for part in parts if part() is not None] == []
