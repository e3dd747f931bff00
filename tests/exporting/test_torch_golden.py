"""Golden cases of layers, exported to PyTorch and run by it, if it is installed."""

from __future__ import annotations

import golden_nets
import numpy as np
import pytest

from pycaffe_dist.exporting.steps import steps_of
from pycaffe_dist.exporting.torch.exporting import Module
from pycaffe_dist.exporting.torch.module import source_of
from pycaffe_dist.exporting.torch.register import CONVERTERS
from pycaffe_dist.layers import layer_types


def cases():
    """Return the cases whose layers have converters."""
    known = CONVERTERS.types()
    for path in golden_nets.CASES:
        net, blobs = golden_nets.load(path)
        steps = steps_of(net, training=True)
        if steps.outputs and all(step.type in known for step in steps.steps):
            yield pytest.param(net, steps, blobs, id=path.stem)


CASES = list(cases())


@pytest.mark.parametrize("net, steps, blobs", CASES)
def test_torch_computes_the_same_as_caffe(net, steps, blobs):
    text, source = source_of(net, steps)
    compile(text, "exported", "exec")
    pytest.importorskip("torch")
    module = Module(text, source.title, source.state, net.phase == 0)
    found = module.run({name: blobs[name].astype(np.float32) for name in steps.inputs})
    for name, value in found.items():
        expected = blobs[name]
        assert value.shape == expected.shape
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5, err_msg=name)


def test_nearly_all_cases_are_exported():
    assert len(CASES) >= 150


def test_every_converter_is_for_a_known_type():
    assert set(CONVERTERS.types()) <= set(layer_types())
