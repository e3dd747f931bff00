"""Usage: serving.py FOLDER SERVERS: every solver method, every case of exchange_cases.

Each training rank r writes FOLDER/r.npz: the weights after each iteration from the parameter server
(``ours``), and from its own updates with allreduce's mean gradients (``theirs``); then the history
that rank 0 collects.  The last SERVERS ranks only serve.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from exchange_cases import ITERATIONS, MANY, Case, cases, settings
from fake_parameters import FakeParameter

from pycaffe_dist.comm.cluster import detect
from pycaffe_dist.comm.mpi import MPICluster
from pycaffe_dist.config import ClusterSettings
from pycaffe_dist.exchange.server.serving import serve
from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.solvers import method_types
from pycaffe_dist.solvers.update.updater import Updater
from pycaffe_dist.training.engine import ExchangeEngine

RATE = 0.01


def runs(ranks: int) -> list[tuple[str, Case, str]]:
    """Return the cases with their names, and the solver methods: all, or fewer on many ranks."""
    found = cases(ranks)
    kinds = method_types() if ranks < MANY else []
    return [(name, case, "Adam") for name, case in found.items()] + [
        ("mixed", found["mixed"], kind) for kind in kinds if kind != "Adam"
    ]


def start(
    cluster: MPICluster, exchange: str, case: Case, kind: str
) -> tuple[ExchangeEngine, list[FakeParameter], Updater]:
    parameters = case.parameters()
    rng = np.random.default_rng(0)
    for number, parameter in enumerate(parameters):
        parameter.blob.data[...] = rng.standard_normal(parameter.shape)
        parameter.lr_mult, parameter.decay_mult = 1.0 + number % 2, 1.0 - number % 2
    param = caffe_pb2.SolverParameter(type=kind, momentum=0.9, weight_decay=0.01, delta=1e-3)
    if kind in ("AdaGrad", "RMSProp"):
        param.momentum = 0.0
    updater = Updater(param, parameters)
    # History of a run before this one.
    for index in range(len(parameters)):
        for slot in range(updater.method.slots):
            array = updater.method.slot(index, slot)
            array[...] = rng.random(array.shape)
    engine = ExchangeEngine(cluster, exchange, settings())
    engine.start(parameters, updater=updater)
    return engine, parameters, updater


def train(cluster: MPICluster, exchange: str, case: Case, kind: str) -> dict:
    engine, parameters, updater = start(cluster, exchange, case, kind)
    found = {}
    for iteration in range(ITERATIONS):
        engine.begin(iteration, RATE)
        for parameter, gradient in zip(parameters, case.gradients(cluster.rank, iteration)):
            parameter.blob.diff[...] = gradient
        for parameter, factors in zip(
            parameters[len(case.shapes) :], case.factors(cluster.rank, iteration)
        ):
            parameter.run_backward(*factors, engine.factored)
        order = parameters[::-1]
        if case.shuffled:
            np.random.default_rng(cluster.rank).shuffle(order)
        for parameter in order:
            engine.gradient_ready(parameter)
        for index, parameter in enumerate(parameters):
            engine.wait(parameter)
            if not engine.updates(parameter):
                updater.update(index, RATE, iteration)
            found[f"{iteration}/{index}"] = parameter.blob.data.copy()
        time.sleep(1e-3 * cluster.rank)
    engine.synchronize()
    for index, parameter in enumerate(parameters):
        found[f"end/{index}"] = parameter.blob.data.copy()
        assert updater.method.holds(index) != engine.updates(parameter)
    for number, array in enumerate(engine.collect_history(updater)):
        found[f"history/{number}"] = array
    engine.finish()
    return found


def main(folder: str, servers: int) -> None:
    with detect(ClusterSettings(server_ranks=servers)) as cluster:
        assert isinstance(cluster, MPICluster)
        if cluster.serves:
            serve(cluster)
            return
        arrays = {}
        for name, case, kind in runs(cluster.size):
            for side, exchange in (("ours", "parameter_server"), ("theirs", "allreduce")):
                for key, array in train(cluster, exchange, case, kind).items():
                    arrays[f"{side}/{name}/{kind}/{key}"] = array
        np.savez(f"{folder}/{cluster.rank}.npz", **arrays)


main(sys.argv[1], int(sys.argv[2]))
