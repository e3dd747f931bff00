"""Loss curves of LeNet on MNIST with gradients of 32 and of 16 bits on the wire.

``python benchmarks/wire.py [--ranks=4] [--iterations=300]``, from the repository's root, after
``data/mnist/get_mnist.sh`` and ``data/mnist/create_mnist.sh``.  All runs see the same samples.
The noise for comparison is the distance of runs with 32 bits that start from different weights.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from ranks import ENVIRONMENT

NET = Path("models/lenet/lenet_train_test.prototxt")
SOLVER = """net: "{net}" base_lr: 0.01 lr_policy: "inv" gamma: 0.0001 power: 0.75 momentum: 0.9
weight_decay: 0.0005 max_iter: {iterations} test_iter: 100 test_interval: {iterations}
test_initialization: false display: 1 random_seed: {seed} solver_mode: CPU
snapshot_after_train: false
"""
EXCHANGES = ("allreduce", "sufficient_factor", "one_sided", "hierarchical")
WIRES = ("float32", "bfloat16", "float16")
SEEDS = (1, 2, 3)
# Losses of single iterations vary: a curve has means over this number.
WINDOW = 50


def train(
    folder: Path, arguments: argparse.Namespace, exchange: str, wire: str, seed: int
) -> tuple[list[float], float]:
    """Return the loss curve, smoothed, and the test accuracy in percent."""
    net = NET.read_text().replace("batch_size: 64", f"batch_size: {64 // arguments.ranks}")
    (folder / "net.prototxt").write_text(net.replace("data/mnist", arguments.data))
    solver = SOLVER.format(net=folder / "net.prototxt", iterations=arguments.iterations, seed=seed)
    (folder / "solver.prototxt").write_text(solver)
    command = ["mpirun", "-n", str(arguments.ranks), "pcaffe", "train"]
    command += [f"--solver={folder / 'solver.prototxt'}", f"--exchange={exchange}"]
    done = subprocess.run(
        [*command, f"--wire={wire}"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    log = done.stdout + done.stderr
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{log[-2000:]}")
    losses = [float(loss) for loss in re.findall(r"Iteration \d+ \(.*loss = (\S+)", log)]
    windows = [losses[i : i + WINDOW] for i in range(0, len(losses), WINDOW)]
    accuracy = float(re.findall(r"Test net output #\d: accuracy = (\S+)", log)[-1])
    return [statistics.mean(window) for window in windows], 100 * accuracy


def distance(curve: list[float], other: list[float]) -> float:
    """Return the root mean square of two curves' differences."""
    return statistics.mean((a - b) ** 2 for a, b in zip(curve, other)) ** 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--data", default="data/mnist", help="the folder of the two databases")
    parser.add_argument("--exchanges", default=",".join(EXCHANGES))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        by_seed = {s: train(folder, arguments, "allreduce", "float32", s) for s in SEEDS}
        first = by_seed[SEEDS[0]][0]
        noise = max(distance(first, by_seed[seed][0]) for seed in SEEDS[1:])
        points = " ".join(f"{WINDOW * (i + 1):6}" for i in range(len(first)))
        print(f"{'loss, mean of the iterations up to':36} {points}  test %  distance")
        rows = [("allreduce", "float32", seed) for seed in SEEDS]
        rows += [(e, w, SEEDS[0]) for e in arguments.exchanges.split(",") for w in WIRES[1:]]
        for exchange, wire, seed in rows:
            known = by_seed[seed] if wire == "float32" else None
            curve, accuracy = known or train(folder, arguments, exchange, wire, seed)
            shown = " ".join(f"{loss:6.4f}" for loss in curve)
            name = f"{exchange}, {wire}, seed {seed}"
            print(f"{name:36} {shown}  {accuracy:6.2f}  {distance(curve, first):.4f}", flush=True)
        print(f"noise between seeds: {noise:.4f}")


main()
