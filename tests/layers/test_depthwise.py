"""ConvolutionDepthwise and DepthwiseConvolution against Convolution with groups."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf import text_format
from layer_harness import LayerHarness
from passes import run

from pycaffe_dist.errors import LayerError
from pycaffe_dist.net import Net
from pycaffe_dist.net.weights import load, save
from pycaffe_dist.schema import caffe_pb2

NAMES = ("ConvolutionDepthwise", "DepthwiseConvolution")


def text(kind, options):
    return f'type: "{kind}" bottom: "x" top: "y" convolution_param {{ {options} }}'


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("options", ["pad: 1", "stride: 2 bias_term: false", "dilation: 2 pad: 2"])
def test_it_is_a_convolution_of_as_many_groups_as_channels(kind, options):
    x = np.random.default_rng(0).standard_normal((2, 5, 9, 8))
    options += ' kernel_size: 3 num_output: 5 weight_filler { type: "msra" }'
    plain = LayerHarness(text("Convolution", options + " group: 5"), {"x": x})
    given = options + (" group: 5" if kind == "DepthwiseConvolution" else "")
    weights = [blob.data for blob in plain.layer.blobs]
    other = LayerHarness(text(kind, given), {"x": x}, parameters=weights)
    for found, expected in zip(run(other), run(plain)):
        for one, two in zip(found, expected):
            np.testing.assert_array_equal(one, two)


def test_num_output_and_group_are_the_number_of_channels():
    options = "num_output: 8 group: 2 kernel_size: 3"
    harness = LayerHarness(text("ConvolutionDepthwise", options), {"x": np.ones((1, 6, 4, 4))})
    assert harness.top[0].shape == (1, 6, 2, 2)
    assert [blob.shape for blob in harness.layer.blobs] == [(6, 1, 3, 3), (6,)]


@pytest.mark.parametrize("kind", NAMES)
def test_it_reads_and_writes_the_weights_of_grouped_convolutions(kind, tmp_path):
    def net(kind):
        shape = "input_param { shape { dim: 2 dim: 6 dim: 7 dim: 7 } }"
        layer = text(kind, "num_output: 6 group: 6 kernel_size: 3 weight_filler { type: 'msra' }")
        data = f"layer {{ name: 'in' type: 'Input' top: 'x' {shape} }}"
        both = f"{data} layer {{ name: 'c' {layer} }}"
        return Net(text_format.Parse(both, caffe_pb2.NetParameter()))

    first, second = net("Convolution"), net(kind)
    path = str(tmp_path / "grouped.caffemodel")
    save(first, path, write_diff=False, as_hdf5=False)
    load(second, path)
    x = np.random.default_rng(1).standard_normal((2, 6, 7, 7))
    for one in (first, second):
        one.blobs["x"].data[...] = x
        one.forward()
    np.testing.assert_array_equal(first.blobs["y"].data, second.blobs["y"].data)


def test_an_axis_that_the_bottom_lacks():
    with pytest.raises(LayerError, match="axis 7 is out of range"):
        LayerHarness(text("ConvolutionDepthwise", "kernel_size: 3 axis: 7"), {"x": np.ones((1, 2))})
