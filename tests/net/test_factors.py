"""Which backward passes leave a gradient to whoever rebuilds it from the layer's factors."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.net import Net
from pycaffe_dist.schema import caffe_pb2, text

NET = """
layer { name: 'x' type: 'DummyData' top: 'x' top: 'y'
  dummy_data_param { shape { dim: 4 dim: 6 } shape { dim: 4 dim: 3 }
  data_filler { type: 'gaussian' } data_filler { type: 'gaussian' } } }
layer { name: 'ip' type: 'InnerProduct' bottom: 'x' top: 'ip'
  inner_product_param { num_output: 3 weight_filler { type: 'xavier' } } }
layer { name: 'loss' type: 'EuclideanLoss' bottom: 'ip' bottom: 'y' top: 'loss' }
"""


def gradient(net: Net, announced: bool) -> np.ndarray:
    net.clear_parameter_diffs()
    net.forward()
    net.backward(on_gradient_ready=(lambda parameter: None) if announced else None)
    return net.parameters[0].blob.diff.copy()


def test_only_an_announced_gradient_is_left_to_its_factors_and_only_while_they_are_wanted():
    net = Net(text.parse(NET, caffe_pb2.NetParameter()), seed=3)
    weights = net.parameters[0]
    assert gradient(net, announced=True).any()
    weights.as_factors = True
    assert not gradient(net, announced=True).any()
    assert gradient(net, announced=False).any()
    assert not gradient(net, announced=True).any()
    weights.as_factors = False  # a new plan has chosen another exchange
    assert gradient(net, announced=True).any()
