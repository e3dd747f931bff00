"""Times whole training iterations of Caffe's classic nets in pcaffe, PyTorch and BVLC Caffe.

Each net runs forward, backward and update on random data.  pcaffe and PyTorch take turns, each in
its own process, so that a busy machine slows both; prints medians, and the median of the rounds'
ratios.  Then, for each layer, its times, its rate, and the fraction of this machine's peak in the
same run: multiply-adds for products and convolutions, copied bytes for other layers (small blobs
in a cache exceed the peak).

    python benchmarks/cpu.py --threads 2 --json cpu.json --svg cpu.svg
    TORCH_PYTHON=/path/to/python CAFFE_BIN=/path/to/caffe python benchmarks/cpu.py --net LeNet

TORCH_PYTHON is an interpreter with PyTorch, if this one has none.  `caffe time`, the program of
CAFFE_BIN, does forward and backward without the update.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from cpu_chart import chart
from cpu_nets import NETS
from peaks import copy_peak, multiply_add_peak

from pycaffe_dist.schema import text

HERE = Path(__file__).parent
ROUND_SECONDS = 0.5


class Worker:
    """A process that trains one net; ``run`` lets it run some iterations."""

    def __init__(self, command: Sequence[str], environment: dict[str, str] | None = None):
        env = {**os.environ, **(environment or {})}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )

    def send(self, line: str) -> None:
        """Give it a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def read(self) -> Any:
        """Return its next line; raises SystemExit when it has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(self._process.args)} ended with {self._process.wait()}")
        return json.loads(line)

    def run(self, what: str) -> Any:
        """Send a line and return the answer."""
        self.send(what)
        return self.read()

    def close(self) -> None:
        """End it."""
        self._process.communicate()


@dataclass
class Result:
    """The measurements of one net: seconds of an iteration in every round, by framework."""

    name: str
    wall: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    scratch: int = 0  # of our memory, what layers' plans keep beyond blobs
    layers: list[dict[str, Any]] = field(default_factory=list)
    fallbacks: dict[str, int] = field(default_factory=dict)  # from cuDNN to our own kernels

    def add(self, who: str, answer: dict[str, float], iterations: int) -> None:
        """Take one round of one side."""
        self.wall.setdefault(who, []).append(answer["wall"] / iterations)
        self.cpu.setdefault(who, []).append(answer["cpu"] / iterations)
        self.memory[who] = int(answer["memory"])
        self.scratch = int(answer.get("scratch", self.scratch))

    def ratio(self, who: str, times: dict[str, list[float]]) -> float:
        """Return the median over rounds of another framework's time over ours."""
        return median(theirs / ours for theirs, ours in zip(times[who], times["pcaffe"]))


def torch_python() -> str | None:
    """Return an interpreter that has PyTorch, or None."""
    python = os.environ.get("TORCH_PYTHON", sys.executable)
    try:
        found = subprocess.run([python, "-c", "import torch"], capture_output=True, check=False)
    except OSError as error:
        raise SystemExit(f"TORCH_PYTHON={python}: {error.strerror}") from None
    return python if found.returncode == 0 else None


def caffe_seconds(binary: str, prototxt: str, iterations: int) -> float:
    """Return the seconds of one forward and backward pass by ``caffe time``."""
    done = subprocess.run(
        [binary, "time", f"-model={prototxt}", f"-iterations={iterations}"],
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"Average Forward-Backward: ([\d.e+-]+) ms", done.stderr + done.stdout)
    if not found:
        raise SystemExit(f"{binary} time failed:\n{done.stderr[-2000:]}")
    return float(found[1]) / 1000


def measure(name: str, args: argparse.Namespace, torch: str | None) -> Result:
    """Measure one net."""
    result, threads = Result(name), str(args.threads)
    ours = Worker([sys.executable, str(HERE / "cpu_ours.py"), name, str(args.models), threads])
    workers = {"pcaffe": ours}
    layers = ours.read()
    if torch:
        workers["PyTorch"] = Worker([torch, str(HERE / "cpu_torch.py"), threads])
        workers["PyTorch"].send(json.dumps(layers))
    counts = {}
    for who, worker in workers.items():
        worker.run("2")  # compiles, and allocates
        once = worker.run("1")["wall"]
        counts[who] = max(1, round(ROUND_SECONDS / once))
    with tempfile.NamedTemporaryFile("w", suffix=".prototxt") as file:
        file.write(text.to_text(NETS[name].read(args.models)))
        file.flush()
        for _ in range(args.rounds):
            for who, worker in workers.items():
                result.add(who, worker.run(str(counts[who])), counts[who])
            if args.caffe:
                seconds = caffe_seconds(args.caffe, file.name, counts["pcaffe"])
                result.wall.setdefault("Caffe", []).append(seconds)
    result.layers = ours.run(f"layers {max(5, 2 * args.rounds)}")
    for worker in workers.values():
        worker.close()
    return result


def print_layers(result: Result, flops: float, copied: float) -> None:
    """Print the table of layers, with the fractions of the peaks."""
    print(f"\n{result.name}\n{'layer':28}{'pass':10}{'ms':>9}{'rate':>14}{'of peak':>9}")
    for row in result.layers:
        seconds, work = row["seconds"], row["flops"]
        rate, unit, peak = (work, "GFLOP/s", flops) if work else (row["bytes"], "GB/s", copied)
        rate /= max(seconds, 1e-9)
        row["of_peak"] = rate / peak
        print(
            f"{row['layer'][:27]:28}{row['pass']:10}{1e3 * seconds:9.3f}"
            f"{rate / 1e9:6.1f} {unit:7}{rate / peak:9.2f}"
        )
    by_type: dict[str, list[float]] = {}
    for row in result.layers:
        sums = by_type.setdefault(row["type"], [0.0, 0.0])
        sums[0] += row["seconds"]
        sums[1] += row["flops"]
    for kind, (seconds, work) in sorted(by_type.items(), key=lambda item: -item[1][0]):
        line = f"all {kind:24}{'':10}{1e3 * seconds:9.3f}"
        if work:
            line += f"{work / seconds / 1e9:6.1f} GFLOP/s{work / seconds / flops:9.2f}"
        print(line)


def print_nets(results: list[Result]) -> None:
    """Print the table of nets."""
    head = f"\n{'net':18}{'':10}{'ms':>9}{'cpu ms':>9}{'MB':>7}{'scratch':>8}"
    print(f"{head}{'ratio':>8}{'cpu ratio':>11}")
    for result in results:
        for who, wall in result.wall.items():
            line = f"{result.name:18}{who:10}{1e3 * median(wall):9.2f}"
            if who in result.cpu:
                line += f"{1e3 * median(result.cpu[who]):9.2f}{result.memory[who] / 1e6:7.0f}"
            else:
                line += " " * 16
            line += f"{result.scratch / 1e6:8.0f}" if who == "pcaffe" else " " * 8
            if who != "pcaffe":
                line += f"{result.ratio(who, result.wall):8.2f}"
                line += f"{result.ratio(who, result.cpu):11.2f}" if who in result.cpu else ""
            print(line)


def as_json(results: list[Result], args: argparse.Namespace, flops: float, copied: float) -> str:
    """Return all measurements as JSON."""
    nets = [
        {
            "net": result.name,
            "batch": NETS[result.name].batch,
            "wall_seconds": result.wall,
            "cpu_seconds": result.cpu,
            "memory_bytes": result.memory,
            "scratch_bytes": result.scratch,
            "ratios": {who: result.ratio(who, result.wall) for who in result.wall},
            "layers": result.layers,
        }
        for result in results
    ]
    machine = {"threads": args.threads, "flops": flops, "copied_bytes_per_second": copied}
    return json.dumps({**machine, "nets": nets}, indent=1)


def parse() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--net", choices=NETS, action="append", help="only this one")
    parser.add_argument("--models", type=Path, default=HERE.parent / "models")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--no-layers", action="store_true", help="leave out the table of layers")
    parser.add_argument("--json", type=Path, help="write all measurements to this file")
    parser.add_argument("--svg", type=Path, help="draw the nets' times to this file")
    args = parser.parse_args()
    args.caffe = os.environ.get("CAFFE_BIN", "")
    return args


def main() -> None:
    """Measure, print and write according to the command line."""
    args, torch = parse(), torch_python()
    if torch is None:
        print("PyTorch is not installed (TORCH_PYTHON may name an interpreter that has it):")
        print("the times are ours alone.")
    flops = multiply_add_peak(args.threads, 1.0, time.perf_counter)
    copied = copy_peak(args.threads, 1.0)
    print(f"{args.threads} threads: {flops / 1e9:.0f} GFLOP/s, copies at {copied / 1e9:.1f} GB/s")
    results = []
    for name in args.net or NETS:
        if not (args.models / NETS[name].path).exists():
            print(f"{name} is left out: there is no {args.models / NETS[name].path}")
            continue
        results.append(measure(name, args, torch))
        if not args.no_layers:
            print_layers(results[-1], flops, copied)
    print_nets(results)
    if args.json:
        args.json.write_text(as_json(results, args, flops, copied))
    if args.svg:
        args.svg.write_text(chart({result.name: result.wall for result in results}))


if __name__ == "__main__":
    main()
