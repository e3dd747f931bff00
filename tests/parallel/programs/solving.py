"""Usage: solving.py FILE: trains with every exchange, in many ways; rank 0 writes FILE (npz).

Names are EXCHANGE/WAY/gradient/NUMBER (the mean of the first iteration, unless the exchange updates
parameters itself) and EXCHANGE/WAY/weights/NUMBER.  After every iteration, all ranks must have the
same weights.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
from exchange_cases import HOSTS, MANY, TRAINING, settings

from pycaffe_dist.comm.cluster import Cluster, detect
from pycaffe_dist.config import ClusterSettings
from pycaffe_dist.exchange import AUTO, exchange_class
from pycaffe_dist.exchange.base import Moves
from pycaffe_dist.launch import environment
from pycaffe_dist.schema import caffe_pb2, text
from pycaffe_dist.solvers import Solver, method_types
from pycaffe_dist.training.consistency import check_equal
from pycaffe_dist.training.trainer import make_solver

NET = """
layer { name: 'x' type: 'DummyData' top: 'x' top: 'y'
  dummy_data_param { shape { dim: 5 dim: 2 dim: 7 dim: 7 } shape { dim: 5 dim: 3 }
  data_filler { type: 'gaussian' } data_filler { type: 'gaussian' } } }
layer { name: 'conv' type: 'Convolution' bottom: 'x' top: 'conv'
  convolution_param { num_output: 5 kernel_size: 3 bias_term: false
  weight_filler { type: 'xavier' } } }
layer { name: 'norm' type: 'BatchNorm' bottom: 'conv' top: 'norm' }
layer { name: 'scale' type: 'Scale' bottom: 'norm' top: 'scale' scale_param { bias_term: true } }
layer { name: 'ip1' type: 'InnerProduct' bottom: 'scale' top: 'ip1'
  inner_product_param { num_output: 37 weight_filler { type: 'xavier' } } }
layer { name: 'a' type: 'InnerProduct' bottom: 'ip1' top: 'a' param { name: 'w' }
  param { name: 'b' } inner_product_param { num_output: 37 weight_filler { type: 'xavier' } } }
layer { name: 'tanh' type: 'TanH' bottom: 'a' top: 'tanh' }
layer { name: 'bn' type: 'BN' bottom: 'tanh' top: 'bn' bn_param { slope_filler { value: 1 } } }
layer { name: 'b' type: 'InnerProduct' bottom: 'bn' top: 'b' param { name: 'w' }
  param { name: 'b' } inner_product_param { num_output: 37 weight_filler { type: 'xavier' } } }
layer { name: 'ip2' type: 'InnerProduct' bottom: 'b' top: 'ip2'
  inner_product_param { num_output: 3 weight_filler { type: 'xavier' } } }
layer { name: 'loss' type: 'EuclideanLoss' bottom: 'ip2' bottom: 'y' top: 'loss' }
"""
SOLVER = "net_param {{ {} }} type: '{}' base_lr: 0.01 lr_policy: 'fixed' random_seed: 8 {} {}"
COMMON = "max_iter: 9 weight_decay: 0.01 solver_mode: CPU delta: 1e-4"
ITERATIONS = 3
WITH_MOMENTUM = ("SGD", "Nesterov", "AdaDelta", "Adam")
# Other settings, with SGD.
WAYS = {"passes": "iter_size: 2", "clipped": "clip_gradients: 0.5"}


def is_refused(cluster: Cluster, exchange: str, solver: Solver) -> bool:
    """Tell, on all ranks, whether an exchange combines nothing; only rank 0 gets that error."""
    if exchange == AUTO:
        return False
    clipping = "the norm" if solver.param.clip_gradients >= 0 else ""
    wanted = replace(settings(), passes=solver.param.iter_size, needs_gradients=clipping)
    kind = exchange_class(exchange)(cluster, wanted)
    return all(kind.supports(p, cluster) for p in solver.net.parameters if p.receives_gradient)


def train(cluster: Cluster, exchange: str, method: str, fields: str) -> dict[str, np.ndarray]:
    """Return the first mean gradients, if they are known, and the last weights."""
    if method in WITH_MOMENTUM:
        fields += " momentum: 0.9"
    param = text.parse(SOLVER.format(NET, method, COMMON, fields), caffe_pb2.SolverParameter())
    found: dict[str, np.ndarray] = {}
    solver = make_solver(param, cluster, exchange=exchange, settings=settings())
    if is_refused(cluster, exchange, solver):
        solver.close()
        return found

    def keep_gradients(solver: Solver) -> None:
        if solver.iteration == 0:
            for number, parameter in enumerate(solver.net.parameters):
                if parameter.receives_gradient:
                    found[f"gradient/{number}"] = parameter.blob.diff.copy()

    def compare_weights(solver: Solver) -> None:
        check_equal(cluster, solver.net.parameters, f"{exchange}, {method} {fields}:")

    if exchange == AUTO or exchange_class(exchange).moves is not Moves.UPDATE:
        solver.callbacks.after_gradients.append(keep_gradients)
    solver.callbacks.after_iteration.append(compare_weights)
    try:
        solver.step(ITERATIONS)
        solver.engine.mean_statistics()
        for number, parameter in enumerate(solver.net.parameters):
            found[f"weights/{number}"] = parameter.blob.data.copy()
    finally:
        solver.close()
    return found


def main(path: str) -> None:
    ranks = environment.find().size
    ways = {"SGD": ("SGD", ""), "Adam": ("Adam", "")} if ranks < MANY else {"SGD": ("SGD", "")}
    if 3 < ranks < MANY:
        ways |= {method: (method, "") for method in method_types()}
    if ranks < MANY:
        ways |= {name: ("SGD", fields) for name, fields in WAYS.items()}
    found = {}
    with detect(ClusterSettings(hosts=HOSTS[ranks])) as cluster:
        for exchange in TRAINING:
            for way, (method, fields) in ways.items():
                arrays = train(cluster, exchange, method, fields)
                found |= {f"{exchange}/{way}/{name}": array for name, array in arrays.items()}
        if cluster.rank == 0:
            np.savez(path, **found)


main(sys.argv[1])
