"""Measures the gain of bounded staleness for ranks that are slow at times: clocks/s, and the loss.

``python benchmarks/staleness.py [FLAGS]`` trains a small net on several ranks of this machine, each
of which is late in some iterations, at random.  Synchronous ranks wait for every late rank; ranks
with a staleness of 3 wait only if a rank falls behind by more.  (A rank that is always slow sets
the pace of all in both cases.)  The learning rate falls to zero by the last clock.  Runs of both
kinds take turns, with another seed each time, so the range of the losses shows the effect of
chance.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from ranks import ENVIRONMENT

IMAGES, CLASSES, SIDE, NOISE = 2000, 10, 16, 180
WARM_UP = 20
AVERAGED = 50
RESULT = "staleness-result"
SOLVER = """
net_param {
  layer { name: "data" type: "HDF5Data" top: "data" top: "label"
    hdf5_data_param { source: "%s" batch_size: 8 shuffle: true } }
  layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
    convolution_param { num_output: 8 kernel_size: 5 weight_filler { type: "xavier" } } }
  layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
  layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool"
    pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
  layer { name: "ip1" type: "InnerProduct" bottom: "pool" top: "ip1"
    inner_product_param { num_output: 64 weight_filler { type: "xavier" } } }
  layer { name: "relu1" type: "ReLU" bottom: "ip1" top: "ip1" }
  layer { name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2"
    inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
  layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }
}
base_lr: 0.01 lr_policy: "poly" power: 1 max_iter: %d momentum: 0.9 weight_decay: 0.0005
average_loss: %d random_seed: %d solver_mode: CPU
"""


def make_data(folder: Path) -> Path:
    """Write noisy images of ten patterns, hard to tell apart; return the list of files."""
    import h5py

    rng = np.random.default_rng(0)
    labels = rng.integers(CLASSES, size=IMAGES)
    patterns = rng.integers(0, 100, (CLASSES, 1, SIDE, SIDE))
    images = (patterns[labels] + rng.normal(0, NOISE, (IMAGES, 1, SIDE, SIDE))) / 256
    with h5py.File(folder / "images.h5", "w") as file:
        file["data"], file["label"] = images.astype(np.float32), labels.astype(np.float32)
    listed = folder / "files.txt"
    listed.write_text(f"{folder / 'images.h5'}\n")
    return listed


def work(options: argparse.Namespace) -> None:
    """Train on this rank; rank 0 prints seconds and the mean loss of the last iterations."""
    from pycaffe_dist.comm.cluster import detect
    from pycaffe_dist.config import ExchangeSettings
    from pycaffe_dist.schema import caffe_pb2, text
    from pycaffe_dist.threads import set_threads
    from pycaffe_dist.training.trainer import make_solver

    with detect() as cluster:
        set_threads(1)
        last = WARM_UP + options.clocks
        solver_text = SOLVER % (options.files, last, AVERAGED, options.seed)
        param = text.parse(solver_text, caffe_pb2.SolverParameter())
        settings = ExchangeSettings(staleness=options.staleness)
        solver = make_solver(param, cluster, exchange="parameter_server", settings=settings)
        rng = np.random.default_rng(cluster.rank)

        def linger(_: Any) -> None:
            late = options.milliseconds if rng.random() < options.share else 0.0
            time.sleep((options.computing + late) / 1e3)

        solver.step(WARM_UP)
        solver.callbacks.before_gradients.append(linger)
        cluster.barrier()
        began = time.monotonic()
        solver.step(options.clocks)
        seconds = float(cluster.max(np.array(time.monotonic() - began)))
        loss = float(cluster.mean(np.array(solver.state.losses.mean)))
        if cluster.rank == 0:
            print(RESULT, seconds, loss, flush=True)
        solver.close()


def run(options: argparse.Namespace, files: Path, staleness: int, seed: int) -> tuple[float, float]:
    """Train on all ranks; return the seconds and the loss."""
    command = ["mpirun", "-n", str(options.ranks), sys.executable, __file__, "--work"]
    command += [f"--files={files}", f"--staleness={staleness}", f"--clocks={options.clocks}"]
    command += [f"--milliseconds={options.milliseconds}", f"--share={options.share}"]
    command += [f"--computing={options.computing}", f"--seed={seed}"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    found = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith(RESULT)]
    if done.returncode or not found:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    seconds, loss = found[0]
    return float(seconds), float(loss)


def main() -> None:
    """Print the medians of runs with and without staleness."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--clocks", type=int, default=300, help="iterations of every rank (300)")
    parser.add_argument("--milliseconds", type=float, default=100.0, help="of a delay (100)")
    parser.add_argument("--share", type=float, default=0.2, help="of iterations with one (0.2)")
    parser.add_argument(
        "--computing",
        type=float,
        default=40.0,
        help="milliseconds that stand for computing in every iteration, and leave the cores to "
        "the other ranks of this machine (40)",
    )
    parser.add_argument("--staleness", type=int, default=3, help="to compare with 0 (3)")
    parser.add_argument("--repetitions", type=int, default=3, help="each with a seed (3)")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--files", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options)
        return
    found: dict[int, list[tuple[float, float]]] = {0: [], options.staleness: []}
    with tempfile.TemporaryDirectory() as folder:
        files = make_data(Path(folder))
        for seed in range(1, options.repetitions + 1):
            for staleness, results in found.items():
                results.append(run(options, files, staleness, seed))
    print(
        f"{options.ranks} ranks, {options.clocks} clocks of {options.computing:g} ms, and "
        f"{options.milliseconds:g} ms more in {100 * options.share:g} % of them"
    )
    for staleness, results in found.items():
        seconds, losses = zip(*results)
        print(
            f"staleness {staleness}: {statistics.median(seconds):6.2f} s "
            f"({min(seconds):.2f} to {max(seconds):.2f}), final loss "
            f"{statistics.median(losses):.4f} ({min(losses):.4f} to {max(losses):.4f})"
        )
    synchronous, stale = (statistics.median(s for s, _ in results) for results in found.values())
    print(f"staleness {options.staleness} takes {stale / synchronous:.2f} of the time")


if __name__ == "__main__":
    main()
