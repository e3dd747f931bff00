"""Measures what following a run costs: metrics of layers, TensorBoard's files and a timeline.

``python benchmarks/metrics.py [NET] [--ranks N] [--display N] [--seconds N]`` trains a net of
cpu_nets.py on random numbers.  Blocks of iterations with everything on and with everything off take
turns.  Shown is what all adds to the median iteration, and more to one that is displayed, with the
quartiles of what parts of the run have found.  ``--display`` says how many iterations share a
display.  Looks at weights and maps, whose share is limited, count apart.
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
BLOCK = 8  # iterations of one kind, before those of the other; the first one is displayed
WARM_UP = 4 * BLOCK
PARTS = 16  # of a run


def solver_of(name: str) -> Solver:
    """Return a solver of a net of cpu_nets.py, whose inputs are random numbers."""
    param = caffe_pb2.SolverParameter(
        base_lr=1e-4, momentum=0.9, lr_policy="fixed", display=BLOCK, max_iter=10**6, random_seed=1
    )
    param.net_param.CopyFrom(NETS[name].read(MODELS))
    solver = make_solver(param, launched_cluster(), exchange="allreduce", stop_at_nan=False)
    rng = np.random.default_rng(solver.cluster.rank)
    images, labels = solver.net.nodes[0].top
    images.data[...] = rng.random(images.shape)
    labels.data[...] = rng.integers(NETS[name].classes, size=labels.shape)
    return solver


class Followers:
    """All that can follow a solver, on or off."""

    def __init__(self, solver: Solver, folder: str):
        self._solver, self._layers, self._on = solver, LayerMetrics(), False
        self._timeline = Timeline(f"{folder}/timeline.json", solver.cluster, [])
        TensorBoard(f"{folder}/board", solver)
        calls = solver.callbacks
        if solver.cluster.rank == 0:
            calls.on_record.append(MetricsFile(f"{folder}/run.jsonl"))
        self._on_record, self._at_display = [*calls.on_record], [self._look]
        self._looks = [*calls.at_display]
        self.look_seconds: list[float] = []
        self.switch(True)

    def _look(self, solver: Solver) -> None:
        began = time.perf_counter()
        for look in self._looks:
            look(solver)
        self.look_seconds.append(time.perf_counter() - began)

    def switch(self, on: bool) -> None:
        """Turn all on or off."""
        if on == self._on:
            return
        self._on, solver = on, self._solver
        solver.callbacks.on_record[:] = self._on_record if on else []
        solver.callbacks.at_display[:] = self._at_display if on else []
        solver.recorder.layers = self._layers if on else None
        solver.profile(self._timeline, on)
        solver.step(0)


def measure(name: str, display: int, seconds: float, folder: str) -> None:
    """Train on this rank; rank 0 prints the result."""
    logging.disable(logging.INFO)
    solver = solver_of(name)
    followers = Followers(solver, folder)
    solver.step(WARM_UP)
    on, off = in_turns(solver, followers, seconds)
    looks = sum(followers.look_seconds)
    solver.close()
    if solver.cluster.rank:
        return
    parts = [part for part in np.array_split(np.arange(len(on)), PARTS) if part.size]
    shares, costs = zip(*(added(on[part], off[part]) for part in parts))
    share, cost = added(on, off)
    whole = float(np.median(off))
    print(
        f"{name}, {solver.cluster.size} rank(s), {len(on)} blocks: {1e3 * whole:.2f} ms an "
        f"iteration; all adds {share / whole:+.2%} ({spread(shares, 1 / whole, '+.2%')}), and "
        f"{1e3 * cost:.2f} ms to a display ({spread(costs, 1e3, '.2f')}); together "
        f"{(share + cost / display) / whole:+.2%}; {looks:.3f} s of looks"
    )


def added(on: np.ndarray, off: np.ndarray) -> tuple[float, float]:
    """Return the seconds that all adds to an iteration, and more of them to a displayed one."""
    plain = float(np.median(on[:, 1:]) - np.median(off[:, 1:]))
    return plain, float(np.median(on[:, 0]) - np.median(off[:, 0])) - plain


def spread(values: Sequence[float], factor: float, style: str) -> str:
    """Return the quartiles of what the run's parts have found."""
    low, high = factor * np.percentile(values, [25, 75])
    return f"quartiles {low:{style}}, {high:{style}}"


def in_turns(solver: Solver, followers: Followers, seconds: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the seconds of all iterations (blocks, BLOCK), with everything on and off."""
    found: dict[bool, list[np.ndarray]] = {True: [], False: []}
    ends: list[float] = []
    solver.callbacks.end_of_iteration.append(lambda _: ends.append(time.perf_counter()))
    until, first = time.perf_counter() + seconds, True
    while solver.cluster.max(time.perf_counter() < until):
        for on in (first, not first):
            followers.switch(on)
            looks = sum(followers.look_seconds)
            solver.cluster.barrier()
            ends[:] = [time.perf_counter()]
            solver.step(BLOCK)
            found[on].append(np.diff(ends))
            found[on][-1][0] -= sum(followers.look_seconds) - looks
        first = not first
    return np.array(found[True]), np.array(found[False])


def main() -> None:
    """Measure, on several ranks if that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("net", nargs="?", choices=list(NETS), default="LeNet")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--display", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=45)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder:
        measure(options.net, options.display, options.seconds, options.folder)
        return
    with tempfile.TemporaryDirectory() as folder:
        line = ["mpirun", "--oversubscribe", "-n", str(options.ranks)] if options.ranks > 1 else []
        line += [sys.executable, __file__, *sys.argv[1:], f"--folder={folder}"]
        sys.exit(subprocess.run(line, env=ENVIRONMENT).returncode)


if __name__ == "__main__":
    main()
