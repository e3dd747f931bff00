"""The backward passes that leave out a gradient because the layer's factors rebuild it."""

from __future__ import annotations

import numpy as np
import pytest

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


def gradient(net: Net, *factored: str) -> np.ndarray:
    net.clear_parameter_diffs()
    net.forward()
    net.backward(factored=factored)
    return net.parameters[0].blob.diff.copy()


@pytest.mark.parametrize("debug_info", [False, True])
def test_a_gradient_is_left_to_its_factors_while_they_are_wanted_and_it_is_not_shown(debug_info):
    net = Net(text.parse(NET, caffe_pb2.NetParameter()), seed=3)
    net.debug_info = debug_info
    assert gradient(net).any()
    assert gradient(net, "ip[0]").any() == debug_info
    assert gradient(net).any()
