"""Weights in and out of nets: by name, checked, shared with test nets."""

import numpy as np
import pytest
from nets import build, input_layer, ip

from pycaffe_dist.errors import WeightsError

DATA = input_layer("data", 2, 3)


@pytest.mark.parametrize("suffix", [".caffemodel", ".caffemodel.h5"])
def test_round_trip(tmp_path, suffix):
    path = str(tmp_path / f"net{suffix}")
    source = build(DATA + ip("a", "data", 5) + ip("b", "a", 4), dtype=np.float32)
    target = build(DATA + ip("a", "data", 5) + ip("b", "a", 4), dtype=np.float32, seed=2)
    source.save_weights(path)
    target.load_weights(path)
    for mine, theirs in zip(target.parameters, source.parameters):
        np.testing.assert_array_equal(mine.blob.data, theirs.blob.data)


@pytest.mark.parametrize("suffix", [".caffemodel", ".caffemodel.h5"])
def test_shared_parameters(tmp_path, suffix):
    shared = "param { name: 'w' } param { name: 'b' }"
    prototxt = DATA + ip("a", "data", 3, shared) + ip("b", "a", 3, shared)
    path = str(tmp_path / f"net{suffix}")
    source, target = build(prototxt), build(prototxt, seed=2)
    source.save_weights(path)
    target.load_weights(path)
    np.testing.assert_allclose(
        target.nodes[2].layer.blobs[0].data, source.parameters[0].blob.data, rtol=1e-6
    )


def test_layers_of_other_names_keep_their_weights(tmp_path):
    path = str(tmp_path / "net.caffemodel")
    build(DATA + ip("a", "data", 5) + ip("old", "a", 4)).save_weights(path)
    target = build(DATA + ip("a", "data", 5) + ip("new", "a", 2))
    before = target.parameters[2].blob.data.copy()
    target.load_weights(path)
    np.testing.assert_array_equal(target.parameters[2].blob.data, before)


def test_a_shape_mismatch_changes_nothing(tmp_path):
    path = str(tmp_path / "net.caffemodel")
    build(DATA + ip("a", "data", 5) + ip("b", "a", 4)).save_weights(path)
    target = build(DATA + ip("a", "data", 5) + ip("b", "a", 6), seed=2)
    before = target.parameters[0].blob.data.copy()
    with pytest.raises(WeightsError, match=r"parameter 0 of layer 'b'.*4x5, the net needs 6x5"):
        target.load_weights(path)
    np.testing.assert_array_equal(target.parameters[0].blob.data, before)


def test_weights_shared_between_nets_stay_shared():
    train, test = build(DATA + ip("a", "data", 5)), build(DATA + ip("a", "data", 5), seed=2)
    test.share_weights_with(train)
    train.parameters[0].blob.data[...] = 7
    np.testing.assert_array_equal(test.parameters[0].blob.data, 7)
