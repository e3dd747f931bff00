"""Usage: exchanging.py FOLDER SEED [CASE …]: every exchange on every case, or on some.

Rank r writes FOLDER/r.npz.  Means are named EXCHANGE/CASE/ITERATION/NUMBER. If numbers are rounded
for the wire, EXCHANGE:WIRE/first/NUMBER is the mean of the first iteration and
EXCHANGE:WIRE/sum/NUMBER the sum over many.  ``refused`` lists the exchanges that do not work on
these ranks.  The seed chooses how the ranks lag behind each other.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
from exchange_cases import (
    COMPRESSING,
    EXCHANGES,
    HOSTS,
    ITERATIONS,
    MANY,
    ON_DEVICE,
    WIRE_CASE,
    WIRE_ITERATIONS,
    WIRES,
    Case,
    cases,
    settings,
)

from pycaffe_dist import device
from pycaffe_dist.comm.cluster import detect
from pycaffe_dist.comm.mpi import MPICluster
from pycaffe_dist.config import ClusterSettings, ExchangeSettings
from pycaffe_dist.errors import ClusterError
from pycaffe_dist.gpu.emulated import EmulatedGPU
from pycaffe_dist.launch import environment
from pycaffe_dist.planning.layer_times import Times
from pycaffe_dist.training.engine import ExchangeEngine


@cache
def emulated_gpu(rank: int) -> EmulatedGPU:
    return EmulatedGPU(rank)


class Lag:
    """Makes ranks wait now and then."""

    def __init__(self, seed: int, rank: int):
        self._rng = np.random.default_rng([seed, rank])

    def __call__(self) -> None:
        if self._rng.random() < 0.1:
            time.sleep(self._rng.random() * 2e-3)


def run(
    cluster: MPICluster,
    exchange: str,
    case: Case,
    lag: Lag,
    iterations: Sequence[int],
    wanted: ExchangeSettings,
) -> Iterator[list[np.ndarray]]:
    """Yield the mean gradients of every iteration; its number chooses its gradients.

    Raises ClusterError when the exchange cannot combine anything here.
    """
    engine = ExchangeEngine(cluster, exchange, wanted)
    emulated = exchange in ON_DEVICE and cluster.size < MANY
    with device.use(emulated_gpu(cluster.rank) if emulated else device.HOST):
        parameters = case.parameters()
    engine.start(parameters)
    for iteration in iterations:
        for parameter, gradient in zip(parameters, case.gradients(cluster.rank, iteration)):
            parameter.blob.diff[...] = gradient
        weights = parameters[len(case.shapes) :]
        for parameter, factors in zip(weights, case.factors(cluster.rank, iteration)):
            parameter.run_backward(*factors, engine.factored)
        order = parameters[::-1]
        if case.shuffled:
            np.random.default_rng(cluster.rank).shuffle(order)
        for parameter in order:
            lag()
            engine.gradient_ready(parameter)
        for parameter in parameters:
            engine.wait(parameter)
        yield [parameter.blob.diff.copy() for parameter in parameters]
        for parameter in parameters:  # again, as the solver does after the user's callbacks
            engine.wait(parameter)
        if engine.can_revise:
            # The times that auto now knows, and larger buckets, make another plan.
            engine.revise(parameters, Times((0.0,), (0.01,), 0.0))
    engine.finish()
    assert not engine.factored


def means(
    cluster: MPICluster, lag: Lag, exchange: str, names: Sequence[str]
) -> dict[str, np.ndarray]:
    return {
        f"{exchange}/{name}/{iteration}/{number}": mean
        for name, case in cases(cluster.size).items()
        if not names or name in names
        for iteration, found in enumerate(
            run(cluster, exchange, case, lag, range(ITERATIONS), settings())
        )
        for number, mean in enumerate(found)
    }


def rounded_means(cluster: MPICluster, lag: Lag, exchange: str) -> dict[str, np.ndarray]:
    """Exchange the same gradients again and again."""
    found = {}
    iterations = [0] * WIRE_ITERATIONS
    for wire in WIRES:
        rounds = list(run(cluster, exchange, WIRE_CASE, lag, iterations, settings(wire)))
        for number, of_one in enumerate(zip(*rounds)):
            found[f"{exchange}:{wire.value}/first/{number}"] = of_one[0]
            found[f"{exchange}:{wire.value}/sum/{number}"] = np.sum(of_one, 0, np.float64)
    return found


def main(folder: str, seed: int, *names: str) -> None:
    ranks = environment.find().size
    with detect(ClusterSettings(hosts=HOSTS[ranks])) as cluster:
        assert isinstance(cluster, MPICluster)
        lag = Lag(seed, cluster.rank)
        found: dict[str, np.ndarray] = {}
        refused = []
        for exchange in EXCHANGES:
            try:
                found |= means(cluster, lag, exchange, names)
                if exchange in COMPRESSING and not names and cluster.size < MANY:
                    found |= rounded_means(cluster, lag, exchange)
            except ClusterError as error:
                if "can combine no parameter" not in str(error):
                    raise
                refused.append(exchange)
        np.savez(os.path.join(folder, f"{cluster.rank}.npz"), refused=refused, **found)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
