"""Offsets of V1 CROP layers."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from pycaffe_dist.errors import PrototxtError
from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.schema.upgrade import upgrade_net


def conv(bottom, top, options, kind="CONVOLUTION"):
    return (
        f"layers {{ name: '{top}' type: {kind} bottom: '{bottom}' top: '{top}' "
        f"convolution_param {{ num_output: 2 {options} }} }}"
    )


def pool(bottom, top, options="kernel_size: 2 stride: 2"):
    return (
        f"layers {{ name: '{top}' type: POOLING bottom: '{bottom}' top: '{top}' "
        f"pooling_param {{ {options} }} }}"
    )


def crop(first, second, top):
    return (
        f"layers {{ name: '{top}' type: CROP bottom: '{first}' bottom: '{second}' top: '{top}' }}"
    )


def relu(blob):
    return f"layers {{ name: 'r' type: RELU bottom: '{blob}' top: '{blob}' }}"


def upgraded(*layers):
    net = text_format.Parse(" ".join(layers), caffe_pb2.NetParameter())
    upgrade_net(net)
    return {layer.name: layer for layer in net.layer}


def test_the_crops_of_fcn_8s_have_their_published_offsets():
    layers = [relu("data"), conv("data", "conv1", "kernel_size: 3 pad: 100"), relu("conv1")]
    layers += [pool("conv1", "pool1"), pool("pool1", "pool2"), pool("pool2", "pool3")]
    layers += [
        pool("pool3", "pool4"),
        pool("pool4", "pool5"),
        conv("pool5", "fc6", "kernel_size: 7"),
    ]
    up = "kernel_size: 4 stride: 2"
    layers += [conv("fc6", "score2", up, "DECONVOLUTION"), crop("pool4", "score2", "pool4c")]
    layers.append(
        "layers { name: 'fuse' type: ELTWISE bottom: 'score2' bottom: 'pool4c' top: 'fused' }"
    )
    layers += [conv("fused", "score4", up, "DECONVOLUTION"), crop("pool3", "score4", "pool3c")]
    layers += [conv("score4", "big", "kernel_size: 16 stride: 8", "DECONVOLUTION")]
    found = upgraded(*layers, crop("big", "data", "up"))
    crops = [found[name] for name in ("pool4c", "pool3c", "up")]
    assert [layer.type for layer in crops] == ["Crop"] * 3
    assert [list(layer.crop_param.offset) for layer in crops] == [[5, 5], [9, 9], [31, 31]]
    assert [layer.crop_param.axis for layer in crops] == [2] * 3


def test_height_and_width_have_their_own_offsets():
    """With dilation, and through a crop that is aligned before."""
    sides = "kernel_h: 5 kernel_w: 3 pad_h: 0 pad_w: 0"
    layers = [conv("x", "a", sides), conv("x", "b", "kernel_size: 3 dilation: 2 pad: 3")]
    layers += [crop("x", "a", "c"), crop("b", "c", "d")]
    found = upgraded(*layers)
    assert list(found["c"].crop_param.offset) == [2, 1]
    assert list(found["d"].crop_param.offset) == [3, 2]


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([], "no blob leads to both 'x' and 'y'"),
        ([pool("x", "y")], "from 'x' to 'y' the scale is 1/2 and the offset 1/4; they must be 1"),
        ([conv("x", "y", "kernel_size: 2")], ".* the scale is 1 and the offset 1/2; they must be"),
        ([conv("x", "y", "kernel_size: 3 pad: 2")], ".* the offset -1; .* a whole number from 0"),
        ([conv("x", "y", "")], "a layer has no kernel_size"),
        (
            ["layers { name: 'ip' type: INNER_PRODUCT bottom: 'x' top: 'y' }"],
            "layer 'ip' of type 'InnerProduct' moves points in an unknown way",
        ),
        ([pool("x", "y", "global_pooling: true")], "layer 'y' of type 'Pooling' moves points"),
    ],
)
def test_crops_that_cannot_be_aligned(layers, message):
    with pytest.raises(PrototxtError, match=rf"layer 'c' \(CROP\) cannot be aligned: {message}"):
        upgraded(*layers, crop("x", "y", "c"))


def test_a_crop_needs_two_bottoms():
    with pytest.raises(PrototxtError, match="it needs 2 bottoms, found 1"):
        upgraded("layers { name: 'c' type: CROP bottom: 'x' top: 'y' }")
