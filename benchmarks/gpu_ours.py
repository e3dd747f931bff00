"""pcaffe's side of gpu.py: trains one net of the benchmark, in its own process.

Writes the net's layers as one line of JSON, then reads numbers of iterations and answers each with
one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from cpu_nets import describe
from cpu_ours import make_solver
from gpu import GPU_NETS

from pycaffe_dist.gpu.finding import open_gpu


def main() -> None:
    """Serve the commands for the net and the model folder of the command line."""
    name, models = sys.argv[1:]
    gpu = open_gpu(0)
    solver = make_solver(GPU_NETS[name], Path(models), gpu)
    print(json.dumps(describe(solver.net, GPU_NETS[name].classes)), flush=True)
    for line in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        solver.step(int(line))
        gpu.synchronize()
        times = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        print(json.dumps({**times, "memory": gpu.memory().held}), flush=True)


if __name__ == "__main__":
    main()
