"""pcaffe's side of cpu.py: trains one net of the benchmark, in its own process.

Writes the net's layers as one line of JSON, then reads numbers of iterations and answers each with
one line of JSON; "layers" and a number asks for the times of each layer.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from cpu_nets import NETS, BenchmarkNet, describe
from peak_memory import peak_memory

from pycaffe_dist import device
from pycaffe_dist.kernels.jit import workspace
from pycaffe_dist.layers import layer_types
from pycaffe_dist.net import Net
from pycaffe_dist.net.build import Node
from pycaffe_dist.profiling import Kind
from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.solvers.solver import Solver
from pycaffe_dist.threads import set_threads


def make_solver(
    chosen: BenchmarkNet,
    models: Path,
    on: device.Device = device.HOST,
    cuda_graph: bool = True,
) -> Solver:
    """Return a solver of a net on random data: SGD with momentum and weight decay."""
    param = caffe_pb2.SolverParameter(
        base_lr=0.001, lr_policy="fixed", momentum=0.9, weight_decay=0.0005, random_seed=1
    )
    param.net_param.CopyFrom(chosen.read(models))
    solver = Solver(param, device=on, cuda_graph=cuda_graph)
    rng = np.random.default_rng(0)
    for name in solver.net.inputs:
        blob = solver.net.blobs[name]
        values = rng.integers(0, chosen.classes, blob.shape)
        blob.data[...] = values if blob.ndim == 1 else rng.standard_normal(blob.shape)
    return solver


def work_of(node: Node) -> tuple[float, float]:
    """Return the floating-point operations of a layer's forward and of its backward pass."""
    layer = node.layer
    if layer.type not in ("Convolution", "InnerProduct"):
        return 0.0, 0.0
    outputs = layer.blobs[0].shape[0]
    flops = 2.0 * node.top[0].count / outputs * layer.blobs[0].count
    return flops, flops * (1 + node.propagate_down[0])


def traffic_of(node: Node) -> float:
    """Return the bytes of a layer's bottoms, tops and parameters, each counted once."""
    blobs = [*node.bottom, *node.top, *node.layer.blobs]
    return float(sum(blob.count * blob.dtype.itemsize for blob in blobs))


def layer_times(
    net: Net, run: Callable[[], Any], rounds: int, update: Callable[[], Any] | None = None
) -> list[dict[str, Any]]:
    """Return, for each layer and pass of ``run``, the median seconds, operations and bytes.

    A layer that runs as one with the layer before it has no forward time.  The last rows are the
    update, if there is one, and what ``run`` takes in addition: Python between the layers.
    """
    spans: dict[tuple[str, str], list[float]] = defaultdict(list)
    lasted: dict[tuple[str, str], float] = {}  # in one iteration
    updates, others = [], []
    net.record = lambda span: lasted.update({span[:2]: span[3] - span[2]})
    for _ in range(rounds):
        lasted.clear()
        began = time.perf_counter()
        run()
        ended = time.perf_counter()
        others.append(ended - began - sum(lasted.values()))
        if update is not None:
            update()
            updates.append(time.perf_counter() - ended)
        for key, value in lasted.items():
            spans[key].append(value)
    net.record = None
    rows = []
    for node in net.nodes:
        directions = Kind.FORWARD, Kind.BACKWARD
        for kind, flops in zip(directions[: 1 + node.need_backward], work_of(node)):
            seconds = spans[kind, node.name]
            if seconds and node.layer.type != "Input":
                rows.append(
                    _row(node.name, node.layer.type, kind, seconds, flops, traffic_of(node))
                )
    weights = float(sum(parameter.gradient.nbytes for parameter in net.parameters))
    if updates:
        rows.append(_row("update", "Update", "", updates, 0.0, 6 * weights))
    rows.append(_row("between layers", "Python", "", others, 0.0, weights))
    return rows


def _row(
    layer: str, kind: str, direction: str, seconds: list[float], flops: float, traffic: float
) -> dict[str, Any]:
    return {
        "layer": layer,
        "type": kind,
        "pass": direction,
        "seconds": median(seconds),
        "flops": flops,
        "bytes": traffic,
    }


def scratch_bytes(net: Net) -> int:
    """Return the memory of the layers' plans, in addition to blobs, and their shared memory."""
    plans = (getattr(layer, "_plan", None) for layer in net.layers)
    own = sum(plan.scratch_bytes for plan in plans if plan is not None)
    return own + workspace.shared.kept_bytes


def main() -> None:
    """Serve the commands for the net, model folder and threads of the command line."""
    name, models, threads = sys.argv[1:]
    set_threads(int(threads))
    layer_types()  # loads the layers and their compiler, which do not belong to the net
    before = peak_memory()
    solver = make_solver(NETS[name], Path(models))
    print(json.dumps(describe(solver.net, NETS[name].classes)), flush=True)
    for line in sys.stdin:
        if line.startswith("layers"):
            rounds, net = int(line.split()[1]), solver.net

            def run(net: Net = net) -> None:
                net.forward()
                net.backward(accumulate=False)

            times = layer_times(net, run, rounds, solver.apply_update)
            print(json.dumps(times), flush=True)
            continue
        wall, cpu = time.perf_counter(), time.process_time()
        solver.step(int(line))
        spent = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        memory = {"memory": peak_memory() - before, "scratch": scratch_bytes(solver.net)}
        print(json.dumps({**spent, **memory}), flush=True)


if __name__ == "__main__":
    main()
