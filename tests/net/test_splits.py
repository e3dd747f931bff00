"""The places and names of Split layers and their blobs."""

import pytest
from nets import parse

from pycaffe_dist.errors import LayerError
from pycaffe_dist.net.splits import insert_splits


def test_a_blob_with_one_reader_is_left_alone():
    param = parse(
        "layer { name: 'a' top: 'x' } layer { name: 'b' bottom: 'x' top: 'y' }"
        "layer { name: 'c' bottom: 'y' }"
    )
    assert insert_splits(param, {}) == param


def test_two_readers():
    split = insert_splits(
        parse(
            "layer { name: 'data' top: 'data' top: 'label' }"
            "layer { name: 'acc' bottom: 'data' bottom: 'label' }"
            "layer { name: 'loss' bottom: 'data' bottom: 'label' }"
        ),
        {},
    )
    assert split == parse(
        "layer { name: 'data' top: 'data' top: 'label' }"
        "layer { name: 'data_data_0_split' type: 'Split' bottom: 'data'"
        "  top: 'data_data_0_split_0' top: 'data_data_0_split_1' }"
        "layer { name: 'label_data_1_split' type: 'Split' bottom: 'label'"
        "  top: 'label_data_1_split_0' top: 'label_data_1_split_1' }"
        "layer { name: 'acc' bottom: 'data_data_0_split_0' bottom: 'label_data_1_split_0' }"
        "layer { name: 'loss' bottom: 'data_data_0_split_1' bottom: 'label_data_1_split_1' }"
    )


def test_in_place_layers_pass_the_split_on():
    """The reader after an in-place layer reads that layer's top, which is then split."""
    split = insert_splits(
        parse(
            "layer { name: 'ip' top: 'x' } layer { name: 'relu' bottom: 'x' top: 'x' }"
            "layer { name: 'b' bottom: 'x' } layer { name: 'c' bottom: 'x' }"
        ),
        {},
    )
    assert [layer.name for layer in split.layer] == ["ip", "relu", "x_relu_0_split", "b", "c"]
    assert split.layer[3].bottom == ["x_relu_0_split_0"]


def test_a_loss_weight_counts_as_a_reader():
    split = insert_splits(
        parse("layer { name: 'a' top: 'x' loss_weight: 0.5 } layer { name: 'b' bottom: 'x' }"),
        {},
    )
    assert not split.layer[0].loss_weight
    assert list(split.layer[1].loss_weight) == [0.5, 0]
    assert split.layer[2].bottom == ["x_a_0_split_1"]


def test_unknown_bottom():
    param = parse(
        "layer { name: 'a' top: 'pool1' }"
        "layer { name: 'b' type: 'Concat' bottom: 'pool1' bottom: 'poll1' }"
    )
    with pytest.raises(LayerError) as error:
        insert_splits(param, {"b": "net.prototxt:7"})
    assert str(error.value) == (
        "net.prototxt:7: layer 'b' (Concat): unknown bottom blob 'poll1' (bottom index 1): "
        "no layer before it has such a top; did you mean 'pool1'?"
    )
