"""Golden cases of layers, exported to PyTorch and run by it, if it is installed."""

from __future__ import annotations

import golden_nets
import numpy as np
import pytest

from pycaffe_dist.errors import NetError
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


# Options of a layer that the exported form lacks.
REFUSED = {"multiboxloss_hard_example_nms", "multiboxloss_not_shared"}
EXPORTED = [each for each in CASES if each.id not in REFUSED]


@pytest.mark.parametrize("net, steps, blobs", EXPORTED)
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


@pytest.mark.parametrize("net, steps, blobs", [each for each in CASES if each.id in REFUSED])
def test_other_options_are_refused_with_the_reason(net, steps, blobs):
    with pytest.raises(NetError, match=r"layer 'l' .*which the exported loss lacks"):
        source_of(net, steps)


@pytest.mark.parametrize("net, steps, blobs", EXPORTED)
def test_torch_has_the_gradients_of_caffe(net, steps, blobs):
    torch = pytest.importorskip("torch")
    text, source = source_of(net, steps)
    module = Module(text, source.title, source.state, net.phase == 0)
    inputs = [torch.tensor(blobs[name].astype(np.float32)) for name in steps.inputs]
    for each in inputs:
        each.requires_grad_()
    outputs, diffs = module.net(*inputs), golden_nets.diffs(steps.name)
    weights = getattr(module.net, "loss_weights", {})
    slopes = {name: diffs.get(f"topdiff/{name}", weights.get(name)) for name in outputs}
    given = {name: slope for name, slope in slopes.items() if slope is not None}
    sum((outputs[name] * torch.tensor(slope)).sum() for name, slope in given.items()).backward()
    found = {f"bottomdiff/{name}": each.grad for name, each in zip(steps.inputs, inputs)}
    for (layer, index), key in source.learnt.items():
        found[f"paramdiff/{layer}/{index}"] = module.net.get_parameter(key).grad
    known = [name for name, value in found.items() if value is not None and name in diffs]
    for name in known:
        value = found[name].reshape(diffs[name].shape)
        np.testing.assert_allclose(value, diffs[name], rtol=1e-4, atol=1e-5, err_msg=name)
    assert known


def test_nearly_all_cases_are_exported():
    assert len(CASES) >= 150


def test_every_converter_is_for_a_known_type():
    assert set(CONVERTERS.types()) <= set(layer_types())
