"""Measures the time and the processor time of exchanges.

``mpirun -n 4 python benchmarks/exchanges.py [--mib=16] [--rounds=15]``: gradients of one large
parameter and of 40 small ones, without other work.  Exchanges take turns, so that other load on the
machine affects all of them; ``hosts=a,a,b,b`` sets the hosts of ranks instead of their names.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from pycaffe_dist.comm.cluster import Cluster, detect
from pycaffe_dist.config import ClusterSettings, ExchangeSettings, Wire
from pycaffe_dist.training.engine import ExchangeEngine

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "parallel"))
from fake_parameters import parameters

KINDS = [
    ("allreduce", Wire.FLOAT32),
    ("hierarchical", Wire.FLOAT32),
    ("one_sided", Wire.FLOAT32),
    ("naive", Wire.FLOAT32),
    ("allreduce", Wire.BFLOAT16),
    ("allreduce", Wire.FLOAT16),
    ("hierarchical", Wire.BFLOAT16),
    ("one_sided", Wire.BFLOAT16),
]
SMALL = [(64,)] * 20 + [(3000,)] * 20


class Runner:
    """Repeats an exchange of the same parameters."""

    def __init__(self, cluster: Cluster, exchange: str, wire: Wire, large: int):
        self.engine = ExchangeEngine(cluster, exchange, ExchangeSettings(wire=wire))
        self.parameters = parameters([*SMALL, (large,)])
        self.engine.start(self.parameters)

    def __call__(self) -> tuple[float, float]:
        """Exchange once; return the seconds, and this process's seconds of processor time."""
        for parameter in self.parameters:
            parameter.blob.diff[...] = 1
        began, computed = time.perf_counter(), time.process_time()
        for parameter in reversed(self.parameters):
            self.engine.gradient_ready(parameter)
        for parameter in self.parameters:
            self.engine.wait(parameter)
        return time.perf_counter() - began, time.process_time() - computed


def measure(cluster: Cluster, count: int, large: int) -> None:
    # One at a time owns the order of exchanges, so each is started anew for its turn.
    rows: dict[tuple[str, Wire], list[np.ndarray]] = {kind: [] for kind in KINDS}
    for _ in range(count):
        for kind in KINDS:
            runner = Runner(cluster, *kind, large)
            runner()
            cluster.barrier()
            rows[kind].append(cluster.max(np.array([runner(), runner()])).min(axis=0))
            runner.engine.finish()
    if cluster.rank:
        return
    print(f"{cluster.size} ranks on {len(set(cluster.hosts))} host(s), {large * 4 >> 20} MiB")
    print(
        f"{'exchange':28}  {'ms':>8}  {'least ms':>8}  {'CPU ms':>8}  to allreduce, round by round"
    )
    yardstick = [found[0] for found in rows[KINDS[0]]]
    for (exchange, wire), found in rows.items():
        times, processor = zip(*found)
        ratio = statistics.median(mine / theirs for mine, theirs in zip(times, yardstick))
        print(
            f"{exchange + ', ' + wire.value:28}  {1e3 * statistics.median(times):8.1f}  "
            f"{1e3 * min(times):8.1f}  {1e3 * statistics.median(processor):8.1f}  {ratio:.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mib", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--hosts", default="")
    arguments = parser.parse_args()
    hosts = tuple(filter(None, arguments.hosts.split(",")))
    with detect(ClusterSettings(hosts=hosts)) as cluster:
        measure(cluster, arguments.rounds, arguments.mib << 18)


main()
