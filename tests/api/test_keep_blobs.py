"""Nets made with keep_blobs=False, as programs use them."""

from __future__ import annotations

import numpy as np
import pytest

import pycaffe_dist as caffe
from pycaffe_dist.errors import NetError

NET = """
layer { name: 'data' type: 'Input' top: 'data'
        input_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } } }
layer { name: 'conv' type: 'Convolution' bottom: 'data' top: 'conv'
        convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: 'xavier' } } }
layer { name: 'relu' type: 'ReLU' bottom: 'conv' top: 'conv' }
layer { name: 'ip' type: 'InnerProduct' bottom: 'conv' top: 'ip'
        inner_product_param { num_output: 5 weight_filler { type: 'xavier' } } }
layer { name: 'prob' type: 'Softmax' bottom: 'ip' top: 'prob' }
"""
DATA = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)


@pytest.fixture
def nets(tmp_path):
    """A net that keeps its blobs and one that does not, with the same weights."""
    (tmp_path / "net.prototxt").write_text(NET)
    plain = caffe.Net(str(tmp_path / "net.prototxt"), caffe.TEST)
    plain.save(str(tmp_path / "net.caffemodel"))
    files = str(tmp_path / "net.prototxt"), caffe.TEST
    weights = str(tmp_path / "net.caffemodel")
    return plain, caffe.Net(*files, weights=weights, keep_blobs=False)


def is_small(net):
    return not net._net.keeps_blobs


def test_outputs_and_inputs_are_there_and_nothing_else_is_computed(nets):
    plain, net = nets
    for each in nets:
        each.blobs["data"].data[...] = DATA
    found = net.forward()
    np.testing.assert_allclose(found["prob"], plain.forward()["prob"], rtol=1e-5)
    np.testing.assert_array_equal(net.blobs["data"].data, DATA)
    np.testing.assert_array_equal(net.blobs["prob"].data, found["prob"])
    assert len(net.forward_all(data=np.concatenate([DATA, DATA[:1]]))["prob"]) == 3
    assert is_small(net)


def test_a_blob_that_is_asked_for_is_there(nets):
    plain, net = nets
    for each in nets:
        each.forward(data=DATA)
    np.testing.assert_allclose(net.blobs["conv"].data, plain.blobs["conv"].data, atol=1e-6)
    assert not is_small(net)
    np.testing.assert_allclose(net.forward()["prob"], plain.forward()["prob"], rtol=1e-5)


@pytest.mark.parametrize(
    "use",
    [
        lambda net: net.forward(["conv"], data=DATA)["conv"],
        lambda net: net.forward(end="conv", data=DATA)["conv"],
        lambda net: net.forward(data=DATA) and net.backward(prob=np.ones((2, 5))),
        lambda net: net.blobs.get("conv").data,
        lambda net: [blob.data for blob in net.blobs.values()],
        lambda net: net.after_forward(lambda index: None),
    ],
)
def test_whoever_needs_the_blobs_gets_them(nets, use):
    _, net = nets
    use(net)
    assert not is_small(net)
    assert net.blobs["conv"].data.shape == (2, 4, 6, 6)


def test_new_weights_count(nets):
    plain, net = nets
    kept = net.params["conv"][0].data
    net.forward(data=DATA)
    for each in nets:
        each.params["conv"][0].data[...] *= -2
    wanted = plain.forward(data=DATA)["prob"]
    np.testing.assert_allclose(net.forward(data=DATA)["prob"], wanted, rtol=1e-5)
    kept[...] = plain.params["conv"][0].data[...] = 0.25
    net.weights_changed()
    wanted = plain.forward(data=DATA)["prob"]
    np.testing.assert_allclose(net.forward(data=DATA)["prob"], wanted, rtol=1e-5)
    assert is_small(net)


def test_data_are_not_read_twice(tmp_path):
    source = NET.replace("'Input'", "'DummyData'").replace("input_param", "dummy_data_param")
    (tmp_path / "net.prototxt").write_text(source)
    net = caffe.Net(str(tmp_path / "net.prototxt"), caffe.TEST, keep_blobs=False)
    net.forward()
    with pytest.raises(NetError, match="layer 'data' would read the next data"):
        _ = net.blobs["conv"].data


def test_the_training_phase_keeps_its_blobs(tmp_path):
    (tmp_path / "net.prototxt").write_text(NET)
    with pytest.raises(NetError, match="for the TEST phase"):
        caffe.Net(str(tmp_path / "net.prototxt"), caffe.TRAIN, keep_blobs=False)
