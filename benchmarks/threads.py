"""Times training iterations of Caffe's classic nets by the number of threads of one process.

Each net runs forward, backward and update on random data, with 1 thread, with half, all and twice
the cores.  The processes take turns; prints the median of the rounds' ratios of one thread's time.

    python benchmarks/threads.py --net LeNet --net ResNet-50
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from statistics import median

from cpu import HERE, ROUND_SECONDS, Worker
from cpu_nets import NETS


def measure(name: str, args: argparse.Namespace) -> list[float]:
    """Return the time with one thread over the time with each number of threads."""
    program = [sys.executable, str(HERE / "cpu_ours.py"), name, str(args.models)]
    workers = [Worker([*program, str(threads)]) for threads in args.threads]
    for worker in workers:
        worker.read()  # the layers
        worker.run("5")  # compiles, and allocates
    count = str(max(1, round(ROUND_SECONDS / workers[-1].run("1")["wall"])))
    rounds = [[worker.run(count)["wall"] for worker in workers] for _ in range(args.rounds)]
    for worker in workers:
        worker.close()
    return [median(walls[0] / walls[at] for walls in rounds) for at in range(len(workers))]


def main() -> None:
    """Measure and print according to the command line."""
    cores = os.cpu_count() or 1
    counts = sorted({1, max(1, cores // 2), cores, 2 * cores})
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--net", choices=NETS, action="append", help="only this one")
    parser.add_argument("--threads", type=int, nargs="+", default=counts, help="1 comes first")
    parser.add_argument("--models", type=Path, default=HERE.parent / "models")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    print(f"{'threads':18}" + "".join(f"{threads:7}" for threads in args.threads))
    for name in args.net or NETS:
        ratios = "".join(f"{ratio:7.2f}" for ratio in measure(name, args))
        print(f"{name:18}{ratios}", flush=True)


if __name__ == "__main__":
    main()
