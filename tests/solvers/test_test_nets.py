"""Test nets: they test the train net's weights, and own only the weights that it does not have."""

from __future__ import annotations

import numpy as np
import pytest
from tiny import NET, tiny_param

from pycaffe_dist.net import Net
from pycaffe_dist.schema import caffe_pb2, text
from pycaffe_dist.solvers import Solver

# One layer more than the train net.
LARGER = (
    NET
    + """layer { name: 'extra' type: 'InnerProduct' bottom: 'drop' top: 'extra'
  inner_product_param { num_output: 1 weight_filler { type: 'constant' value: %d } } }"""
)


@pytest.fixture
def solver(tmp_path):
    solver = Solver(
        tiny_param(
            tmp_path,
            f"test_net_param {{ {LARGER % 0} }} test_iter: 1 test_interval: 100",
        )
    )
    yield solver
    solver.close()


def weights(net: Net, layer: str) -> np.ndarray:
    return net.layers[net.layer_index(layer)].blobs[0].data


def test_a_test_uses_the_present_weights_of_training(solver):
    (test_net,) = solver.test_nets
    solver.step(3)
    solver.test_all()
    np.testing.assert_array_equal(weights(test_net, "ip"), weights(solver.net, "ip"))
    data, labels = test_net.blobs["drop"].data, test_net.blobs["y"].data
    wrong = data @ weights(solver.net, "ip").T + solver.net.layers[-2].blobs[1].data - labels
    loss = (wrong**2).sum() / 2 / len(data)
    assert test_net.blobs["loss"].data == pytest.approx(loss, rel=1e-5)


def test_weights_of_layers_that_only_the_test_net_has_are_loaded_into_it(solver, tmp_path):
    source = Net(text.parse(LARGER % 5, caffe_pb2.NetParameter()))
    source.save_weights(f"{tmp_path}/larger.caffemodel")
    solver.load_weights([f"{tmp_path}/larger.caffemodel"])
    (test_net,) = solver.test_nets
    assert (weights(test_net, "extra") == 5).all()
    np.testing.assert_array_equal(weights(solver.net, "ip"), weights(source, "ip"))


@pytest.mark.filterwarnings("error")
def test_a_test_of_no_batches_returns_nothing(tmp_path, caplog):
    fields = f"test_net_param {{ {LARGER % 0} }} test_iter: 0 test_interval: 100"
    solver = Solver(tiny_param(tmp_path, fields))
    solver.test_all()
    assert "test_iter of test net #0 is 0" in caplog.text
    solver.close()
