"""Draw the pictures of README.md and the guides into docs/pictures/ (``make pictures``).

Trains LeNet on MNIST, which data/mnist/create_mnist.sh makes: 1,000 iterations for the plot of a
training, and some on two ranks for the timeline.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from pycaffe_dist.reports.picture import Picture

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
PCAFFE = Path(sys.executable).with_name("pcaffe")
SOLVER = """net: "models/lenet/lenet_train_test.prototxt" base_lr: 0.01 momentum: 0.9
weight_decay: 0.0005 lr_policy: "inv" gamma: 0.0001 power: 0.75 random_seed: 1
snapshot_after_train: false solver_mode: CPU
"""
LONG = "max_iter: 1000 display: 20 average_loss: 20 test_iter: 100 test_interval: 100"
SHORT = "max_iter: 200"
_COLORS = {"forward": "C0", "backward": "C1", "exchange": "C2", "update": "C3", "wait": "0.85"}


def pcaffe(*words: str | Path) -> None:
    """Run a command; raises CalledProcessError."""
    subprocess.run([PCAFFE, *words], cwd=ROOT, check=True)


def draw_training(folder: Path) -> None:
    """Draw the loss and accuracy of a training."""
    pcaffe("train", "--solver", _solver(folder, LONG), "--log_dir", folder)
    pcaffe("plot_log", "--against=iterations", PICTURES / "training.png", folder / "pcaffe.INFO")


def draw_timeline(folder: Path) -> None:
    """Draw the fastest iteration of two ranks."""
    path = folder / "timeline.json"
    words = ("--exchange=allreduce", f"--timeline={path}")
    pcaffe("launch", "-n", "2", "train", "--solver", _solver(folder, SHORT), *words)
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    computing = [event for event in events if (event["pid"], event["tid"]) == (0, 0)]
    begins = [event["ts"] for event in computing if event["name"] == computing[0]["name"]]
    begin, end = min(pairwise(begins), key=lambda pair: pair[1] - pair[0])
    shown = [event for event in events if begin <= event["ts"] < end]
    figure = Picture(figsize=(9, 2.6))
    chart = figure.subplots()
    rows = sorted({(event["pid"], event["tid"]) for event in shown})
    for event in shown:
        span = (event["ts"] - begin) / 1e3, event["dur"] / 1e3
        row = rows.index((event["pid"], event["tid"]))
        chart.broken_barh([span], (row - 0.4, 0.8), color=_COLORS.get(event["cat"], "0.5"))
    chart.set_yticks(range(len(rows)), [_row(*row) for row in rows])
    chart.invert_yaxis()
    chart.set_xlabel("milliseconds")
    kinds = [kind for kind in _COLORS if any(event["cat"] == kind for event in shown)]
    handles = [chart.barh(0, 0, color=_COLORS[kind], label=kind) for kind in kinds]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(kinds))
    figure.savefig(PICTURES / "timeline.png", dpi=110)


def _solver(folder: Path, fields: str) -> Path:
    path = folder / "solver.prototxt"
    path.write_text(SOLVER + fields)
    return path


def _row(rank: int, row: int) -> str:
    return f"rank {rank}" if row == 0 else "exchange"


def main() -> None:
    """Draw all."""
    PICTURES.mkdir(exist_ok=True)
    pcaffe("draw_net", "models/lenet/lenet.prototxt", PICTURES / "lenet.svg")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draw_timeline(folder)
        draw_training(folder)


if __name__ == "__main__":
    main()
