"""BatchNorm, Scale and ReLU give the same results fused and one by one."""

from __future__ import annotations

import numpy as np
import pytest
from nets import build, input_layer

from pycaffe_dist.blob import Blob
from pycaffe_dist.kernels.channel_affine import (
    affine,
    normalize_gradient,
    rectified_gradient_sums,
)

CHAIN = """
force_backward: true
layer {{ name: 'first' type: 'Power' bottom: 'data' top: 'first' power_param {{ scale: 2 }} }}
layer {{ name: 'bn' type: 'BatchNorm' bottom: 'first' top: '{norm}' {norm_param} }}
layer {{ name: 'scale' type: 'Scale' bottom: '{norm}' top: '{norm}' {scale_param} }}
layer {{ name: 'relu' type: '{behind}' bottom: '{norm}' top: '{norm}' }}
"""
BIAS = "bias_term: true bias_filler { type: 'gaussian' std: 1 }"
SCALE = "scale_param { filler { type: 'gaussian' std: 1 } %s }"
GLOBAL = "batch_norm_param { use_global_stats: true }"
IMAGES, VECTORS = (6, 5, 4, 7), (9, 5)


def make(
    shape=IMAGES, norm="first", norm_param="", bias=BIAS, behind="ReLU", forced=True, **options
):
    text = CHAIN.format(norm=norm, norm_param=norm_param, scale_param=SCALE % bias, behind=behind)
    net = build(input_layer("data", *shape) + text, seed=1, **options)
    rng = np.random.default_rng(0)
    net.blobs["data"].data[...] = rng.standard_normal(shape)
    for blob in net.layers[2].blobs:
        blob.data[...] = rng.random(blob.shape) + 0.5
    return net


def alone(net):
    """Make the layers of a net run one by one."""
    net.before_backward.append(lambda index: None)
    return net


def passes(net, norm="first"):
    """Return the blobs after two iterations."""
    found = []
    for seed in range(2):
        net.clear_parameter_diffs()
        net.forward()
        found.append(net.blobs[norm].data.copy())
        top = net.blobs[norm]
        top.diff[...] = np.random.default_rng(seed).standard_normal(top.shape)
        net.backward()
        found += [blob.diff.copy() for blob in net.layers[3].blobs]
        found += [blob.data.copy() for blob in net.layers[2].blobs]
        found.append(net.blobs["data"].diff.copy())
    return found


def ran_alone(net):
    """Return the types of the layers whose own forward is called."""
    called = []
    for layer in net.layers:
        layer.forward = lambda *args, of=layer, own=layer.forward: (
            called.append(of.type) or own(*args)
        )
    return called


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [IMAGES, VECTORS])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm": "bn"},
        {"behind": "Sigmoid"},
        {"bias": ""},
        {"norm_param": GLOBAL},
        {"norm": "bn", "norm_param": GLOBAL, "behind": "Sigmoid"},
    ],
    ids=str,
)
def test_results_equal_those_of_separate_layers(options, shape, dtype):
    net = make(shape, **options, dtype=dtype)
    called, norm = ran_alone(net), options.get("norm", "first")
    together = passes(net, norm)
    assert "BatchNorm" not in called and "Scale" not in called
    assert ("Sigmoid" in called) == (options.get("behind") == "Sigmoid")
    for ours, theirs in zip(together, passes(alone(make(shape, **options, dtype=dtype)), norm)):
        tolerance = 1e-12 if dtype == np.float64 else 2e-5
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("start", "end"), [(4, 3), (3, 3), (3, 0), (2, 0), (4, 4), (4, 2)])
def test_a_backward_of_some_of_the_layers_runs_them_one_by_one(start, end):
    net, reference = make(dtype=np.float64), alone(make(dtype=np.float64))
    for each in (net, reference):
        each.forward()
        top = each.blobs["first"]
        top.diff[...] = np.random.default_rng(0).standard_normal(top.shape)
        each.backward(start, end)
    np.testing.assert_allclose(net.blobs["first"].diff, reference.blobs["first"].diff, 1e-10)
    for ours, theirs in zip(net.layers[3].blobs, reference.layers[3].blobs):
        np.testing.assert_allclose(ours.diff, theirs.diff, 1e-10)


def test_a_scale_that_runs_again_runs_its_own_backward():
    net, reference = make(dtype=np.float64), alone(make(dtype=np.float64))
    for each in (net, reference):
        each.forward()
        each.forward(3, 3)
        each.blobs["first"].diff[...] = 1
        each.backward()
    np.testing.assert_allclose(net.blobs["data"].diff, reference.blobs["data"].diff, 1e-9, 1e-12)


def test_batches_of_another_size():
    net, reference = make(dtype=np.float64), alone(make(dtype=np.float64))
    for each in (net, reference):
        passes(each)
        each.blobs["data"].reshape(3, 5, 2, 2)
        each.blobs["data"].data[...] = np.random.default_rng(5).standard_normal((3, 5, 2, 2))
    for ours, theirs in zip(passes(net), passes(reference)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10)


def test_frozen_parameters_get_no_gradient():
    nets = make(), alone(make())
    for net in nets:
        net.layers[3].param_propagate_down[0] = False
    ours, theirs = map(passes, nets)
    assert not ours[1].any()
    for one, other in zip(ours, theirs):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "scale_param",
    [SCALE % "axis: 0 num_axes: 2", SCALE % "axis: 2", SCALE % BIAS + " loss_weight: 1"],
)
def test_other_scales_run_on_their_own(scale_param):
    text = CHAIN.format(norm="first", norm_param="", scale_param=scale_param, behind="ReLU")
    if "loss_weight" in scale_param:  # which gives the later layers another blob
        text = text[: text.index("layer { name: 'relu'")]
    net = build(input_layer("data", *IMAGES) + text)
    called = ran_alone(net)
    net.forward()
    assert {"BatchNorm", "Scale"} <= set(called)


def test_a_scale_with_a_top_of_its_own_runs_on_its_own():
    text = CHAIN.format(norm="first", norm_param="", scale_param=SCALE % BIAS, behind="ReLU")
    head, name, tail = text.partition("name: 'scale'")
    tail = tail.replace("top: 'first'", "top: 'own'", 1).replace(
        "bottom: 'first' top: 'first'", "bottom: 'own' top: 'own'"
    )
    net = build(input_layer("data", *IMAGES) + head + name + tail)
    called = ran_alone(net)
    net.forward()
    assert {"BatchNorm", "Scale"} <= set(called)


def test_the_scale_keeps_no_copy(monkeypatch):
    net = make()
    monkeypatch.setattr(type(net.layers[3].copy), "data", property(_of_a_kept_blob(net)))
    passes(net)


def _of_a_kept_blob(net):
    kept, data = net.layers[3].copy, Blob.data.fget

    def found(blob):
        assert blob is not kept
        return data(blob)

    return found


OWN = """
force_backward: true
layer {{ name: 'first' type: 'Power' bottom: 'data' top: 'first' power_param {{ scale: 2 }} }}
layer {{ name: 'bn' type: '{kind}' bottom: 'first' top: '{norm}' {options} }}
layer {{ name: 'relu' type: 'ReLU' bottom: '{norm}' top: '{norm}'
  relu_param {{ negative_slope: 0.1 }} }}
"""


@pytest.mark.parametrize("shape", [IMAGES, VECTORS])
@pytest.mark.parametrize("norm", ["first", "bn"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("BN", ""),
        ("BN", "bn_param { frozen: true }"),
        ("BN", "bn_param { bn_mode: LEARN }"),
        ("BN", "bn_param { bn_mode: INFERENCE }"),
        ("BatchNorm", "batch_norm_param { scale_bias: true }"),
    ],
)
def test_a_rectifier_joins_a_normalization_with_a_scale_of_its_own(kind, options, norm, shape):
    found = []
    for prepare in (ran_alone, alone):
        text = OWN.format(kind=kind, norm=norm, options=options)
        net = build(input_layer("data", *shape) + text, seed=1)
        rng = np.random.default_rng(0)
        net.blobs["data"].data[...] = rng.standard_normal(shape)
        for blob in net.layers[2].blobs:
            blob.data[...] = rng.random(blob.shape) + 0.5
        called = prepare(net)
        net.forward()
        net.blobs[norm].diff[...] = rng.standard_normal(shape)
        net.backward()
        if prepare is ran_alone:
            assert kind not in called and "ReLU" not in called
        found.append([net.blobs[norm].data, net.blobs["data"].diff])
        found[-1] += [each for blob in net.layers[2].blobs for each in (blob.data, blob.diff)]
    assert found[0][1].any()
    for ours, theirs in zip(*found):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


CONVOLVED = """
force_backward: true
layer {{ name: 'conv' type: 'Convolution' bottom: 'data' top: 'conv'
  convolution_param {{ num_output: 6 kernel_size: {size} weight_filler {{ type: 'xavier' }} }} }}
layer {{ name: 'bn' type: 'BatchNorm' bottom: 'conv' top: '{norm}' {norm_param} }}
layer {{ name: 'scale' type: 'Scale' bottom: '{norm}' top: '{norm}' {scale} }}
"""
RELU = "layer { name: 'relu' type: 'ReLU' bottom: 'conv' top: 'conv' }"


def convolved(dtype, size=1, norm="conv", norm_param="", behind=RELU):
    scale = SCALE % BIAS
    text = CONVOLVED.format(size=size, norm=norm, norm_param=norm_param, scale=scale)
    net = build(input_layer("data", *IMAGES) + text + behind, seed=1, dtype=dtype)
    net.blobs["data"].data[...] = np.random.default_rng(0).standard_normal(IMAGES)
    for blob in net.layers[2].blobs:
        blob.data[...] = np.random.default_rng(1).random(blob.shape) + 0.5
    return net


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "options",
    [{}, {"size": 3}, {"behind": ""}, {"norm_param": GLOBAL}, {"norm": "bn", "behind": ""}],
    ids=str,
)
def test_a_convolution_joins_a_normalization_in_place(options, dtype):
    net = convolved(dtype, **options)
    called, norm = ran_alone(net), options.get("norm", "conv")
    together = passes(net, norm)
    joined = norm == "conv"
    assert ("Convolution" in called) != joined
    assert not {"BatchNorm", "Scale", "ReLU"} & set(called)
    one_by_one = passes(alone(convolved(dtype, **options)), norm)
    tolerance = 1e-12 if dtype == np.float64 else 2e-5
    for ours, theirs in zip(together, one_by_one):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def test_a_convolution_that_joined_others_takes_other_batches():
    net, reference = convolved(np.float64), alone(convolved(np.float64))
    for shape in ((3, 5, 2, 2), (7, 5, 3, 3)):
        for each in (net, reference):
            each.blobs["data"].reshape(*shape)
            each.blobs["data"].data[...] = np.random.default_rng(5).standard_normal(shape)
        for ours, theirs in zip(passes(net, "conv"), passes(reference, "conv")):
            np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("start", "end"), [(4, 2), (3, 1), (2, 2), (1, 0)])
def test_a_backward_of_some_of_the_layers_behind_a_convolution(start, end):
    nets = convolved(np.float64), alone(convolved(np.float64))
    for net in nets:
        net.forward()
        top = net.blobs["conv"]
        top.diff[...] = np.random.default_rng(0).standard_normal(top.shape)
        net.backward(start, end)
    for blobs in zip(*(net.blobs.values() for net in nets)):
        np.testing.assert_allclose(blobs[0].diff, blobs[1].diff, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shape", [IMAGES, (3, 2, 7, 7), VECTORS])
@pytest.mark.parametrize("slope", [0.0, 0.25])
def test_the_rectifier_is_the_same_in_both_directions(shape, slope):
    rng = np.random.default_rng(0)
    outer, channels = shape[:2]
    x = rng.standard_normal((outer, channels, int(np.prod(shape[2:])))).astype(np.float32)
    vectors = [rng.random(channels).astype(np.float32) for _ in range(3)]
    y, dx, zero = np.empty_like(x), np.empty_like(x), np.zeros(channels, np.float32)
    affine(x, y, *vectors, slope)
    ones, sums = np.ones_like(x), (np.empty(channels), np.empty(channels))
    rectified_gradient_sums(x, ones, *vectors, slope, *sums)
    shift, scale, bias = vectors
    normalize_gradient(x, ones, dx, shift, scale, zero, zero, bias, slope)
    expected = np.where(y > 0, 1, np.float32(slope))
    np.testing.assert_allclose(dx, expected * scale[:, None], rtol=1e-6)
    np.testing.assert_allclose(sums[0], expected.sum((0, 2)), rtol=1e-6)
