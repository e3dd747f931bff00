"""Test accuracy of LeNet on MNIST with every way of training on several ranks, and on one.

``python benchmarks/convergence.py [FLAGS]``, from the repository's root, after
``data/mnist/get_mnist.sh`` and ``data/mnist/create_mnist.sh``.  All runs see the same samples in
the same iterations and start from the same weights; one rank takes the batches of all.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from ranks import ENVIRONMENT

# Accuracies, in points, within which two ways of training count as equally good.
TOLERANCE = 0.2
NET = Path("models/lenet/lenet_train_test.prototxt")
SOLVER = """net: "{net}" base_lr: 0.01 lr_policy: "inv" gamma: 0.0001 power: 0.75 momentum: 0.9
weight_decay: 0.0005 max_iter: {iterations} test_iter: 100 test_interval: {iterations}
test_initialization: false display: 100 random_seed: 1 solver_mode: CPU snapshot_after_train: false
"""
WAYS = {
    "allreduce": ["--exchange=allreduce"],
    "sufficient_factor": ["--exchange=sufficient_factor"],
    "parameter_server": ["--exchange=parameter_server"],
    "staleness 3": ["--exchange=parameter_server", "--staleness=3"],
}


class Result(NamedTuple):
    """A run's test accuracy in percent, its test loss, and its seconds from start to end."""

    accuracy: float
    loss: float
    seconds: float


def train(folder: Path, data: str, ranks: int, batch: int, iterations: int, flags: list) -> Result:
    """Train on some ranks with ``batch`` samples on each; return accuracy, loss and time."""
    net = NET.read_text().replace("batch_size: 64", f"batch_size: {batch}")
    (folder / "net.prototxt").write_text(net.replace("data/mnist", data))
    solver = SOLVER.format(net=folder / "net.prototxt", iterations=iterations)
    (folder / "solver.prototxt").write_text(solver)
    command = ["pcaffe", "train", f"--solver={folder / 'solver.prototxt'}", *flags]
    if ranks > 1:
        command = ["mpirun", "-n", str(ranks), *command]
    began = time.monotonic()
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    outputs = dict(re.findall(r"Test net output #\d: (\w+) = (\S+)", done.stderr + done.stdout))
    return Result(100 * float(outputs["accuracy"]), float(outputs["loss"]), seconds)


def show(way: str, result: Result, one: Result) -> None:
    """Print a run and its difference from one rank's."""
    apart = result.accuracy - one.accuracy
    print(
        f"{way:18}  {result.accuracy:10.2f}  {apart:+20.2f}  {result.loss:9.4f}  "
        f"{result.seconds:7.1f}",
        flush=True,
    )


def main() -> None:
    """Print a line per way of training, and say whether all are within the tolerance."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16, help="samples per rank (16)")
    parser.add_argument("--data", default="data/mnist", help="folder of mnist_train_lmdb, …")
    options = parser.parse_args()
    print(f"LeNet, {options.iterations} iterations, {options.ranks} ranks x {options.batch}")
    print(f"{'':18}  accuracy %  points from one rank  test loss  seconds")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = options.ranks * options.batch
        one = train(folder, options.data, 1, whole, options.iterations, [])
        show("one rank", one, one)
        far = 0.0
        for way, flags in WAYS.items():
            result = train(
                folder, options.data, options.ranks, options.batch, options.iterations, flags
            )
            show(way, result, one)
            far = max(far, abs(result.accuracy - one.accuracy))
    verdict = "within" if far <= TOLERANCE + 1e-9 else "NOT within"
    print(f"all {verdict} {TOLERANCE} points of one rank")


if __name__ == "__main__":
    main()
