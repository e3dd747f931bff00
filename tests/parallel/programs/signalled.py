"""Usage: signalled.py: iterate until a signal; print in which iteration all ranks stopped."""

from __future__ import annotations

import signal
import time

from pycaffe_dist.comm.cluster import detect

caught: list[int] = []


def main() -> None:
    signal.signal(signal.SIGUSR1, lambda number, frame: caught.append(number))
    with detect() as cluster:
        print(f"rank {cluster.rank} is ready", flush=True)
        for iteration in range(3000):
            if cluster.agree_max(len(caught)):
                print(f"rank {cluster.rank} stopped in iteration {iteration}", flush=True)
                return
            time.sleep(0.01)
    raise SystemExit("no signal came")


main()
