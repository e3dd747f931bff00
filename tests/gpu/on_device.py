"""Runs the GPU tests on a real GPU: layers, solvers, races, and the accuracy of two nets.

    python tests/gpu/on_device.py

Without a GPU it says so in one line and exits with 1.  The databases of MNIST and CIFAR-10 are
those of data/; a net whose data is not there is left out, and named.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from pycaffe_dist.errors import DeviceError
from pycaffe_dist.gpu.finding import EMULATE, open_gpu

ROOT = Path(__file__).parents[2]
FOLDER = "tests/gpu"
# A solver, the database that it needs, and the accuracy that it reaches on the CPU.
NETS = (
    ("models/lenet/lenet_quick_solver.prototxt", "data/mnist/mnist_train_lmdb", 0.985),
    ("models/cifar10_quick/cifar10_quick_solver.prototxt", "data/cifar10/cifar10_train_lmdb", 0.70),
)


def run(*command: str) -> bool:
    """Run a command on the real GPU and tell whether it succeeded."""
    print("$", " ".join(command), flush=True)
    environment = {**os.environ, "PCAFFE_TEST_GPU": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0


def races() -> bool:
    """Run the kernels' own tests under compute-sanitizer, where it is installed."""
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        print("races are not looked for: there is no compute-sanitizer")
        return True
    tests = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(f"{FOLDER}/*_kernels_*.py"))
    tool = [sanitizer, "--tool=racecheck", "--error-exitcode=1", "--target-processes=all"]
    return run(*tool, sys.executable, "-m", "pytest", "-q", "-x", *tests)


def accuracy(solver: str, database: str, least: float) -> bool:
    """Train a net on the GPU; tell whether it is as good as it should be."""
    if not (ROOT / database).exists():
        print(f"{solver} is left out: there is no {database}")
        return True
    command = [sys.executable, "-m", "pycaffe_dist", "train", f"--solver={solver}", "--gpu=0"]
    print("$", " ".join(command), flush=True)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = re.findall(r"Test net output #\d+: accuracy = ([\d.]+)", done.stderr)
    if done.returncode or not found:
        print(done.stderr[-2000:])
        return False
    print(f"{solver}: accuracy {found[-1]}, at least {least} is expected")
    return float(found[-1]) >= least


def main() -> int:
    """Run everything; return the exit status."""
    os.environ.pop(EMULATE, None)
    try:
        gpu = open_gpu(0)
    except DeviceError as error:
        print(f"no test on a GPU was run: {error}", file=sys.stderr)
        return 1
    print(f"GPU 0: {gpu.name}; {', '.join(gpu.libraries())}")
    results = [run(sys.executable, "-m", "pytest", "-q", FOLDER), races()]
    results += [accuracy(*net) for net in NETS]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
