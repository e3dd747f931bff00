"""Usage: exchanging.py FOLDER SEED: every exchange on every case; rank r writes FOLDER/r.npz.

The seed makes the ranks lag behind each other in another way.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from exchange_cases import BUCKET_BYTES, CASES, EXCHANGES, ITERATIONS, SLICE_BYTES, Case

from pycaffe_dist.config import ExchangeSettings
from pycaffe_dist.runtime.cluster import detect
from pycaffe_dist.runtime.engine import ExchangeEngine
from pycaffe_dist.runtime.mpi import MPICluster

SETTINGS = ExchangeSettings(bucket_bytes=BUCKET_BYTES, slice_bytes=SLICE_BYTES)


def run(cluster: MPICluster, exchange: str, case: Case, lag: np.random.Generator) -> dict:
    engine = ExchangeEngine(cluster, exchange, SETTINGS)
    parameters = case.parameters()
    engine.start(parameters)
    means = {}
    for iteration in range(ITERATIONS):
        for parameter, gradient in zip(parameters, case.gradients(cluster.rank, iteration)):
            parameter.blob.diff[...] = gradient
        weights = parameters[len(case.shapes) :]
        for parameter, factors in zip(weights, case.factors(cluster.rank, iteration)):
            parameter.run_backward(*factors)
        order = parameters[::-1]
        if case.shuffled:
            np.random.default_rng(cluster.rank).shuffle(order)
        for parameter in order:
            if lag.random() < 0.1:
                time.sleep(lag.random() * 2e-3)
            engine.gradient_ready(parameter)
        for parameter in parameters:
            engine.wait(parameter)
        for number, parameter in enumerate(parameters):
            means[f"{iteration}/{number}"] = parameter.blob.diff.copy()
        for parameter in parameters:  # once more, as the solver does after the user's callbacks
            engine.wait(parameter)
    engine.finish()
    assert not any(parameter.as_factors for parameter in parameters)
    return means


def main(folder: str, seed: int) -> None:
    with detect() as cluster:
        assert isinstance(cluster, MPICluster)
        lag = np.random.default_rng([seed, cluster.rank])
        found = {
            f"{exchange}/{name}/{key}": mean
            for exchange in EXCHANGES
            for name, case in CASES.items()
            for key, mean in run(cluster, exchange, case, lag).items()
        }
        np.savez(f"{folder}/{cluster.rank}.npz", **found)


main(sys.argv[1], int(sys.argv[2]))
