"""The nets of models/ without keep_blobs: outputs as with it, on small images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pycaffe_dist.net import Net
from pycaffe_dist.net.rules import with_state
from pycaffe_dist.reports.sources import without_sources
from pycaffe_dist.schema import caffe_pb2, text

MODELS = Path(__file__).resolve().parents[2] / "models"
# The smallest images that the windows of poolings and the weights of other nets allow.
SIZES = {
    "bvlc_alexnet": 67,
    "bvlc_reference_caffenet": 67,
    "bvlc_reference_rcnn_ilsvrc13": 67,
    "finetune_flickr_style": 67,
    "vgg16": 32,
    "vgg19": 32,
    "squeezenet_v1.1": 67,
    "mobilenet_v1": 64,
}
# Inputs that are not color images, for data layers.
SHAPES = {"mnist_siamese": (2, 28, 28), "hdf5_classification": (4, 1, 1)}
LARGE = ("bvlc_alexnet", "resnet101", "resnet152", "vgg16", "vgg19")
# They differ from CaffeNet in their last layer only.
LIKE_CAFFENET = ("bvlc_reference_rcnn_ilsvrc13", "finetune_flickr_style")


def prototxts():
    """Return one prototxt for inference of each model."""
    found = []
    for folder in sorted(path for path in MODELS.iterdir() if path.is_dir()):
        names = ["deploy.prototxt", f"{folder.name}.prototxt", f"{folder.name}_train_test.prototxt"]
        paths = [folder / name for name in names] + sorted(folder.glob("*train*.prototxt"))
        found.append(next(path for path in paths if path.exists()))
    return found


def read(path, batch):
    """Return a net's definition for a few small images."""
    shape = SHAPES.get(path.parent.name, (1, 28, 28) if "mnist" in path.name else (3, 32, 32))
    param = with_state(text.read_net(path), caffe_pb2.TEST, stages=("test-on-test",))
    param = without_sources(param, shape)
    size = SIZES.get(path.parent.name)
    # A net without the last layer, whose probabilities may be 0 and 1.
    if param.layer[-1].type == "Softmax":
        del param.layer[-1]
    for layer in param.layer:
        for given in layer.input_param.shape:
            given.dim[0] = batch
            if len(given.dim) == 4 and size:
                given.dim[2:] = [size, size]
    return param


def fill(net):
    """Give a net random parameters that keep the size of its values, and random inputs."""
    rng = np.random.default_rng(0)
    positive = {"BatchNorm": (1, 2), "BN": (0, 3), "Normalize": (0,), "Scale": (0,)}
    for node in net.nodes:
        for index, blob in enumerate(node.layer.blobs):
            if index in positive.get(node.layer.type, ()):
                blob.data[...] = rng.uniform(0.5, 1.5, blob.shape)
            else:
                scale = np.sqrt(2 / blob.count_of(1)) if blob.ndim > 1 else 0.1
                values = rng.standard_normal(blob.count, np.float32)
                blob.data[...] = (scale * values).reshape(blob.shape)
    for name in net.inputs:
        shape = net.blobs[name].shape
        values = rng.integers(0, 2, shape) if len(shape) < 4 else rng.standard_normal(shape)
        net.blobs[name].data[...] = values


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[pytest.mark.long] * (path.parent.name in LARGE + LIKE_CAFFENET))
        for path in prototxts()
    ],
    ids=lambda path: path.parent.name,
)
def test_a_model_gives_the_same_outputs(path):
    found = []
    batch = 2 if path.parent.name in SIZES else 1
    for keep in (True, False):
        net = Net(read(path, batch), keep_blobs=keep)
        fill(net)
        net.forward()
        found.append({name: np.array(net.blobs[name].data) for name in net.outputs})
        net.close()
    assert any(values.any() for values in found[0].values())
    for name, wanted in found[0].items():
        largest = np.abs(wanted).max()
        assert np.isfinite(largest)
        np.testing.assert_allclose(found[1][name], wanted, rtol=0, atol=1e-5 * largest)
