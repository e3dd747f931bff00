"""Measures what following a run costs: metrics of layers, TensorBoard's files and a timeline.

``python benchmarks/metrics.py [NET] [--ranks N] [--display N] [--blocks N]`` trains a net of
cpu_nets.py on random numbers, in blocks of ``--display`` iterations with everything on and with
everything off, which take turns.  Shown are the medians of both: wall time, and processor time of
all threads of rank 0; then what the training thread spends on records and spans, which other work
on the machine hardly changes.
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
from statistics import median
from typing import Any

import numpy as np
from cpu_nets import NETS
from ranks import ENVIRONMENT

from pycaffe_dist.profiling import Kind
from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.solvers import Solver
from pycaffe_dist.solvers.layer_metrics import LayerMetrics
from pycaffe_dist.training.metrics_file import MetricsFile
from pycaffe_dist.training.tensorboard import TensorBoard
from pycaffe_dist.training.timeline import Timeline
from pycaffe_dist.training.trainer import launched_cluster, make_solver

MODELS = Path(__file__).parent.parent / "models"
WARM_UP = 30  # iterations
REPEATED = 10_000  # spans


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
            began = time.thread_time()
            function(*arguments)
            self.seconds += time.thread_time() - began

        return call

    def span_seconds(self) -> float:
        """Return what the spans of an iteration cost."""
        solver, spans = self._solver, []
        note = lambda *span: spans.append(span)  # noqa: E731
        solver.profile(note)
        solver.step(1)
        solver.profile(note, False)
        self.switch(True)
        record = solver.profiler.record
        assert record is not None
        began = time.thread_time()
        for _ in range(REPEATED):
            record(Kind.FORWARD, "layer", time.perf_counter(), time.perf_counter())
        return len(spans) * (time.thread_time() - began) / REPEATED

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


def measure(name: str, display: int, blocks: int, folder: str) -> None:
    """Train on this rank; rank 0 prints the result."""
    logging.disable(logging.INFO)
    solver = solver_of(name, display)
    solver.step(-(-WARM_UP // display) * display)
    followers = Followers(solver, folder)
    solver.step(display)
    found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    on, records, followers.seconds = True, 0, 0.0
    for block in range(2 * blocks):
        if block % 2:  # on, off, off, on, on, …
            on = not on
            followers.switch(on)
        records += on
        solver.cluster.barrier()
        began = time.perf_counter(), time.process_time()
        solver.step(display)
        ended = time.perf_counter(), time.process_time()
        found[on].append((ended[0] - began[0], ended[1] - began[1]))
    for_record, for_spans = followers.seconds / records, followers.span_seconds()
    solver.close()
    if solver.cluster.rank:
        return
    for number, what in enumerate(("wall time", "processor time")):
        off, with_all = (1e3 * median(b[number] for b in found[w]) / display for w in (False, True))
        print(
            f"{name}, {solver.cluster.size} rank(s), {what}: {off:.2f} ms an iteration, "
            f"{with_all:.2f} ms with everything on ({with_all / off - 1:+.2%})"
        )
    off = median(wall for wall, _ in found[False]) / display
    print(
        f"training thread: {1e3 * for_record:.2f} ms a display ({for_record / display / off:.2%}), "
        f"{1e6 * for_spans:.0f} us of spans an iteration ({for_spans / off:.2%})"
    )


def main() -> None:
    """Measure, on several ranks if that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("net", nargs="?", choices=list(NETS), default="LeNet")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--display", type=int, default=100)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder:
        measure(options.net, options.display, options.blocks, options.folder)
        return
    with tempfile.TemporaryDirectory() as folder:
        line = ["mpirun", "--oversubscribe", "-n", str(options.ranks)] if options.ranks > 1 else []
        line += [sys.executable, __file__, *sys.argv[1:], f"--folder={folder}"]
        sys.exit(subprocess.run(line, env=ENVIRONMENT).returncode)


if __name__ == "__main__":
    main()
