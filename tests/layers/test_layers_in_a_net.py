"""Layers in nets: chains of in-place layers, and readers of other layers' blobs."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf import text_format

from pycaffe_dist.errors import LayerError
from pycaffe_dist.net import Net
from pycaffe_dist.schema import caffe_pb2

TWO_READERS = """
layer { name: "w" type: "Parameter" top: "w" parameter_param { shape { dim: 3 } } }
layer { name: "a" type: "Power" bottom: "w" top: "a" power_param { scale: 2 } }
layer { name: "b" type: "Power" bottom: "w" top: "b" power_param { shift: 1 } }
"""


def test_all_readers_of_a_parameter_see_its_values():
    net = Net(text_format.Parse(TWO_READERS, caffe_pb2.NetParameter()))
    net.layers[0].blobs[0].data[:] = [1, 2, 3]
    net.forward()
    assert [net.blobs[name].data.tolist() for name in "ab"] == [[2, 4, 6], [2, 3, 4]]
    net.close()


HEAD = """
layer { name: "in" type: "Input" top: "data" top: "label"
  input_param { shape { dim: 4 dim: 3 dim: 8 dim: 8 } shape { dim: 4 } } }
"""
BLOCK = """
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 3 bias_term: false
    weight_filler { type: "msra" } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "scale" type: "Scale" bottom: "conv" top: "conv"
  scale_param { bias_term: true filler { type: "uniform" min: 0.5 max: 2 } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "branch" type: "Convolution" bottom: "data" top: "branch"
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "prelu" type: "PReLU" bottom: "branch" top: "branch" }
layer { name: "sum" type: "Eltwise" bottom: "conv" bottom: "branch" top: "sum" }
layer { name: "swish" type: "Swish" bottom: "sum" top: "sum" }
layer { name: "cat" type: "Concat" bottom: "sum" bottom: "conv" top: "cat" }
layer { name: "norm" type: "LRN" bottom: "cat" top: "norm" }
layer { name: "pool" type: "Pooling" bottom: "norm" top: "pool"
  pooling_param { kernel_size: 3 stride: 2 } }
"""
TAIL = """
layer { name: "flat" type: "Flatten" bottom: "pool" top: "flat" }
layer { name: "ip1" type: "InnerProduct" bottom: "flat" top: "ip1"
  inner_product_param { num_output: 6 weight_filler { type: "xavier" } } }
layer { name: "tanh" type: "TanH" bottom: "ip1" top: "ip1" }
layer { name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }
layer { name: "accuracy" type: "Accuracy" bottom: "ip2" bottom: "label" top: "accuracy" }
"""


def build(text: str) -> Net:
    net = Net(text_format.Parse(text, caffe_pb2.NetParameter()), dtype=np.float64, seed=1)
    rng = np.random.default_rng(2)
    net.blobs["data"].data[...] = rng.standard_normal(net.blobs["data"].shape)
    if "label" in net.blobs:
        net.blobs["label"].data[...] = [0, 4, 2, 1]
    return net


def test_every_parameter_of_a_net_of_in_place_layers_has_the_right_gradient():
    net = build(HEAD + BLOCK + TAIL)
    net.forward()
    net.clear_parameter_diffs()
    net.backward()
    rng = np.random.default_rng(3)
    learnt = [parameter for parameter in net.parameters if parameter.layer_name != "bn"]
    assert len(learnt) == 10
    for parameter in learnt:
        data, gradient = parameter.blob.data, parameter.blob.diff.copy()
        direction = rng.standard_normal(data.shape)
        saved = data.copy()
        losses = []
        for step in (1e-7, -1e-7):
            data[...] = saved + step * direction
            losses.append(net.forward())
        data[...] = saved
        slope = (losses[0] - losses[1]) / 2e-7
        assert float((gradient * direction).sum()) == pytest.approx(slope, rel=1e-4, abs=1e-6), (
            parameter.key
        )


def test_accuracy_beside_the_loss_does_not_disturb_its_gradient():
    without = "\n".join(line for line in TAIL.splitlines() if '"accuracy"' not in line)
    diffs = []
    for tail in (TAIL, without):
        net = build(HEAD + BLOCK + tail)
        net.forward()
        net.backward()
        diffs.append(next(p for p in net.parameters if p.key == "conv[0]").blob.diff)
    np.testing.assert_array_equal(*diffs)


@pytest.mark.parametrize(
    "second", ['type: "Dropout"', 'type: "ReLU"', 'type: "Swish"', 'type: "Scale"']
)
def test_overwriting_a_needed_blob_is_refused(second):
    first = 'layer { name: "first" type: "TanH" bottom: "data" top: "x" }'
    after = f'layer {{ name: "second" {second} bottom: "x" top: "x" }}'
    loss = 'layer { name: "loss" type: "Reduction" bottom: "x" top: "l" loss_weight: 1 }'
    text = f"force_backward: true {HEAD}{first}{after}{loss}"
    with pytest.raises(LayerError, match="layer 'first' needs the old values"):
        build(text)


def test_layers_after_a_filter_get_its_batch():
    net = build(
        HEAD
        + """
        layer { name: "pick" type: "Filter" bottom: "data" bottom: "label" top: "picked" }
        layer { name: "ip" type: "InnerProduct" bottom: "picked" top: "ip"
          inner_product_param { num_output: 2 } }
        """
    )
    for label, count in (([0, 4, 2, 1], 3), ([0, 0, 0, 1], 1), ([1, 1, 1, 1], 4)):
        net.blobs["label"].data[...] = label
        net.forward()
        assert net.blobs["ip"].shape == (count, 2)
