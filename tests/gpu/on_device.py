"""Runs the GPU tests on a real GPU: layers, solvers, the accuracy of two nets, memory, races.

    python tests/gpu/on_device.py [WORD...]

With words, only steps with one of them in their names run: kernels, layers, lenet, racecheck.  Each
step is a separate process with a time limit, so that it cannot harm or delay the others, and prints
its result at its end; the last lines are a summary.  Without a GPU the program says so in one line
and exits with 1.  The databases of MNIST and CIFAR-10 are in data/; steps whose data or tool is
missing are named and left out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pycaffe_dist.errors import DeviceError
from pycaffe_dist.gpu.finding import EMULATE, open_gpu

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "gpu"
# A solver, its database, the script that makes the database, and the accuracy on the CPU.
NETS = (
    (
        "models/lenet/lenet_quick_solver.prototxt",
        "data/mnist/mnist_train_lmdb",
        "data/mnist/get_mnist.sh && data/mnist/create_mnist.sh",
        0.985,
    ),
    (
        "models/cifar10_quick/cifar10_quick_solver.prototxt",
        "data/cifar10/cifar10_train_lmdb",
        "data/cifar10/get_cifar10.sh && data/cifar10/create_cifar10.sh",
        0.70,
    ),
)
# The time limits of steps in seconds; compute-sanitizer is many times slower.  The first run
# compiles all kernels for both devices.
LIMIT, LIMIT_WATCHED = 600, 420
# compute-sanitizer's tools, with what they find.
TOOLS = {"memcheck": "reads and writes beside arrays", "racecheck": "races in shared memory"}

OK, FAILED, LEFT_OUT = "ok", "FAILED", "left out"


@dataclass
class Report:
    """The steps so far, each with its result and a comment.

    ``words``: only steps with one of them in their names run; without words all do.
    """

    words: tuple[str, ...] = ()
    lines: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, name: str, result: str, words: str) -> None:
        """Print a step's result and keep it."""
        self.lines.append((name, result, words))
        print(_line(name, result, words), flush=True)

    def wants(self, name: str) -> bool:
        """Tell whether to run a step."""
        return not self.words or any(word in name for word in self.words)

    def step(self, name: str, run: Callable[[], tuple[str, str]]) -> None:
        """Run a step, if it is wanted; it returns its result and a comment."""
        if not self.wants(name):
            return
        started = time.monotonic()
        try:
            result, words = run()
        except subprocess.TimeoutExpired as error:
            result, words = FAILED, f"not done after {error.timeout:.0f} s"
        self.add(name, result, f"{words} ({time.monotonic() - started:.0f} s)")

    def sum_up(self) -> int:
        """Print the failures and the number of successes; return the exit status."""
        print("\n" + "\n".join(_line(*line) for line in self.lines if line[1] != OK))
        counts = [
            f"{sum(line[1] == result for line in self.lines)} {result}"
            for result in (OK, FAILED, LEFT_OUT)
        ]
        print(f"steps: {', '.join(counts)}", flush=True)
        return 1 if any(line[1] == FAILED for line in self.lines) else 0


def _line(name: str, result: str, words: str) -> str:
    return f"{name:42} {result:9} {words}"


def run(command: list[str], limit: float, **environment: str) -> tuple[int, str]:
    """Run a command on the real GPU; return its status and its output.

    After ``limit`` seconds it is killed, and TimeoutExpired is raised.
    """
    everything = {**os.environ, "PCAFFE_TEST_GPU": "1", **environment}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=everything,
        timeout=limit,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def tests(path: Path, tool: tuple[str, ...] = (), **environment: str) -> tuple[str, str]:
    """Run the tests of a file, maybe under a tool; print what failed."""
    options = ["-q", "-m", "not long", "--tb=short", "-rfE", "--maxfail=25"]
    options += ["-p", "no:cacheprovider"]
    command = [*tool, sys.executable, "-m", "pytest", *options, str(path.relative_to(ROOT))]
    status, output = run(command, LIMIT_WATCHED if tool else LIMIT, **environment)
    counts = [line for line in output.splitlines() if re.search(r" in [\d.]+s", line)]
    if status:
        print(output[-6000:], flush=True)
    return OK if status == 0 else FAILED, counts[-1].strip("= ") if counts else f"status {status}"


def accuracy(solver: str, database: str, how: str, least: float) -> tuple[str, str]:
    """Train a net on the GPU; it should be as accurate as on the CPU."""
    if not (ROOT / database).exists():
        return LEFT_OUT, f"there is no {database}; {how} make it"
    command = [sys.executable, "-m", "pycaffe_dist", "train", f"--solver={solver}", "--gpu=0"]
    status, output = run(command, LIMIT)
    found = re.findall(r"Test net output #\d+: accuracy = ([\d.]+)", output)
    if status or not found:
        print(output[-3000:], flush=True)
        return FAILED, f"status {status}"
    words = f"accuracy {found[-1]}, at least {least} is expected"
    return OK if float(found[-1]) >= least else FAILED, words


def compute_sanitizer() -> str | None:
    """Return CUDA's compute-sanitizer: on the path, in CUDA's folder, or in NVIDIA's package."""
    found = shutil.which("compute-sanitizer")
    if found:
        return found
    roots = [os.environ.get(name) for name in ("CUDA_PATH", "CUDA_HOME")]
    folders = [Path(root) / "bin" for root in (*roots, "/usr/local/cuda") if root]
    folders += [Path(entry) / "nvidia/cuda_sanitizer_api/bin" for entry in sys.path if entry]
    programs = [folder / "compute-sanitizer" for folder in folders]
    return next((str(path) for path in programs if os.access(path, os.X_OK)), None)


def watched(report: Report) -> None:
    """Run the kernels' own tests under compute-sanitizer, where it is installed."""
    program = compute_sanitizer()
    for tool, finds in TOOLS.items():
        if program is None:
            words = f"{finds} are NOT looked for: there is no compute-sanitizer"
            if report.wants(tool):
                report.add(tool, LEFT_OUT, words)
            continue
        command = (program, f"--tool={tool}", "--error-exitcode=9", "--target-processes=all")
        for path in sorted(FOLDER.glob("test_gpu_kernels_*.py")):
            # A memory pool would hide accesses beside an array from memcheck.
            pool = {"PCAFFE_TEST_NO_POOL": "1"} if tool == "memcheck" else {}
            name = f"{tool} {path.stem.removeprefix('test_gpu_')}"
            report.step(name, partial(tests, path, command, **pool))


def main() -> int:
    """Run everything; return the exit status."""
    os.environ.pop(EMULATE, None)
    try:
        gpu = open_gpu(0)
    except DeviceError as error:
        print(f"no test on a GPU was run: {error}", file=sys.stderr)
        return 1
    print(f"GPU 0: {gpu.name}; {', '.join(gpu.libraries())}", flush=True)
    report = Report(tuple(sys.argv[1:]))
    # The kernels' own tests first: if these fail, the others cannot succeed.
    files = sorted(FOLDER.glob("test_*.py"), key=lambda path: ("kernels" not in path.name, path))
    for path in files:
        report.step(path.stem.removeprefix("test_"), partial(tests, path))
    for net in NETS:
        report.step(net[0].split("/")[1], partial(accuracy, *net))
    watched(report)
    return report.sum_up()


if __name__ == "__main__":
    sys.exit(main())
