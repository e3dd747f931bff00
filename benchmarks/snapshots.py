"""Times how long a snapshot delays training, compared with a buffered copy of the weights' file.

``python benchmarks/snapshots.py [MB]`` makes a net with that much in weights (240) and as much in
momentum, and writes snapshots of it into a temporary folder.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pycaffe_dist.schema import caffe_pb2, text
from pycaffe_dist.solvers import Solver

REPETITIONS = 5
ROWS = 4096


def make_solver(folder: str, megabytes: float) -> Solver:
    """Return a solver with momentum of one large layer, whose snapshots go to ``folder``."""
    columns = round(megabytes * 1e6 / 4 / ROWS)
    net = f"""
    layer {{ name: 'x' type: 'DummyData' top: 'x' top: 'y'
      dummy_data_param {{ shape {{ dim: 1 dim: {columns} }} shape {{ dim: 1 dim: {ROWS} }} }} }}
    layer {{ name: 'ip' type: 'InnerProduct' bottom: 'x' top: 'ip'
      inner_product_param {{ num_output: {ROWS} bias_term: false
      weight_filler {{ type: 'constant' value: 0.5 }} }} }}
    layer {{ name: 'loss' type: 'EuclideanLoss' bottom: 'ip' bottom: 'y' top: 'loss' }}"""
    solver = (
        f"net_param {{ {net} }} base_lr: 0.01 lr_policy: 'fixed' momentum: 0.9 max_iter: 10 "
        f"snapshot_prefix: '{folder}/large' solver_mode: CPU"
    )
    return Solver(text.parse(solver, caffe_pb2.SolverParameter()))


def buffered_copy(source: Path, target: Path) -> None:
    """Copy a file through a buffer of 1 MB, without the kernel's copy functions."""
    with open(source, "rb") as reader, open(target, "wb") as writer:
        while data := reader.read(1 << 20):
            writer.write(data)


def seconds(function: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def main(megabytes: float) -> None:
    """Print the times of each repetition."""
    with tempfile.TemporaryDirectory() as folder:
        solver = make_solver(folder, megabytes)
        weights = Path(solver.snapshot())
        print(f"{weights.stat().st_size / 1e6:.0f} MB of weights, as much of history; ms:")
        for number in range(1, REPETITIONS + 1):
            solver.state.iteration = number
            blocked = seconds(lambda: solver.snapshot(wait=False))
            written = seconds(solver.close)
            copied = seconds(lambda: buffered_copy(weights, Path(folder, "copy")))
            print(
                f"  training waits {blocked * 1e3:4.0f}, the thread writes for "
                f"{written * 1e3:5.0f}, a buffered copy takes {copied * 1e3:4.0f}"
            )


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 240)
