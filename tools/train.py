#!/usr/bin/env python3
"""Trains a net on one or several ranks from Python (pycaffe's train.py).

pycaffe starts a process for each of --gpus; here mpirun starts the ranks:
mpirun -n 4 tools/train.py --solver=solver.prototxt
"""

from __future__ import annotations

import argparse
import sys

import pycaffe_dist as caffe
from pycaffe_dist.errors import PcaffeError, UsageError


def show_times(solver) -> None:
    """Log the milliseconds of every layer and of the whole, at each display."""
    layers = range(len(solver.net.layers))
    forward = [caffe.Timer() for _ in layers]
    backward = [caffe.Timer() for _ in layers]
    total = caffe.Timer()
    net = solver.net

    def show() -> None:
        total.stop()
        if not solver.param.display or solver.iter % solver.param.display:
            return
        lines = [f"forw {i:3d} {net._layer_names[i]:>8} : {forward[i].ms:.2f}" for i in layers]
        lines += [
            f"back {i:3d} {net._layer_names[i]:>8} : {backward[i].ms:.2f}" for i in reversed(layers)
        ]
        caffe.log("\n".join(["", *lines, f"solver total: {total.ms:.2f}"]))

    net.before_forward(lambda layer: forward[layer].start())
    net.after_forward(lambda layer: forward[layer].stop())
    net.before_backward(lambda layer: backward[layer].start())
    net.after_backward(lambda layer: backward[layer].stop())
    solver.add_callback(total.start, show)


def solve(options: argparse.Namespace) -> None:
    """Train on this rank; raises PcaffeError."""
    caffe.init_log()
    ranks, rank = caffe.solver_count(), caffe.solver_rank()
    if len(options.gpus or [0]) not in (1, ranks):
        raise UsageError(
            f"--gpus names {len(options.gpus)} devices for {ranks} rank(s); "
            f"start it with mpirun -n {len(options.gpus)}"
        )
    if options.gpus:
        caffe.set_device(options.gpus[rank % len(options.gpus)])
        caffe.set_mode_gpu()
    solver = caffe.get_solver(options.solver)
    if options.snapshot:
        solver.restore(options.snapshot)
    nccl = caffe.NCCL(solver, caffe.NCCL.new_uid())
    nccl.bcast()
    solver.add_callback(nccl)
    if options.timing and rank == 0:
        show_times(solver)
    solver.step(solver.param.max_iter - solver.iter)


def main() -> int:
    """Train as the process's arguments say; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--solver", required=True, help="the solver's prototxt")
    parser.add_argument("--snapshot", help="the solver state to resume from")
    parser.add_argument("--gpus", type=int, nargs="+", help="the GPU of each rank")
    parser.add_argument("--timing", action="store_true", help="log the time of every layer")
    options = parser.parse_args()
    if caffe.solver_count() > 1:
        # An error must end the run on all ranks, so it is not caught.
        solve(options)
        return 0
    try:
        solve(options)
    except PcaffeError as error:
        print(f"train.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
