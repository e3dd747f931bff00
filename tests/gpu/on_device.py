"""Runs the GPU tests and timings on a real GPU, in three parts of at most nine minutes.

    python3 tests/gpu/on_device.py [--part N] [--out FOLDER] [WORD...]

Part 1 shows what works: versions, a convolution by cuDNN, all kernels compiled and tested, Caffe's
golden files, CUDA graphs, three nets timed beside PyTorch's, and LeNet's accuracy.  Part 2 times
six nets in three modes.  Part 3 looks for wrong accesses and races, and profiles the slowest
kernels.  Without ``--part`` all run.  With words, only steps with one of them in their names run.

Each step is a separate process with a time limit, so that it cannot harm or delay the others.  What
it prints goes to FOLDER/part1.log at once, its result to FOLDER/part1.jsonl; the last lines are a
summary.  Nothing need be installed beside CuPy, Numba, and what `.device/`, which
scripts/fill_device_folder.sh fills, has: wheels, and MNIST.  Without a GPU the program says so in
one line and exits with 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "gpu"
CARRIED = ROOT / ".device"
EMULATE = "PCAFFE_EMULATE_GPU"
PART_SECONDS = 540.0
# A step is left out if less time than this is left for its part.
LEAST_SECONDS = 5.0

OK, FAILED, LEFT_OUT = "ok", "FAILED", "left out"
# The exit status of a step that lacks a tool or data; its last line says which.
LACKS = 77

PYTEST = ["-m", "pytest", "-v", "-m", "not long", "--tb=short", "-rfE", "--maxfail=25"]
PYTEST += ["-p", "no:cacheprovider"]
MODES = "default", "tf32", "float32"
SIX_NETS = "LeNet", "CIFAR-10 quick", "CaffeNet", "GoogLeNet", "VGG-16", "ResNet-50"


@dataclass(frozen=True)
class Step:
    """A process to run: Python's arguments, and the seconds that it may take.

    ``writes`` is a file of JSON that it writes, for the results.
    """

    name: str
    limit: float
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    writes: Path | None = None


def tests(name: str, limit: float, files: str, *options: str, **environment: str) -> Step:
    """Return a step of the tests in some files of this folder."""
    paths = sorted(str(path.relative_to(ROOT)) for path in FOLDER.glob(files))
    return Step(name, limit, [*PYTEST, *options, *paths], {"PCAFFE_TEST_GPU": "1", **environment})


def body(name: str, limit: float, *arguments: str) -> Step:
    """Return a step that device_steps.py has."""
    return Step(
        " ".join([name, *arguments]), limit, [str(FOLDER / "device_steps.py"), name, *arguments]
    )


def timing(net: str, limit: float, mode: str, *options: str) -> Step:
    """Return a step that times a net beside PyTorch's."""
    name = f"times {net} {mode}"
    result = Path(tempfile.gettempdir()) / f"{name.replace(' ', '_')}.json"
    command = [str(ROOT / "benchmarks" / "gpu.py"), f"--net={net}", f"--mode={mode}"]
    command += [f"--json={result}", "--rounds=5", *options]
    if os.environ.get(EMULATE):
        command += ["--batch=1", "--rounds=1"]
    return Step(name, limit, command, writes=result)


def parts() -> dict[int, list[Step]]:
    """Return the steps of each part, the most valuable ones first.

    Each part compiles the kernels first, because it may run on a new machine.
    """
    spread = ["-n", str(min(8, os.cpu_count() or 1))] if _has("xdist") else []
    kernels = tests("kernels", 150, "test_gpu_kernels_*.py", *spread)
    return {
        1: [
            body("versions", 60),
            body("convolution", 60),
            body("compile", 150),
            kernels,
            tests("cudnn", 60, "test_gpu_cudnn.py", "-rs"),
            tests("golden layers", 90, "test_gpu_layers.py", "-k", "same_as_caffe"),
            tests("golden solvers", 60, "test_gpu_solvers.py", "-k", "losses or resume"),
            tests("graphs", 100, "test_gpu_graph*.py", *spread),
            *(timing(net, 60, "default", "--layers") for net in ("LeNet", "VGG-16", "ResNet-50")),
            body("accuracy", 120),
        ],
        2: [
            body("compile", 100),
            body("ceilings", 40),
            *(timing(net, 100, mode) for mode in MODES for net in SIX_NETS),
            body("plans", 20),
        ],
        3: [
            body("compile", 100),
            kernels,
            body("watch", 200, "memcheck"),
            body("profile", 120),
            tests("16 bits", 100, "test_gpu_float16.py"),
            tests("16 bits layers", 100, "test_gpu_layers.py", "-k", "float16"),
            body("watch", 150, "racecheck"),
            tests("other tests", 150, "test_gpu_[djmtw]*.py", *spread),
        ],
    }


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


class Report:
    """Runs the steps of a part and keeps their results, in files of ``out`` as they come."""

    def __init__(self, out: Path, part: int, seconds: float = PART_SECONDS):
        out.mkdir(parents=True, exist_ok=True)
        self.lines: list[tuple[str, str, str]] = []
        self._log, self._results = out / f"part{part}.log", out / f"part{part}.jsonl"
        self._log.write_text("")
        self._results.write_text("")
        self._started = time.monotonic()
        self._seconds = seconds

    def run(self, step: Step) -> None:
        """Run a step; it ends by its limit or by the end of the part's time."""
        now = time.monotonic()
        left = self._started + self._seconds - now
        if left < LEAST_SECONDS:
            self._add(step, LEFT_OUT, "no time is left", 0.0)
            return
        limit = min(step.limit, left)
        with self._log.open("a") as log:
            log.write(f"\n===== {step.name} ({now - self._started:.0f} s)\n")
            log.flush()
            at = log.tell()
            status = _run(step, limit, log)
        lines = [line for line in self._log.read_text()[at:].splitlines() if line.strip()]
        words = lines[-1].strip("= ") if lines else ""
        result = {0: OK, LACKS: LEFT_OUT}.get(-1 if status is None else status, FAILED)
        if status is None:
            words = f"not done after {limit:.0f} s; {words}"
        if result == FAILED:
            print("\n".join(lines[-40:]), flush=True)
        self._add(step, result, words, time.monotonic() - now)

    def _add(self, step: Step, result: str, words: str, seconds: float) -> None:
        self.lines.append((step.name, result, words))
        print(f"{_line(step.name, result, words)} ({seconds:.0f} s)", flush=True)
        row: dict[str, Any] = {"step": step.name, "result": result, "words": words}
        row["seconds"] = round(seconds, 1)
        if step.writes and step.writes.exists():
            row["measured"] = json.loads(step.writes.read_text())
            step.writes.unlink()
        with self._results.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def sum_up(self) -> int:
        """Print what did not succeed and the numbers of results; return the exit status."""
        print("\n" + "\n".join(_line(*line) for line in self.lines if line[1] != OK))
        counts = [
            f"{sum(line[1] == result for line in self.lines)} {result}"
            for result in (OK, FAILED, LEFT_OUT)
        ]
        seconds = time.monotonic() - self._started
        print(f"steps: {', '.join(counts)}; {seconds:.0f} s", flush=True)
        return 1 if any(line[1] == FAILED for line in self.lines) else 0


def _line(name: str, result: str, words: str) -> str:
    return f"{name:24} {result:9} {words}"


def _run(step: Step, limit: float, log: TextIO) -> int | None:
    """Run a step's process and all that it starts; return its status, None if it was killed."""
    process = subprocess.Popen(
        [sys.executable, *step.command],
        cwd=ROOT,
        env={**os.environ, **step.environment},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def prepare(carried: Path) -> None:
    """Let the steps' processes find pcaffe and the carried wheels of this Python's version."""
    site = carried / f"site-{sys.version_info[0]}{sys.version_info[1]}"
    tag = f"-cp{sys.version_info[0]}{sys.version_info[1]}-"
    for wheel in sorted((carried / "wheels").glob("*.whl")):
        if (tag in wheel.name or "-py3-none-" in wheel.name) and not (site / wheel.name).exists():
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)
            (site / wheel.name).touch()  # it is unpacked
    paths = [str(ROOT), str(site), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.environ["PYTHONUNBUFFERED"] = "1"
    os.environ["PYTHON"] = sys.executable  # for the scripts in data/
    os.environ["PCAFFE_CUDNN_PLANS"] = "first"  # hundreds of small convolutions need no timing
    if (carried / "mnist").exists():
        os.environ["MNIST_MIRROR"] = str(carried / "mnist")


def main() -> int:
    """Run what the command line asks for; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="parts of the names of steps")
    parser.add_argument("--part", type=int, choices=(1, 2, 3), help="only this part")
    parser.add_argument("--out", type=Path, default=ROOT / "gpu_results", help="for the results")
    args = parser.parse_args()
    prepare(CARRIED)
    found = subprocess.run(
        [sys.executable, FOLDER / "device_steps.py", "gpu"], capture_output=True, text=True
    )
    if found.returncode:
        reason = (found.stderr.strip().splitlines() or ["no reason given"])[-1]
        print(f"no test on a GPU was run: {reason}", file=sys.stderr)
        return 1
    print(found.stdout.strip(), flush=True)
    status = 0
    for part, steps in parts().items():
        if args.part in (None, part):
            report = Report(args.out, part)
            for step in steps:
                if not args.words or any(word in step.name for word in args.words):
                    report.run(step)
            status = report.sum_up() or status
    return status


if __name__ == "__main__":
    sys.exit(main())
