"""Measures what following a run costs: metrics of layers, TensorBoard's files and a timeline.

``python benchmarks/metrics.py [NET] [--ranks N] [--display N] [--block N] [--seconds N]`` trains a
net of cpu_nets.py on random numbers.  Every other iteration keeps its spans of time, and every
other display all records.  Shown are medians of the differences of neighbours, with the quartiles
of what parts of the run have found.  The first iteration of each ``--block`` is displayed; what
that adds to the first half of the block counts, for these find other data in the caches.
``--display`` says how many iterations share a display.  Looks at weights and maps, whose share is
limited, count apart.
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from cpu_nets import NETS
from ranks import ENVIRONMENT

from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.solvers import Solver
from pycaffe_dist.solvers.layer_metrics import LayerMetrics
from pycaffe_dist.training.metrics_file import MetricsFile
from pycaffe_dist.training.tensorboard import TensorBoard
from pycaffe_dist.training.timeline import Timeline
from pycaffe_dist.training.trainer import launched_cluster, make_solver

MODELS = Path(__file__).parent.parent / "models"
PARTS = 16  # of a run


def solver_of(name: str, display: int) -> Solver:
    """Return a solver of a net of cpu_nets.py, whose inputs are random numbers."""
    param = caffe_pb2.SolverParameter(
        base_lr=1e-4, momentum=0.9, lr_policy="fixed", display=display, random_seed=1
    )
    param.max_iter = 10**6
    param.net_param.CopyFrom(NETS[name].read(MODELS))
    solver = make_solver(param, launched_cluster(), exchange="allreduce", stop_at_nan=False)
    rng = np.random.default_rng(solver.cluster.rank)
    images, labels = solver.net.nodes[0].top
    images.data[...] = rng.random(images.shape)
    labels.data[...] = rng.integers(NETS[name].classes, size=labels.shape)
    return solver


class Followers:
    """All that can follow a solver, on in some iterations; ``seconds`` are those of iterations."""

    def __init__(self, solver: Solver, block: int, folder: str):
        self._block, self._layers = block, LayerMetrics()
        TensorBoard(f"{folder}/board", solver)
        calls = solver.callbacks
        if solver.cluster.rank == 0:
            calls.on_record.append(MetricsFile(f"{folder}/run.jsonl"))
        self._on_record, self._looks = [*calls.on_record], [*calls.at_display]
        calls.at_display[:] = [self._look]
        solver.profile(Timeline(f"{folder}/timeline.json", solver.cluster, []))
        calls.end_of_iteration.append(self._end)
        self._record = solver.profiler.record
        self.seconds: list[float] = []
        self.look_seconds = 0.0
        self._began = 0.0

    def _look(self, solver: Solver) -> None:
        began = time.perf_counter()
        for look in self._looks:
            look(solver)
        passed = time.perf_counter() - began
        self.look_seconds += passed
        self._began += passed

    def _end(self, solver: Solver) -> None:
        self.seconds.append(time.perf_counter() - self._began)
        block, place = divmod(solver.iteration, self._block)
        shown = (block + block // 2) % 2 == 0
        record = self._record if (shown if place == 0 else (place + block // 2) % 2) else None
        solver.profiler.record = solver.net.record = record
        solver.engine.profile(record)
        solver.callbacks.on_record[:] = self._on_record if shown else []
        solver.recorder.layers = self._layers if shown else None
        self._began = time.perf_counter()


def measure(name: str, display: int, block: int, seconds: float, folder: str) -> None:
    """Train on this rank; rank 0 prints the result."""
    logging.disable(logging.INFO)
    solver = solver_of(name, block)
    followers = Followers(solver, block, folder)
    in_round = 4 * block  # all orders of on and off occur
    solver.step(in_round)
    followers.seconds.clear()
    until = time.perf_counter() + seconds
    while solver.cluster.max(time.perf_counter() < until):
        solver.step(in_round)
    solver.close()
    if solver.cluster.rank:
        return
    found = np.array(followers.seconds).reshape(-1, 2, 2, block)
    parts = [found[part] for part in np.array_split(np.arange(len(found)), PARTS) if part.size]
    spans, displays = zip(*(added(part) for part in parts))
    span, shown = added(found)
    whole = float(np.median(found))
    print(
        f"{name}, {solver.cluster.size} rank(s), {found.size} iterations of {1e3 * whole:.2f} ms: "
        f"spans add {span / whole:+.2%} ({quartiles(spans, 1 / whole, '+.2%')}), a display "
        f"{1e3 * shown:.2f} ms ({quartiles(displays, 1e3, '.2f')}); together "
        f"{(span + shown / display) / whole:+.2%}; {followers.look_seconds:.3f} s of looks"
    )


def added(blocks: np.ndarray) -> tuple[float, float]:
    """Return the seconds that spans add to an iteration, and all to a display.

    ``blocks`` (rounds, 2 orders of spans, 2 orders of displays, block) are iterations' seconds.
    """
    pairs = blocks[..., 1:-1].reshape(*blocks.shape[:3], -1, 2)
    spans = (pairs[..., 0] - pairs[..., 1]) * np.array([1, -1])[:, None, None]
    first = blocks[..., : blocks.shape[3] // 2].sum(axis=-1)
    displays = (first[..., 0] - first[..., 1]) * np.array([1, -1])
    return float(np.median(spans)), float(np.median(displays))


def quartiles(values: Sequence[float], factor: float, style: str) -> str:
    """Return the quartiles of what the run's parts have found."""
    low, high = factor * np.percentile(values, [25, 75])
    return f"quartiles {low:{style}}, {high:{style}}"


def main() -> None:
    """Measure, on several ranks if that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("net", nargs="?", choices=list(NETS), default="LeNet")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--display", type=int, default=100)
    parser.add_argument("--block", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=45)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder:
        measure(options.net, options.display, options.block, options.seconds, options.folder)
        return
    with tempfile.TemporaryDirectory() as folder:
        line = ["mpirun", "--oversubscribe", "-n", str(options.ranks)] if options.ranks > 1 else []
        line += [sys.executable, __file__, *sys.argv[1:], f"--folder={folder}"]
        sys.exit(subprocess.run(line, env=ENVIRONMENT).returncode)


if __name__ == "__main__":
    main()
