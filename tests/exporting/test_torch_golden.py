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


# A fork's gradient that is no derivative, or one at an edge.
OTHER_GRADIENT = {
    *("normalize_across_perchannel_eps", "normalize_conv4_3", "relu6_exact_edges"),
    *("smoothl1_sigma3_weights", "smoothl1_three_bottoms_fractional"),
}


def with_gradients():
    """Return the exported cases whose first bottoms or parameters have a gradient in Caffe."""
    for each in EXPORTED:
        _, steps, _ = each.values
        diffs = golden_nets.diffs(each.id)
        firsts = {f"bottomdiff/{step.bottoms[0]}" for step in steps.steps if step.bottoms}
        wanted = {
            name: value
            for name, value in diffs.items()
            if value.any() and (name in firsts or name.startswith("paramdiff/"))
        }
        if wanted and each.id not in OTHER_GRADIENT:
            yield pytest.param(*each.values, diffs, wanted, id=each.id)


WITH_GRADIENTS = list(with_gradients())


@pytest.mark.parametrize("net, steps, blobs, diffs, wanted", WITH_GRADIENTS)
def test_torch_has_the_gradients_of_caffe(net, steps, blobs, diffs, wanted):
    torch = pytest.importorskip("torch")
    text, source = source_of(net, steps)
    module = Module(text, source.title, source.state, net.phase == 0)
    inputs = [torch.tensor(blobs[name].astype(np.float32)) for name in steps.inputs]
    for each in inputs:
        each.requires_grad_()
    outputs = module.net(*inputs)
    weights = getattr(module.net, "loss_weights", {})
    slopes = {name: diffs.get(f"topdiff/{name}", weights.get(name)) for name in outputs}
    given = {name: slope for name, slope in slopes.items() if slope is not None}
    sum((outputs[name] * torch.tensor(slope)).sum() for name, slope in given.items()).backward()
    found = {f"bottomdiff/{name}": each.grad for name, each in zip(steps.inputs, inputs)}
    learnt = dict(module.net.named_parameters())
    for (layer, index), key in source.learnt.items():
        found[f"paramdiff/{layer}/{index}"] = learnt[key].grad if key in learnt else None
    for name, expected in wanted.items():
        value = found[name].reshape(expected.shape)
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5, err_msg=name)


def test_nearly_all_cases_are_exported():
    assert len(CASES) >= 150


def test_every_converter_is_for_a_known_type():
    assert set(CONVERTERS.types()) <= set(layer_types())


def test_nearly_all_cases_with_gradients_are_compared():
    assert len(WITH_GRADIENTS) >= 110
