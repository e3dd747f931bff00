"""Times inference of Caffe's classic nets in pcaffe, PyTorch, ONNX Runtime and OpenCV's dnn.

The nets are the deploy nets of models/ with random weights; the others get them by `pcaffe export`.
All compute the same numbers, which is checked, and take turns, each in its own process, so that a
busy machine slows all.  Prints medians, the median of the rounds' ratios to pcaffe, the peak of
memory since the library was loaded, and the share of a core that a process uses while it waits for
work.

    python benchmarks/inference.py --threads 2 --json inference.json
    TORCH_PYTHON=/path/to/python python benchmarks/inference.py --net ResNet-50 --batch 1 --layers

TORCH_PYTHON is an interpreter with PyTorch, if this one has none.  "pcaffe, all blobs" is a net
that keeps every blob for its reader, as Caffe does.  The fastest other is the fastest in float32.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from cpu import ROUND_SECONDS, Result, Worker, torch_python
from cpu_nets import NETS
from exports import opened

from pycaffe_dist.exporting import export_net
from pycaffe_dist.exporting.options import Options
from pycaffe_dist.schema import text

HERE = Path(__file__).parent
BATCHES = 1, 16
OURS, PLAIN = "pcaffe", "pcaffe, all blobs"
BFLOAT16 = ", bfloat16"
# The largest difference of outputs, as a part of the largest output; and with bfloat16.
TOLERANCE, ROUGH = 1e-3, 0.1
# Seconds between turns: threads of some programs stay awake for a while after their work.
REST = 0.3


@dataclass
class Row(Result):
    """The measurements of one net with one batch; ``idle``: shares of a core, by framework."""

    batch: int = 1
    idle: dict[str, float] = field(default_factory=dict)

    def best(self) -> tuple[str, float]:
        """Return the fastest of the others, and its ratio."""
        others = [who for who in self.wall if who not in (OURS, PLAIN) and BFLOAT16 not in who]
        ratios = {who: self.ratio(who, self.wall) for who in others}
        fastest = min(ratios, key=lambda who: ratios[who], default="")
        return fastest, ratios.get(fastest, 0.0)


def deploy_path(name: str, models: Path) -> Path:
    """Return the prototxt for inference of a net of `NETS`."""
    folder = models / Path(NETS[name].path).parent
    found = folder / "deploy.prototxt"
    return found if found.exists() else folder / f"{folder.name}.prototxt"


def prepare(name: str, models: Path, folder: Path, batch: int) -> None:
    """Write a net's prototxt, weights, input and exports into ``folder``, unless it has them."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / f"{batch}.npy").exists():
        return
    net = opened(deploy_path(name, models), batch)
    (folder / f"{batch}.prototxt").write_text(text.to_text(net.definition))
    shape = net.blobs[net.inputs[0]].shape
    np.save(folder / f"{batch}.npy", np.random.default_rng(1).standard_normal(shape, np.float32))
    if not (folder / "net.onnx").exists():
        net.save_weights(str(folder / "net.caffemodel"))
        export_net(net, str(folder / "net.onnx"), "onnx", Options())
        export_net(net, str(folder / "net.py"), "torch", Options())


def commands(folder: Path, batch: int, args: argparse.Namespace) -> dict[str, list[str]]:
    """Return the command of each framework's process."""
    here, torch, only = sys.executable, torch_python(), args.beside
    last = [str(folder), str(batch), str(args.threads)]
    ours, theirs = str(HERE / "inference_ours.py"), str(HERE / "inference_onnx.py")
    found = {
        OURS: [here, ours, *last, "outputs"],
        PLAIN: [here, ours, *last, "all"],
        OURS + BFLOAT16: [here, ours, *last, "bfloat16"],
        "ONNX Runtime": [here, theirs, *last, "onnxruntime"],
        "OpenCV": [here, theirs, *last, "opencv"],
    }
    if torch:
        ways = "contiguous", "channels_last", "bfloat16"
        for who, layout in zip(("PyTorch", "PyTorch, ch. last", "PyTorch" + BFLOAT16), ways):
            found[who] = [torch, str(HERE / "inference_torch.py"), *last, layout]
    return {who: found[who] for who in found if who == OURS or only is None or who in only}


def measure(name: str, batch: int, args: argparse.Namespace, programs: dict[str, list]) -> Row:
    """Measure one net with one batch."""
    row, workers, outputs = Row(name, batch=batch), {}, {}
    # All start and compile at a time.
    for who, worker in {who: Worker(command) for who, command in programs.items()}.items():
        answer = worker.read()
        if "error" in answer:
            print(f"{name}, batch {batch}: {who} is left out: {answer['error']}")
            worker.close()
            continue
        workers[who], outputs[who] = worker, np.array(answer["output"])
    for who, values in outputs.items():
        difference = np.abs(values - outputs[OURS]).max() / np.abs(outputs[OURS]).max()
        if not difference < (ROUGH if BFLOAT16 in who else TOLERANCE):
            raise SystemExit(f"{name}: the output of {who} differs by {difference:.2g}")
    counts = {}
    for who, worker in workers.items():
        worker.run("2")
        counts[who] = max(1, round(args.seconds / worker.run("1")["wall"]))
    for _ in range(args.rounds):
        for who, worker in workers.items():
            time.sleep(REST)
            row.add(who, worker.run(str(counts[who])), counts[who])
    for who, worker in workers.items():
        row.idle[who] = worker.run("idle")
    if args.layers:
        row.layers = workers[OURS].run(f"layers {max(5, 2 * args.rounds)}")
    for worker in workers.values():
        worker.close()
    return row


def print_rows(rows: Sequence[Row]) -> None:
    """Print the table of the fastest others."""
    print(f"\n{'net':16}{'batch':>6}{'fastest other':>20}{'ratio':>7}")
    for row in rows:
        if row.best()[0]:
            print(f"{row.name:16}{row.batch:6}{row.best()[0]:>20}{row.best()[1]:7.2f}")


def print_row(row: Row) -> None:
    """Print the times of one net and batch."""
    for who, wall in row.wall.items():
        line = f"{row.name:16}{row.batch:6} {who:18}{1e3 * median(wall):9.2f}"
        line += f"{1e3 * median(row.cpu[who]):9.2f}{row.memory[who] / 1e6:7.0f}"
        ratios = row.ratio(who, row.wall), row.ratio(who, row.cpu)
        print(f"{line}{row.idle[who]:6.2f}{ratios[0]:7.2f}{ratios[1]:10.2f}", flush=True)


def print_layers(row: Row) -> None:
    """Print the times of a net's layers, the longest first."""
    print(f"\n{row.name}, batch {row.batch}\n{'layer':40}{'type':16}{'ms':>9}{'GFLOP/s':>9}")
    for layer in sorted(row.layers, key=lambda layer: -layer["seconds"]):
        rate = layer["flops"] / max(layer["seconds"], 1e-9) / 1e9
        name, milliseconds = layer["layer"][:39], 1e3 * layer["seconds"]
        print(f"{name:40}{layer['type']:16}{milliseconds:9.3f}{rate or '':9.5}")


def as_json(rows: Sequence[Row], threads: int) -> str:
    """Return all measurements as JSON."""
    nets: list[dict[str, Any]] = [
        {
            "net": row.name,
            "batch": row.batch,
            "wall_seconds": row.wall,
            "cpu_seconds": row.cpu,
            "memory_bytes": row.memory,
            "idle_cores": row.idle,
            "ratios": {who: row.ratio(who, row.wall) for who in row.wall},
            "layers": row.layers,
        }
        for row in rows
    ]
    return json.dumps({"threads": threads, "nets": nets}, indent=1)


def parse() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--net", choices=NETS, action="append", help="only this one")
    parser.add_argument("--batch", type=int, action="append", help="default: 1 and 16")
    parser.add_argument("--beside", action="append", help="only this framework (default: all)")
    parser.add_argument("--models", type=Path, default=HERE.parent / "models")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=ROUND_SECONDS, help="of a round")
    parser.add_argument("--layers", action="store_true", help="print the times of layers, too")
    parser.add_argument("--kept", type=Path, help="keep the nets' files here for later runs")
    parser.add_argument("--json", type=Path, help="write all measurements to this file")
    return parser.parse_args()


def main() -> None:
    """Measure, print and write according to the command line."""
    args = parse()
    if torch_python() is None:
        print("PyTorch is not installed (TORCH_PYTHON may name an interpreter that has it)")
    logging.getLogger("pycaffe_dist").setLevel(logging.ERROR)
    rows = []
    head = f"{'net':16}{'batch':>6} {'':18}{'ms':>9}{'cpu ms':>9}{'MB':>7}{'idle':>6}"
    print(f"{head}{'ratio':>7}{'cpu ratio':>10}")
    for name in args.net or NETS:
        with tempfile.TemporaryDirectory() as temporary:
            folder = args.kept / name.replace(" ", "_") if args.kept else Path(temporary)
            for batch in args.batch or BATCHES:
                prepare(name, args.models, folder, batch)
                rows.append(measure(name, batch, args, commands(folder, batch, args)))
                print_row(rows[-1])
                if args.layers:
                    print_layers(rows[-1])
    print_rows(rows)
    if args.json:
        args.json.write_text(as_json(rows, args.threads))


if __name__ == "__main__":
    main()
