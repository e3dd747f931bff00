"""Batching, hooks, MemoryData, layers and files through the Python API."""

import logging

import numpy as np
import pytest

import pycaffe_dist as caffe
from pycaffe_dist.errors import ArgumentError, LayerError, NetError, SnapshotError, UsageError

NET = """
name: 'small' force_backward: true
layer { name: 'data' type: 'Input' top: 'data' input_param { shape { dim: 4 dim: 3 } } }
layer { name: 'fc' type: 'InnerProduct' bottom: 'data' top: 'fc'
  inner_product_param { num_output: 2 weight_filler { type: 'xavier' } } }
layer { name: 'tanh' type: 'TanH' bottom: 'fc' top: 'tanh' }
"""
MEMORY = """
layer { name: 'memory' type: 'MemoryData' top: 'data' top: 'label'
  memory_data_param { batch_size: 2 channels: 1 height: 2 width: 3 } }
layer { name: 'double' type: 'Power' bottom: 'data' top: 'double' power_param { scale: 2 } }
"""


def build(tmp_path, text, phase=caffe.TEST, **options):
    path = tmp_path / "net.prototxt"
    path.write_text(text)
    caffe.set_random_seed(5)
    return caffe.Net(path, phase, **options)


@pytest.fixture
def net(tmp_path):
    return build(tmp_path, NET)


def test_blobs_look_like_pycaffes(net):
    blob = net.blobs["data"]
    assert (blob.shape[0], len(blob.shape), list(blob.shape)) == (4, 2, [4, 3])
    assert tuple(blob.shape) == blob.data.shape == (4, 3)
    assert (blob.num, blob.channels, blob.height, blob.width, blob.count) == (4, 3, 1, 1, 12)
    assert blob.data.dtype == np.float32
    assert blob.data.flags.c_contiguous
    with pytest.raises(AttributeError):
        blob.data = np.zeros((4, 3))


def test_arrays_stay_valid(net):
    blob = net.blobs["data"]
    before = blob.data
    before[...] = 7
    assert (blob.data == 7).all()
    blob.reshape(2, 3)
    blob.data[...] = 8
    assert (before[:2] == 8).all(), "a smaller blob keeps its memory"
    blob.reshape(9, 3)
    before += 1
    blobs, params = list(net.blobs.values()), net.params["fc"]
    del net
    assert all(np.isfinite(b.data).all() and np.isfinite(b.diff).all() for b in blobs + params)


def test_layers_and_names(net):
    assert list(net.layer_dict) == list(net._layer_names) == ["data", "fc", "tanh"]
    fc = net.layer_dict["fc"]
    assert (fc.type, len(fc.blobs)) == ("InnerProduct", 2)
    assert fc.blobs[0] is net.params["fc"][0]
    assert net.top_names == {"data": ["data"], "fc": ["fc"], "tanh": ["tanh"]}
    assert net.bottom_names == {"data": [], "fc": ["data"], "tanh": ["fc"]}
    assert net._blob_names == ["data", "fc", "tanh"]
    assert (net._inputs, net._outputs) == ([0], [2])
    assert (net._top_ids(1), net._bottom_ids(1)) == ([1], [0])
    with pytest.raises(NetError, match="no layer 'fcc'"):
        net.forward(start="fcc")
    with pytest.raises(UsageError, match="no blob 'tan'; did you mean 'tanh'"):
        net.forward(blobs=["tan"])


def test_a_layer_can_be_reshaped_by_hand(net):
    net.blobs["data"].reshape(6, 3)
    net.layers[1].reshape([net.blobs["data"]], [net.blobs["fc"]])
    assert net.blobs["fc"].shape == (6, 2)


def test_a_loss_without_a_name(tmp_path):
    text = NET + (
        "layer { name: 'goal' type: 'Input' top: 'goal' input_param { shape { dim: 4 dim: 2 } } }"
        "layer { name: 'loss' type: 'EuclideanLoss' bottom: 'tanh' bottom: 'goal' }"
    )
    net = build(tmp_path, text)
    net.blobs["goal"].data[...] = 1
    net.forward()
    assert net.outputs == []
    assert net.blob_loss_weights["(automatic)"] == 1
    assert net._blob_loss_weights == list(net.blob_loss_weights.values())
    assert net.forward(end="loss")["(automatic)"] > 0


def test_forward_all_pads_the_last_batch(net):
    data = np.random.default_rng(0).standard_normal((10, 3)).astype(np.float32)
    out = net.forward_all(data=data, blobs=["fc"])
    weights, biases = (blob.data for blob in net.params["fc"])
    np.testing.assert_allclose(out["fc"], data @ weights.T + biases, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(out["tanh"], np.tanh(out["fc"]), rtol=1e-5, atol=1e-6)
    batches = list(net._batch({"data": data}))
    assert [batch["data"].shape for batch in batches] == [(4, 3)] * 3
    assert not batches[-1]["data"][2:].any()


def test_forward_backward_all(net):
    rng = np.random.default_rng(0)
    data, diff = (rng.standard_normal((7, n)).astype(np.float32) for n in (3, 2))
    outs, diffs = net.forward_backward_all(data=data, tanh=diff, diffs=["fc"])
    slope = diff * (1 - outs["tanh"] ** 2)
    assert outs["tanh"].shape == (7, 2)
    np.testing.assert_allclose(diffs["fc"], slope, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        diffs["data"], slope @ net.params["fc"][0].data, rtol=1e-4, atol=1e-6
    )
    with pytest.raises(UsageError, match="equally long"):
        net.forward_backward_all(data=data, tanh=diff[:6])


def test_arrays_that_do_not_fit(net):
    with pytest.raises(ValueError, match="does not fit") as caught:
        net.forward(data=np.zeros((4, 5)))
    assert isinstance(caught.value, ArgumentError)


def test_hooks_see_every_layer(net):
    seen = []
    net.before_forward(lambda layer: seen.append(("before", layer)))
    net.after_forward(lambda layer: seen.append(("after", layer)))
    net.before_backward(lambda layer: seen.append(("back", layer)))
    net.after_backward(lambda layer: seen.append(("done", layer)))
    net.forward(start="fc")
    assert seen == [("before", 1), ("after", 1), ("before", 2), ("after", 2)]
    seen.clear()
    net.backward(start="fc")
    assert seen == [("back", 1), ("done", 1), ("back", 0), ("done", 0)]


def test_a_hook_may_change_what_a_layer_gets(net):
    def clear(layer):
        if net._layer_names[layer] == "tanh":
            net.blobs["fc"].data[...] = 0

    net.before_forward(clear)
    assert not net.forward(data=np.ones((4, 3)))["tanh"].any()


def test_hdf5_weights_under_any_name(net, tmp_path):
    path = tmp_path / "weights"
    net.save_hdf5(path)
    assert path.read_bytes()[:4] == b"\x89HDF"
    wanted = net.params["fc"][0].data.copy()
    for load in (net.load_hdf5, net.copy_from):
        net.params["fc"][0].data[...] = 0
        load(path)
        np.testing.assert_array_equal(net.params["fc"][0].data, wanted)
    assert [file.name for file in tmp_path.iterdir() if "weights" in file.name] == ["weights"]
    with pytest.raises(SnapshotError, match=f"^{tmp_path}/none/weights: folder"):
        net.save_hdf5(tmp_path / "none" / "weights")


def test_the_old_constructor_warns(net, tmp_path, caplog):
    net.save(tmp_path / "w.caffemodel")
    with caplog.at_level(logging.WARNING, "pcaffe"):
        caffe.Net(str(tmp_path / "net.prototxt"), str(tmp_path / "w.caffemodel"), caffe.TEST)
    assert "deprecated" in caplog.text


def test_a_missing_file_is_a_runtime_error(tmp_path):
    with pytest.raises(RuntimeError, match=r"missing\.prototxt"):
        caffe.Net(tmp_path / "missing.prototxt", caffe.TEST)


def test_memory_data(tmp_path):
    net = build(tmp_path, MEMORY)
    assert net.blobs["label"].shape == (2,)
    with pytest.raises(LayerError, match="set_input_arrays"):
        net.forward()
    data = np.arange(24, dtype=np.float32).reshape(4, 1, 2, 3)
    labels = np.array([5, 6, 7, 8], np.float32)
    net.set_input_arrays(data, labels)
    for begin in (0, 2, 0):
        net.forward()
        np.testing.assert_array_equal(net.blobs["double"].data, 2 * data[begin : begin + 2])
        np.testing.assert_array_equal(net.blobs["label"].data.ravel(), labels[begin : begin + 2])
    assert net.blobs["label"].shape == (2, 1, 1, 1)
    data += 1
    net.forward()
    np.testing.assert_array_equal(net.blobs["data"].data, data[2:])


@pytest.mark.parametrize(
    ("data", "labels", "message"),
    [
        (np.zeros((4, 1, 2, 3)), np.zeros(4, np.float32), "float32 array with 4 axes for data"),
        (np.zeros((4, 1, 2, 3), "f").T, np.zeros(4, "f"), "C-contiguous"),
        (np.zeros((4, 2, 3), "f"), np.zeros(4, "f"), "4 axes for data"),
        (np.zeros((4, 1, 3, 2), "f"), np.zeros(4, "f"), r"images of shape \(1, 2, 3\)"),
        (np.zeros((3, 1, 2, 3), "f"), np.zeros(3, "f"), "multiple of 2 images, found 3"),
        (np.zeros((4, 1, 2, 3), "f"), np.zeros(2, "f"), "a label for each image"),
    ],
)
def test_memory_data_refuses(tmp_path, data, labels, message):
    with pytest.raises((UsageError, LayerError), match=message):
        build(tmp_path, MEMORY).set_input_arrays(data, labels)


def test_set_input_arrays_needs_memory_data(net):
    with pytest.raises(UsageError, match="'data' is Input"):
        net.set_input_arrays(np.zeros((4, 3, 1, 1), "f"), np.zeros(4, "f"))


def test_added_images_are_transformed_once_the_last_are_used(tmp_path):
    scaled = MEMORY.replace(
        "memory_data_param", "transform_param { scale: 0.5 crop_size: 2 } memory_data_param"
    ).replace("width: 3", "width: 2")
    net = build(tmp_path, scaled)
    layer = net.layers[0]
    images = [np.full((1, 4, 4), value, np.uint8) for value in (2, 4)]
    layer.add(images, [1, 0])
    with pytest.raises(LayerError, match="unused"):
        layer.add(images, [1, 0])
    net.forward()
    np.testing.assert_array_equal(net.blobs["data"].data[:, 0, 0, 0], [1, 2])
    layer.add(images[::-1], [0, 1])
    net.forward()
    np.testing.assert_array_equal(net.blobs["data"].data[:, 0, 0, 0], [2, 1])
    with pytest.raises(LayerError, match="images of shape"):
        build(tmp_path, MEMORY).layers[0].add(images, [0, 1])


def test_python_layers_with_a_constructor_of_their_own(tmp_path, monkeypatch):
    (tmp_path / "own_layers.py").write_text(
        """
import pycaffe_dist as caffe

class Own(caffe.Layer):
    def __init__(self, layer_param, *args, **kwargs):
        super().__init__(layer_param, *args, **kwargs)
        self.options = layer_param.python_param.param_str

    def setup(self, bottom, top):
        self.records = [1.0]

    def reshape(self, bottom, top):
        top[0].reshape(1)

    def forward(self, bottom, top):
        top[0].data[...] = self.records[0]
"""
    )
    monkeypatch.syspath_prepend(tmp_path)
    net = build(
        tmp_path,
        "layer { name: 'own' type: 'Python' top: 'out' "
        "python_param { module: 'own_layers' layer: 'Own' param_str: 'x' } }",
    )
    own = net.layers[0]
    assert (type(own).__name__, own.type, own.options) == ("Own", "Python", "x")
    own.records = [7.0]
    assert net.forward()["out"] == 7
    assert net.layer_dict["own"] is own
