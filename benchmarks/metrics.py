"""Measures what following a run costs: metrics of layers, TensorBoard's files and a timeline.

``python benchmarks/metrics.py [NET] [--ranks N] [--display N] [--displays N]`` trains a net of
cpu_nets.py on random numbers.  First, short blocks of iterations without a display take turns, with
everything on and with everything off; the median of the ratios of neighbours is the cost in an
iteration.  Then come ``--displays`` blocks of ``--display`` iterations with everything on; shown is
the time of the training thread for records.  The sum of both is the share of the whole.
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

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
WARM_UP = 30  # iterations
BLOCK = 8  # iterations of one kind, before those of the other
PAIRS_SECONDS, MOST_PAIRS = 45, 400


def solver_of(name: str, display: int) -> Solver:
    """Return a solver of a net of cpu_nets.py, whose inputs are random numbers."""
    param = caffe_pb2.SolverParameter(
        base_lr=1e-4, momentum=0.9, lr_policy="fixed", display=display, random_seed=1
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
        self._on_record, self._at_display = [*calls.on_record], [*calls.at_display]
        self.seconds = 0.0  # of the training thread, for records
        for name in ("show", "send_shown"):
            setattr(solver.recorder, name, self._timed(getattr(solver.recorder, name)))
        self.switch(True)

    def _timed(self, function: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            began = time.perf_counter()
            function(*arguments)
            self.seconds += time.perf_counter() - began

        return call

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


def measure(name: str, display: int, displays: int, folder: str) -> None:
    """Train on this rank; rank 0 prints the result."""
    logging.disable(logging.INFO)
    solver = solver_of(name, display)
    followers = Followers(solver, folder)
    solver.step(-(-WARM_UP // display) * display)
    off, shares = in_iterations(solver, followers, display)
    solver.step(-solver.iteration % display)
    followers.switch(True)
    followers.seconds = 0.0
    solver.step(displays * display)
    shown = followers.seconds / displays
    solver.close()
    if solver.cluster.rank:
        return
    share = median(shares)
    low, _, high = quantiles(shares, n=4)
    print(
        f"{name}, {solver.cluster.size} rank(s): {1e3 * off:.2f} ms an iteration, with everything "
        f"on {share:+.2%} (quartiles {low:+.2%}, {high:+.2%}); {1e3 * shown:.2f} ms a display; "
        f"together {share + shown / display / off:+.2%}"
    )


def in_iterations(solver: Solver, followers: Followers, display: int) -> tuple[float, list[float]]:
    """Return seconds of an iteration with everything off, and what all adds, of each pair."""
    offs, shares = [], []
    until = time.perf_counter() + PAIRS_SECONDS
    while solver.cluster.max(time.perf_counter() < until) and len(shares) < MOST_PAIRS:
        seconds = {}
        for on in (True, False) if len(shares) % 2 else (False, True):
            if -solver.iteration % display < BLOCK:  # no display within a block
                solver.step(-solver.iteration % display + 1)
            followers.switch(on)
            solver.cluster.barrier()
            began = time.perf_counter()
            solver.step(BLOCK)
            seconds[on] = (time.perf_counter() - began) / BLOCK
        offs.append(seconds[False])
        shares.append(seconds[True] / seconds[False] - 1)
    return median(offs), shares


def main() -> None:
    """Measure, on several ranks if that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("net", nargs="?", choices=list(NETS), default="LeNet")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--display", type=int, default=100)
    parser.add_argument("--displays", type=int, default=5)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder:
        measure(options.net, options.display, options.displays, options.folder)
        return
    with tempfile.TemporaryDirectory() as folder:
        line = ["mpirun", "--oversubscribe", "-n", str(options.ranks)] if options.ranks > 1 else []
        line += [sys.executable, __file__, *sys.argv[1:], f"--folder={folder}"]
        sys.exit(subprocess.run(line, env=ENVIRONMENT).returncode)


if __name__ == "__main__":
    main()
