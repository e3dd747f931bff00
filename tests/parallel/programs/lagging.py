"""Usage: lagging.py FOLDER SERVERS: one of three workers lags behind as far as S = 2 allows.

In its iteration 2, rank 1 waits until rank 0 has ended iteration 3, which synchronous training
would not allow, and begun iteration 4, which rank 0 must not end before rank 1 continues.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from fake_parameters import parameters

from pycaffe_dist.comm.cluster import detect
from pycaffe_dist.config import ClusterSettings, ExchangeSettings
from pycaffe_dist.exchange.server.serving import serve
from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.solvers.update.updater import Updater
from pycaffe_dist.training.engine import make_engine

STALENESS = 2
ITERATIONS = 8
HELD_SECONDS = 2.5


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} has not happened"
        time.sleep(0.01)


def main(folder: Path, servers: int) -> None:
    with detect(ClusterSettings(stall_seconds=1.0, server_ranks=servers)) as cluster:
        if cluster.serves:
            serve(cluster)
            return
        settings = ExchangeSettings(bucket_bytes=400, staleness=STALENESS)
        engine = make_engine(cluster, "parameter_server", settings)
        nets = parameters([(100,), (7,), (30, 40)])
        engine.start(nets, updater=Updater(caffe_pb2.SolverParameter(type="SGD"), nets))
        for iteration in range(ITERATIONS):
            if (cluster.rank, iteration) == (1, 2):
                wait_for(folder / "0 has ended 3")
                wait_for(folder / "0 has begun 4")
                time.sleep(HELD_SECONDS)
                assert not (folder / "0 has ended 4").exists(), "rank 0 is too far ahead"
            engine.begin(iteration, 1.0)
            for parameter in reversed(nets):
                parameter.blob.diff[...] = cluster.rank
                engine.gradient_ready(parameter)
            (folder / f"{cluster.rank} has begun {iteration}").touch()
            for parameter in nets:
                engine.wait(parameter)
            (folder / f"{cluster.rank} has ended {iteration}").touch()
        engine.synchronize()
        # The ranks' gradients are 0, 1 and 2; their mean is 1 in every iteration.
        for parameter in nets:
            np.testing.assert_allclose(parameter.blob.data, -ITERATIONS, rtol=1e-6)
        engine.finish()


main(Path(sys.argv[1]), int(sys.argv[2]))
