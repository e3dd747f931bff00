"""Usage: failing.py HOW: rank 1 (or all) fails in some way while the others wait for it."""

from __future__ import annotations

import os
import signal
import sys
import time

from fake_parameters import parameters

from pycaffe_dist.comm.cluster import Cluster, detect
from pycaffe_dist.config import ClusterSettings
from pycaffe_dist.errors import NumericError
from pycaffe_dist.training.engine import make_engine

# Longer than a rank waits before it asks for the others, and than their answers take.
LATE_SECONDS = 2.5


def fail(how: str) -> None:
    if how == "bug":
        raise ValueError("a mistake in a layer")
    if how in ("error", "everybody", "outside"):
        raise NumericError("the loss is nan")
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "exit":
        os._exit(9)
    if how == "exit-0":
        os._exit(0)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


def run(cluster: Cluster, how: str) -> None:
    exchanges = {"error": "naive", "kill": "one_sided", "exit": "hierarchical"}
    exchange = exchanges.get(how, "allreduce") if cluster.size > 1 else "allreduce"
    engine = make_engine(cluster, exchange)
    weights, bias = nets = parameters([(1000, 100), (100,)])
    engine.start(nets)
    for iteration in range(3):
        engine.gradient_ready(bias)
        if iteration == 1 and (cluster.rank == 1 or how == "everybody" or cluster.size == 1):
            if how == "late":
                time.sleep(LATE_SECONDS)
            fail(how)
        engine.gradient_ready(weights)
        engine.wait(weights)
        engine.wait(bias)
    engine.finish()
    print("finished", flush=True)


def main(how: str) -> None:
    settings = ClusterSettings(stall_seconds=0.5 if how == "late" else 120)
    if how == "outside":
        run(detect(settings), how)
        return
    with detect(settings) as cluster:
        run(cluster, how)


main(sys.argv[1])
