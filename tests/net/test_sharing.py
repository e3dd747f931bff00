"""Parameters shared by name: one storage, summed gradients, one set of multipliers."""

import numpy as np
import pytest
from nets import build, input_layer, ip

from pycaffe_dist.errors import NetError

SHARED = "param { name: 'w' %s } param { name: 'b' }"
DATA = input_layer("data", 2, 3) + input_layer("label", 2, 3)
LOSS = "layer { name: 'loss' type: 'EuclideanLoss' bottom: '%s' bottom: 'label' top: 'loss' }"


def siamese(first="", second=""):
    return build(
        DATA + ip("a", "data", 3, SHARED % first) + ip("b", "a", 3, SHARED % second) + LOSS % "b"
    )


def test_one_owner_one_storage():
    net = siamese()
    assert [p.key for p in net.parameters] == ["a[0]", "a[1]"]
    a, b = net.nodes[2].layer, net.nodes[3].layer
    b.blobs[0].data[0, 0] = 42
    assert a.blobs[0].data[0, 0] == 42
    assert np.shares_memory(a.blobs[1].diff, b.blobs[1].diff)


def test_gradients_add_up():
    """The shared gradient is the sum of both gradients of an equal net with two parameters."""
    shared = siamese()
    apart = build(DATA + ip("a", "data", 3) + ip("b", "a", 3) + LOSS % "b")
    for net in (shared, apart):
        net.blobs["data"].data[...] = np.arange(6).reshape(2, 3) / 7
        net.blobs["label"].data[...] = 1
    for index in (0, 1):
        for node in apart.nodes[2:4]:
            node.layer.blobs[index].data[...] = shared.parameters[index].blob.data
    for net in (shared, apart):
        net.forward()
        net.backward()
    for index in (0, 1):
        both = sum(node.layer.blobs[index].diff for node in apart.nodes[2:4])
        np.testing.assert_allclose(shared.parameters[index].blob.diff, both, rtol=1e-12)


def test_either_layer_may_give_the_multipliers():
    assert siamese(second="lr_mult: 3").parameters[0].lr_mult == 3
    assert siamese(first="decay_mult: 0").parameters[0].decay_mult == 0


def test_mismatched_multipliers_are_refused():
    with pytest.raises(NetError, match="mismatched lr_mult: 2 in layer 'a', 3 in layer 'b'"):
        siamese("lr_mult: 2", "lr_mult: 3")


def test_either_layer_may_give_the_regularization():
    assert siamese().parameters[0].regularization == ""
    assert siamese(second="regularization_type: 'L1'").parameters[0].regularization == "L1"
    with pytest.raises(NetError, match="mismatched regularization_type: L1 in layer 'a', L2 in"):
        siamese("regularization_type: 'L1'", "regularization_type: 'L2'")


def test_a_regularization_is_one_of_two():
    with pytest.raises(NetError, match="param 0 has regularization_type 'L3', which is none of"):
        siamese("regularization_type: 'L3'")


def test_strict_sharing_needs_equal_shapes():
    with pytest.raises(NetError, match=r"'w' owned by layer 'a' with layer 'b': shape mismatch"):
        build(DATA + ip("a", "data", 4, SHARED % "") + ip("b", "a", 3, SHARED % ""))


def test_permissive_sharing_needs_equal_counts():
    permissive = "param { name: 'w' share_mode: PERMISSIVE }"
    net = build(DATA + ip("a", "data", 2, permissive) + ip("b", "a", 3, permissive) + LOSS % "b")
    assert net.nodes[3].layer.blobs[0].shape == (3, 2)
    assert np.shares_memory(net.nodes[2].layer.blobs[0].data, net.nodes[3].layer.blobs[0].data)
    with pytest.raises(NetError, match="count mismatch"):
        build(DATA + ip("a", "data", 4, permissive) + ip("b", "a", 5, permissive))
