from __future__ import annotations

import numpy as np
import pytest
from nets import build, input_layer

CONVOLUTION = """
layer { name: 'conv' type: 'Convolution' bottom: 'data' top: 'conv'
        convolution_param { num_output: 5 %s weight_filler { type: 'gaussian' std: 1 }
                            bias_filler { type: 'gaussian' std: 1 } } }
"""
RELU = "layer { name: 'relu' type: 'ReLU' bottom: 'conv' top: '%s' %s }"
KERNELS = {
    "rows": "kernel_size: 3 pad: 1",
    "pointwise": "kernel_size: 1",
    "whole": "kernel_size: 6",
    "depthwise": "kernel_size: 3 group: 5",
}


def make(kernel, relu, **options):
    net = build(input_layer("data", 2, 5, 6, 6) + CONVOLUTION % kernel + relu, **options)
    net.blobs["data"].data[...] = np.random.default_rng(0).standard_normal((2, 5, 6, 6))
    net.blobs["data"].data[0, 0, 0, :3] = np.nan, np.inf, -np.inf
    return net


def forward_calls(net):
    calls = []
    layer = net.layers[2]
    forward = layer.forward
    layer.forward = lambda *args: calls.append(1) or forward(*args)
    return calls


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("slope", ["", "relu_param { negative_slope: 0.5 }"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_rectified_convolution_gives_what_the_two_layers_give(kernel, slope, dtype):
    net = make(KERNELS[kernel], RELU % ("conv", slope), dtype=dtype)
    calls = forward_calls(net)
    net.forward()
    assert not calls
    together = net.blobs["conv"].data.copy()
    net.forward(0, 1)
    net.forward(2)
    assert calls
    np.testing.assert_array_equal(together, net.blobs["conv"].data)
    assert (together[1] < 0).any() == bool(slope)


def test_a_forward_that_ends_at_the_convolution_is_not_rectified():
    net = make(KERNELS["rows"], RELU % ("conv", ""))
    net.forward(0, 1)
    assert (net.blobs["conv"].data[1] < 0).any()


def test_a_listener_between_the_layers_sees_each_of_them():
    net = make(KERNELS["rows"], RELU % ("conv", ""))
    seen = []
    net.after_forward.append(lambda index: seen.append((net.blobs["conv"].data[1] < 0).any()))
    net.forward()
    assert len(seen) == 3
    assert seen[1] and not seen[2]


def test_a_relu_with_a_top_of_its_own_leaves_the_convolution_alone():
    net = make(KERNELS["rows"], RELU % ("relu", ""))
    calls = forward_calls(net)
    net.forward()
    assert calls and (net.blobs["conv"].data[1] < 0).any()


SUM = (
    input_layer("data", 2, 3, 4, 5)
    + "layer { name: 'first' type: 'Power' bottom: 'data' top: 'first' }"
    "layer { name: 'second' type: 'Power' bottom: 'data' top: 'second' power_param { scale: -2 } }"
    "layer { name: 'sum' type: 'Eltwise' bottom: 'first' bottom: 'second' top: 'sum' %s }"
    "layer { name: 'relu' type: 'ReLU' bottom: 'sum' top: 'sum' relu_param { %s } }"
    "layer { name: 'loss' type: 'EuclideanLoss' bottom: 'sum' bottom: 'data' top: 'loss' }"
)


@pytest.mark.parametrize("keep_diffs", [True, False])
@pytest.mark.parametrize("slope", ["", "negative_slope: 0.5"])
@pytest.mark.parametrize("how", ["", "eltwise_param { coeff: 3 coeff: -1 }"])
def test_a_rectified_sum_gives_what_the_two_layers_give(how, slope, keep_diffs):
    results = []
    for apart in (False, True):
        net = build("force_backward: true " + SUM % (how, slope), keep_diffs=keep_diffs)
        net.blobs["data"].data[...] = np.random.default_rng(0).standard_normal((2, 3, 4, 5))
        if apart:
            net.after_forward.append(lambda index: None)
        net.forward()
        net.backward()
        results.append((net.blobs["sum"].data.copy(), net.blobs["data"].diff.copy()))
    assert ((results[0][0] < 0).any()) == bool(slope)
    assert results[0][1].any()
    for together, one_by_one in zip(*results):
        np.testing.assert_array_equal(together, one_by_one)


def test_a_maximum_is_not_fused():
    net = build(SUM % ("eltwise_param { operation: MAX }", ""))
    net.blobs["data"].data[...] = 1
    calls = []
    layer = next(layer for layer in net.layers if layer.type == "ReLU")
    forward = layer.forward
    layer.forward = lambda *args: calls.append(1) or forward(*args)
    net.forward()
    assert calls
