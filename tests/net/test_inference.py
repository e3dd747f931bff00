"""Nets without keep_blobs: the same outputs, from fewer layers and less memory."""

from __future__ import annotations

import numpy as np
import pytest
from nets import build, input_layer, ip, parse

from pycaffe_dist.errors import NetError
from pycaffe_dist.net import Net
from pycaffe_dist.net.rules import with_state
from pycaffe_dist.schema import caffe_pb2


def convolution(name, bottom, outputs, options="kernel_size: 1", top=""):
    return (
        f"layer {{ name: '{name}' type: 'Convolution' bottom: '{bottom}' top: '{top or name}' "
        f"convolution_param {{ num_output: {outputs} {options} "
        "weight_filler { type: 'gaussian' std: 0.3 } bias_filler { type: 'gaussian' std: 1 } } }"
    )


def layer(kind, bottom, top="", options=""):
    bottoms = " ".join(f"bottom: '{name}'" for name in bottom.split())
    top = top or bottom
    return f"layer {{ name: '{kind}-{top}' type: '{kind}' {bottoms} top: '{top}' {options} }}"


NORM = "batch_norm_param { eps: 1e-3 }"
SCALE = (
    "scale_param { bias_term: true filler { type: 'gaussian' std: 1 } "
    "bias_filler { type: 'gaussian' std: 1 } }"
)
DATA = input_layer("data", 2, 16, 9, 9)
BLOCK = [
    DATA,
    convolution("a", "data", 32),
    layer("BatchNorm", "a", options=NORM),
    layer("ReLU", "a"),
    convolution("b", "a", 16, "kernel_size: 3 pad: 1 bias_term: false"),
    layer("BatchNorm", "b", "bn", NORM),
    layer("Scale", "bn", "scaled", SCALE),
    layer("ReLU", "scaled", "r", "relu_param { negative_slope: 0.25 }"),
    convolution("c", "r", 32),
    layer("Scale", "c", options=SCALE),
    layer("Eltwise", "a c", "sum"),
    layer("ReLU", "sum"),
    convolution("d", "sum", 8),
]
# Each case has the number of layers that run.
NETS = {
    "a block with a shortcut": (BLOCK, 4),
    "the shortcut is read later": ([*BLOCK, layer("Concat", "a d", "both")], 6),
    "the sum in its first bottom's place": (
        [*BLOCK[:-3], layer("Eltwise", "c a", "c"), layer("ReLU", "c", "end")],
        4,
    ),
    "the data is the shortcut": (
        [DATA, convolution("a", "data", 16), layer("Eltwise", "data a", "sum")],
        2,
    ),
    "groups, an own scale, a stride": (
        [
            DATA,
            convolution("a", "data", 32, "kernel_size: 1 group: 4 stride: 2"),
            layer("BatchNorm", "a", options="batch_norm_param { scale_bias: true }"),
            layer("BN", "a", "b"),
            convolution("dw", "b", 32, "kernel_size: 3 group: 32"),
            layer("Scale", "dw", options=SCALE),
            layer("TanH", "dw"),
        ],
        3,
    ),
    "inner products": (
        [
            DATA,
            ip("a", "data", 8),
            layer("Scale", "a", options=SCALE),
            layer("ReLU", "a"),
            layer("Dropout", "a"),
            ip("b", "a", 12),
            layer("Reshape", "b", "c", "reshape_param { shape { dim: 0 dim: 3 dim: 2 dim: 2 } }"),
            convolution("d", "c", 5, "kernel_size: 2"),
            layer("Softmax", "d", "prob"),
        ],
        4,
    ),
    "two readers, and layers that are not folded": (
        [
            DATA,
            layer("BatchNorm", "data", "bn"),
            layer("Scale", "bn", options=SCALE),
            convolution("a", "bn", 8),
            layer("Scale", "a", "b", SCALE),
            layer("Scale", "a", "c", "scale_param { axis: 2 num_axes: 1 }"),
            layer("Eltwise", "b c", "sum"),
            layer("ReLU", "sum"),
            layer("Pooling", "sum", "pool", "pooling_param { kernel_size: 3 stride: 2 }"),
            layer("Concat", "pool pool", "both"),
        ],
        7,
    ),
}


def fill(net, seed=0):
    """Give a net random data and parameters; variances and the statistics' weight are positive."""
    rng = np.random.default_rng(seed)
    for node in net.nodes:
        if node.layer.type in ("BatchNorm", "BN"):
            for index, blob in enumerate(node.layer.blobs):
                values = rng.uniform(0.5, 1.5, blob.shape)
                blob.data[...] = values if index else values - 1
    for name in net.inputs:
        net.blobs[name].data[...] = rng.standard_normal(net.blobs[name].shape)


def both(layers, dtype=np.float32, shape=None):
    """Return a net that keeps its blobs and one that does not, with the same values."""
    nets = []
    for keep in (True, False):
        net = build("".join(layers), caffe_pb2.TEST, dtype=dtype, keep_blobs=keep)
        if shape:
            net.blobs["data"].reshape(*shape)
        fill(net)
        nets.append(net)
    for mine, theirs in zip(*(net.parameters for net in nets)):
        theirs.blob.data[...] = mine.blob.data
    return nets


def outputs(net):
    net.forward()
    return {name: net.blobs[name].data.copy() for name in net.outputs}


def assert_close(found, wanted):
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        assert np.abs(values).max() > 0
        np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-5 * np.abs(values).max())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", NETS)
def test_outputs_are_those_of_a_net_that_keeps_its_blobs(name, dtype):
    layers, count = NETS[name]
    plain, net = both(layers, dtype)
    wanted = outputs(plain)
    assert_close(outputs(net), wanted)
    assert_close(outputs(net), wanted)
    ran = []
    net.record = lambda span: ran.append(span[1])
    net.forward()
    # Only float32 has products that add to their output.
    assert dtype == np.float64 or len(ran) == count, ran


@pytest.mark.parametrize("name", NETS)
def test_other_shapes_and_weights_are_followed(name):
    layers, _ = NETS[name]
    plain, net = both(layers)
    outputs(net)
    for shape in ((1, 16, 9, 9), (3, 16, 9, 9), (2, 16, 9, 9)):
        for each in (plain, net):
            each.blobs["data"].reshape(*shape)
            each.blobs["data"].data[...] = np.random.default_rng(1).standard_normal(shape)
        assert_close(outputs(net), outputs(plain))
    for mine, theirs in zip(plain.parameters, net.parameters):
        theirs.blob.data[...] = mine.blob.data[...] = 1.5 * mine.blob.data
    before = outputs(net)
    net.weights_changed()
    wanted, after = outputs(plain), outputs(net)
    assert_close(after, wanted)
    assert any((after[name] != before[name]).any() for name in after)


def test_an_empty_batch_gives_empty_outputs():
    _, net = both(BLOCK, shape=(0, 16, 9, 9))
    net.forward()
    assert net.blobs["d"].shape == (0, 8, 9, 9)


def test_blobs_share_memory():
    chain = [DATA, *(convolution(f"c{i}", f"c{i - 1}" if i else "data", 16) for i in range(6))]
    _, net = both(chain)
    places = set()
    net.record = lambda span: places.add(net.blobs[span[1]].data.ctypes.data)
    net.forward()
    # Two take turns, and the output has its own.
    assert len(places) == 3


@pytest.mark.parametrize("batch", [1, 2])
def test_the_parts_of_a_concat_lie_in_it(batch):
    layers = [
        DATA,
        convolution("a", "data", 16),
        convolution("b", "a", 24, "kernel_size: 3 pad: 1"),
        layer("Pooling", "a", "pool", "pooling_param { kernel_size: 3 stride: 1 pad: 1 }"),
        layer("Concat", "b pool", "both"),
        convolution("c", "both", 8),
        convolution("d", "both", 8),
        layer("Concat", "c d", "end"),
    ]
    plain, net = both(layers, shape=(batch, 16, 9, 9))
    assert_close(outputs(net), outputs(plain))
    ran = []
    net.record = lambda span: ran.append(span[1])
    net.forward()
    assert ("Concat-both" in ran) == (batch > 1)
    assert "Concat-end" in ran  # whose top is an output, with memory of its own


def test_what_is_not_kept_is_refused():
    _, net = both(BLOCK)
    net.forward()
    assert net.blobs["d"].data.any()
    for name in ("a", "b", "sum"):
        with pytest.raises(NetError, match="keep_blobs=False and keeps data, d"):
            _ = net.blobs[name].data
    net.forward()
    with pytest.raises(NetError, match="from the first layer to the last"):
        net.forward(1)
    with pytest.raises(NetError, match="it has no backward"):
        net.backward()
    net.after_forward.append(print)
    with pytest.raises(NetError, match="without callbacks"):
        net.forward()


def test_it_is_for_the_test_phase():
    with pytest.raises(NetError, match="for the TEST phase"):
        build("".join(BLOCK), caffe_pb2.TRAIN, keep_blobs=False)


def test_a_loss_is_added_up():
    layers = [
        DATA,
        input_layer("label", 2),
        ip("a", "data", 4),
        "layer { name: 'loss' type: 'SoftmaxWithLoss' bottom: 'a' bottom: 'label' top: 'loss' }",
    ]
    plain, net = both(layers)
    for each in (plain, net):
        each.blobs["label"].data[...] = 1, 3
    assert net.forward() == pytest.approx(plain.forward(), rel=1e-5)


def test_shared_weights_are_taken_when_they_are_shared():
    plain, net = both(BLOCK)
    for parameter in plain.parameters:
        parameter.blob.data[...] *= 0.5
    net.share_weights_with(plain)
    assert_close(outputs(net), outputs(plain))


def test_kernels_are_found_by_a_dry_run():
    from pycaffe_dist.kernels.dry_run import Needs
    from pycaffe_dist.net.precompile import find_needs

    param = with_state(parse("".join([DATA, ip("a", "data", 8)])), caffe_pb2.TEST)
    found = []
    for keep in (True, False):
        needs = Needs()
        find_needs(Net(param, keep_blobs=keep), needs)
        found.append({loop.py_func.__name__ for loop, _ in needs.loops})
    assert ["_dot_units" in names for names in found] == [False, True]
