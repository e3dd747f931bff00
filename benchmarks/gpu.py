"""Times training iterations on a GPU in pcaffe, and in PyTorch in eager mode.

Each net runs forward, backward and update on random data on the device, and reads its loss after
each iteration.  pcaffe and PyTorch take turns, each in its own process; a turn ends when the GPU
has finished.  Both have the same precision, in three modes: PyTorch's defaults (TF32 in
convolutions, float32 in other products), TF32 in all products with cuDNN's plans timed, and
float32 alone.  Prints medians, and the median of the rounds' ratios.

    TORCH_PYTHON=/path/to/python python benchmarks/gpu.py --mode=default --json gpu.json

A net's lines are printed, and the file is written, when the net is done.  A net that fails, for
example without enough memory, is named, and the others run.  Without a GPU it exits with 1 and one
line.
TORCH_PYTHON is an interpreter with PyTorch, if this one has none.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from cpu import Result, Worker, torch_python
from cpu_nets import NETS, BenchmarkNet

from pycaffe_dist.gpu.finding import PLANS, TF32

HERE = Path(__file__).parent
ROUND_SECONDS = 1.0
BATCHES = {"LeNet": 64, "CIFAR-10 quick": 100, "CaffeNet": 256, "GoogLeNet": 128, "VGG-16": 64}
GPU_NETS = {name: replace(NETS[name], batch=batch) for name, batch in BATCHES.items()}
GPU_NETS["ResNet-50"] = BenchmarkNet("resnet50/train_val.prototxt", 128, (3, 224, 224), 1000)


# What rounds to TF32, and which plans of cuDNN run, by the variables of the environment.
MODES = {
    "default": {TF32: "convolutions", PLANS: "first"},
    "tf32": {TF32: "all", PLANS: "timed"},
    "float32": {TF32: "none", PLANS: "first"},
}


def measure(name: str, mode: str, args: argparse.Namespace, torch: str | None) -> Result:
    """Measure one net in a mode; raises SystemExit when our side ends early."""
    result = Result(name)
    command = [sys.executable, str(HERE / "gpu_ours.py"), name, str(args.models)]
    command += [str(args.batch or GPU_NETS[name].batch)]
    ours = Worker(command, MODES[mode])
    workers = {"pcaffe": ours}
    try:
        layers = ours.read()
        counts = {"pcaffe": iterations(ours)}
        if torch:
            theirs = Worker([torch, str(HERE / "gpu_torch.py"), mode])
            try:
                theirs.send(json.dumps(layers))
                counts["PyTorch"] = iterations(theirs)
                workers["PyTorch"] = theirs
            except (SystemExit, OSError) as error:
                print(f"{name}, {mode}: PyTorch is left out: {error}", flush=True)
                theirs.close()
        for _ in range(args.rounds):
            for who, worker in workers.items():
                result.add(who, worker.run(str(counts[who])), counts[who])
        report = ours.run("layers 5" if args.layers else "fallbacks")
        result.layers, result.fallbacks = report.get("layers", []), report["fallbacks"]
    finally:
        for worker in workers.values():
            worker.close()
    return result


def iterations(worker: Worker) -> int:
    """Warm a side up; return its number of iterations in one round."""
    worker.run("2")  # compiles, allocates, and lets cuDNN choose
    return max(1, round(ROUND_SECONDS * 2 / worker.run("2")["wall"]))


def print_result(result: Result, mode: str, batch: int) -> None:
    """Print what the layers take, what did not run on cuDNN, and the lines of the table."""
    for layer in sorted(result.layers, key=lambda layer: -layer["forward"] - layer["backward"]):
        names = f"{layer['name']} ({layer['type']})"
        print(f"    {names:42}{layer['forward']:10.3f}{layer['backward']:10.3f} ms")
    for refused, calls in result.fallbacks.items():
        print(f"    NOT on cuDNN, {calls} times: {refused}")
    for who, wall in result.wall.items():
        seconds = median(wall)
        line = f"{result.name:18}{batch:6}   {mode:9}{who:10}"
        line += f"{1e3 * seconds:9.3f}{batch / seconds:10.0f}{result.memory[who] / 1e6:8.0f}"
        line += f"{result.ratio(who, result.wall):8.2f}" if who != "pcaffe" else ""
        print(line, flush=True)


def torch_on_gpu() -> str | None:
    """Return an interpreter whose PyTorch finds a GPU; print a line if there is none."""
    python = torch_python()
    if python is None:
        why = "PyTorch is not installed (TORCH_PYTHON may name an interpreter that has it)"
    else:
        code = "import torch; torch.zeros(1, device='cuda'); print(torch.__version__)"
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            print(f"PyTorch {done.stdout.strip()}")
            return python
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        why = f"PyTorch cannot use the GPU ({lines[-1]})"
    print(f"{why}: the times are ours alone.")
    return None


def parse() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--net", choices=GPU_NETS, action="append", help="only this one")
    parser.add_argument("--models", type=Path, default=HERE.parent / "models")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--batch", type=int, help="images in a batch, for all nets")
    parser.add_argument("--layers", action="store_true", help="print the times of layers, too")
    parser.add_argument("--mode", choices=MODES, action="append", help="only this one")
    parser.add_argument("--json", type=Path, help="write all measurements to this file")
    return parser.parse_args()


def main() -> None:
    """Measure, print and write according to the command line."""
    from pycaffe_dist.errors import DeviceError
    from pycaffe_dist.gpu.finding import open_gpu

    args = parse()
    try:
        gpu = open_gpu(0)
    except DeviceError as error:
        raise SystemExit(f"nothing was measured: {error}") from None
    libraries = gpu.libraries()
    print(f"{gpu.name}; {', '.join(libraries)}")
    if not any(each.startswith("cuDNN") for each in libraries):
        print("There is no cuDNN: all our convolutions are matrix products and kernels of our own.")
    torch = torch_on_gpu()
    print(
        f"\n{'net':18}{'batch':>6}{'':3}{'mode':9}{'':10}{'ms':>9}{'images/s':>10}{'MB':>8}{'ratio':>8}"
    )
    nets: list[dict[str, Any]] = []
    for name, mode in itertools.product(args.net or GPU_NETS, args.mode or MODES):
        batch = args.batch or GPU_NETS[name].batch
        row: dict[str, Any] = {"net": name, "batch": batch, "mode": mode}
        try:
            result = measure(name, mode, args, torch)
        except (SystemExit, OSError) as error:
            print(f"{name}, {mode}: FAILED: {error}", flush=True)
            row["error"] = str(error)
        else:
            print_result(result, mode, batch)
            row |= {"wall_seconds": result.wall, "layers": result.layers}
            row["fallbacks"] = result.fallbacks
        nets.append(row)
        if args.json:
            of_all = {"device": gpu.name, "libraries": libraries}
            args.json.write_text(json.dumps({**of_all, "nets": nets}))
    if any("error" in net for net in nets):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
