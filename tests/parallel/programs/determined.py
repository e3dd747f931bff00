"""Trains with every solver method twice and checks that all weights have the same bits.

Every rank writes only "same"; a difference ends the job with an error.
"""

from __future__ import annotations

import sys

import numpy as np

from pycaffe_dist.comm.cluster import Cluster, detect
from pycaffe_dist.exchange import exchange_class, exchange_names
from pycaffe_dist.exchange.base import Moves
from pycaffe_dist.schema import caffe_pb2, text
from pycaffe_dist.solvers import method_types
from pycaffe_dist.threads import set_threads
from pycaffe_dist.training.trainer import make_solver

NET = """
layer { name: 'x' type: 'DummyData' top: 'x' top: 'y'
  dummy_data_param { shape { dim: 6 dim: 2 dim: 9 dim: 9 } shape { dim: 6 dim: 5 }
  data_filler { type: 'gaussian' } data_filler { type: 'gaussian' } } }
layer { name: 'conv' type: 'Convolution' bottom: 'x' top: 'conv'
  convolution_param { num_output: 7 kernel_size: 3 weight_filler { type: 'xavier' } } }
layer { name: 'norm' type: 'BatchNorm' bottom: 'conv' top: 'norm' }
layer { name: 'relu' type: 'ReLU' bottom: 'norm' top: 'norm' }
layer { name: 'drop' type: 'Dropout' bottom: 'norm' top: 'norm' }
layer { name: 'ip1' type: 'InnerProduct' bottom: 'norm' top: 'ip1'
  inner_product_param { num_output: 130 weight_filler { type: 'xavier' } } }
layer { name: 'ip2' type: 'InnerProduct' bottom: 'ip1' top: 'ip2'
  inner_product_param { num_output: 5 weight_filler { type: 'xavier' } } }
layer { name: 'loss' type: 'EuclideanLoss' bottom: 'ip2' bottom: 'y' top: 'loss' }
"""
ITERATIONS = 3


def train(cluster: Cluster, method: str, exchange: str) -> list[np.ndarray]:
    """Return the weights after a few iterations; all kernels run, clipping included if it can."""
    clips = exchange_class(exchange).moves is not Moves.UPDATE
    param = text.parse(
        f"net_param {{ {NET} }} type: '{method}' base_lr: 0.01 lr_policy: 'fixed' random_seed: 8 "
        "max_iter: 9 weight_decay: 0.01 solver_mode: CPU delta: 1e-4 "
        f"clip_gradients: {1 if clips else -1}",
        caffe_pb2.SolverParameter(),
    )
    if method in ("SGD", "Nesterov", "AdaDelta", "Adam"):
        param.momentum = 0.9
    solver = make_solver(param, cluster, exchange=exchange)
    solver.step(ITERATIONS)
    weights = [parameter.blob.data.copy() for parameter in solver.net.parameters]
    solver.close()
    return weights


def check(cluster: Cluster, method: str, exchange: str) -> None:
    """Raise AssertionError, with the case, unless two runs give the same bits."""
    first, second = (train(cluster, method, exchange) for _ in range(2))
    assert all(np.isfinite(array).all() for array in first), (method, exchange)
    same = [a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True)]
    assert all(same), (method, exchange, same)


def main() -> None:
    with detect() as cluster:
        set_threads(cluster.threads)
        for method in method_types():
            check(cluster, method, "allreduce")
        # test_exchanges.py repeats what only combines gradients.
        for exchange in exchange_names():
            if exchange_class(exchange).moves is Moves.UPDATE:
                check(cluster, "SGD", exchange)
    print("same", file=sys.stdout, flush=True)


if __name__ == "__main__":
    main()
