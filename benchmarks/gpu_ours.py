"""pcaffe's side of gpu.py: trains one net of the benchmark, in its own process.

Writes the net's layers as one line of JSON, then reads numbers of iterations and answers each with
one line of JSON.  "fallbacks" asks for the calls that cuDNN refused, "layers" and a number of
iterations for the times of each layer, too.  Standard error has what the log says on CUDA graphs.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from cpu_nets import describe
from cpu_ours import make_solver
from gpu import GPU_NETS

from pycaffe_dist.cli.time import measure
from pycaffe_dist.gpu.base import GPU
from pycaffe_dist.gpu.finding import open_gpu
from pycaffe_dist.log import DETAIL, logger
from pycaffe_dist.net import Net


def details(net: Net, words: list[str], gpu: GPU) -> dict[str, Any]:
    """Answer "fallbacks" and "layers N"; times are in milliseconds."""
    found: dict[str, Any] = {"fallbacks": dict(gpu.fallbacks)}
    if words[0] == "layers":
        found["layers"] = [asdict(layer) for layer in measure(net, int(words[1])).layers]
    return found


def show_graphs() -> None:
    """Let the log's lines on CUDA graphs, and its warnings, go to standard error."""
    lines = logging.StreamHandler()
    lines.addFilter(lambda each: each.levelno > logging.INFO or "CUDA graph" in each.getMessage())
    logger.addHandler(lines)
    logger.setLevel(DETAIL)


def main() -> None:
    """Serve the commands for the net and the model folder of the command line."""
    name, models, batch = sys.argv[1:]
    show_graphs()
    gpu = open_gpu(0)
    solver = make_solver(replace(GPU_NETS[name], batch=int(batch)), Path(models), gpu)
    print(json.dumps(describe(solver.net, GPU_NETS[name].classes)), flush=True)
    for line in sys.stdin:
        if not line.strip().isdecimal():
            print(json.dumps(details(solver.net, line.split(), gpu)), flush=True)
            continue
        wall, cpu = time.perf_counter(), time.process_time()
        solver.step(int(line))
        gpu.synchronize()
        times = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        print(json.dumps({**times, "memory": gpu.memory().held}), flush=True)


if __name__ == "__main__":
    main()
