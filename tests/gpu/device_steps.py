"""The steps of on_device.py that are no tests: each runs in a process of its own.

    python3 tests/gpu/device_steps.py NAME [ARGUMENT...]

The last line that a step prints is its result in words.
"""

from __future__ import annotations

import configparser
import glob
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from on_device import EMULATE, LACKS, PYTEST, ROOT

sys.path.append(str(ROOT / "benchmarks"))
SOLVER = "models/lenet/lenet_quick_solver.prototxt"
LEAST_ACCURACY = 0.985  # LeNet's on the CPU with this solver is above it
# Packages whose versions are shown, in addition to the requirements of setup.cfg.
SHOWN = "cupy-cuda12x", "cupy-cuda13x", "ml_dtypes", "nvidia-cudnn-frontend", "nvidia-cudnn-cu12"
SHOWN += "nvidia-cudnn-cu13", "nvidia-cuda-nvrtc", "torch", "mpi4py", "pytest", "pytest-xdist"


def lack(words: str) -> None:
    """End the step because something is missing."""
    print(words)
    raise SystemExit(LACKS)


def show_gpu() -> str:
    """Open the GPU; return its name and the libraries."""
    gpu = _gpu()
    return f"GPU 0: {gpu.name}; {', '.join(gpu.libraries())}"


def _gpu() -> Any:
    from pycaffe_dist.errors import DeviceError
    from pycaffe_dist.gpu.finding import open_gpu

    try:
        return open_gpu(0)
    except DeviceError as error:
        raise SystemExit(str(error)) from None


def versions() -> str:
    """Check the versions that setup.cfg requires; use Numba; show all versions and libcudnn."""
    from packaging.requirements import Requirement

    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    wrong = []
    needs = [
        Requirement(text) for text in config["options"]["install_requires"].split("\n") if text
    ]
    for need in needs:
        found = _version(need.name)
        if found is None or not need.specifier.contains(found, prereleases=True):
            wrong.append(f"{need} is required, found {found or 'none'}")
    known = {name: _version(name) for name in (*(need.name for need in needs), *SHOWN)}
    print(f"Python {sys.version.split()[0]}")
    print("\n".join(f"{name} {found or 'is not installed'}" for name, found in known.items()))
    import numba

    assert numba.njit(lambda x: x + 1)(1) == 2
    print(show_gpu())
    if not os.environ.get(EMULATE):
        wrong += _cudnn_libraries()
    if wrong:
        raise SystemExit("\n".join(wrong))
    return "all required versions are there, and Numba compiles"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cudnn_libraries() -> list[str]:
    """Print the files of cuDNN that the front end and PyTorch load; return what is wrong."""
    wrong = []
    for module, code in (
        ("cudnn", "import cudnn; cudnn.create_handle(); print(cudnn.backend_version())"),
        ("torch", "import torch; torch.zeros(1).cuda(); print(torch.backends.cudnn.version())"),
    ):
        code += "; print({x.split()[-1] for x in open('/proc/self/maps') if 'libcudnn.so' in x})"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        lines = (done.stdout or done.stderr).strip().splitlines()[-2:]
        print(f"{module}: {' '.join(lines)}")
        if done.returncode:
            wrong.append(f"{module} cannot use cuDNN: {lines[-1] if lines else 'no reason given'}")
    return wrong


def convolution() -> str:
    """Compare and time a convolution: by our own kernels, by the front end, by PyTorch."""
    from pycaffe_dist import device
    from pycaffe_dist.kernels.convolution import (
        Convolution,
        ConvolutionGeometry,
        LibraryConvolution,
    )

    gpu, emulated = _gpu(), bool(os.environ.get(EMULATE))
    n, c, size = (1, 4, 12) if emulated else (64, 128, 56)
    x_shape, w_shape = (n, c, size, size), (c, c, 3, 3)
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(shape, np.float32) for shape in (x_shape, w_shape))
    flops, found = 2.0 * x.size * w.size / c, {}
    geometry = ConvolutionGeometry((3, 3), (1, 1), (1, 1), (1, 1), 1)
    with device.use(gpu):
        on_gpu, y = [gpu.to_device(each) for each in (x, w)], gpu.empty(x_shape, np.float32)
        for cls in (Convolution, LibraryConvolution):
            plan = cls(x_shape, w_shape, geometry, np.float32)

            def forward(plan: Any = plan) -> None:
                plan.forward(*on_gpu, None, y)

            print(f"{cls.__name__}: {flops / _seconds(forward, gpu) / 1e12:.2f} TFLOP/s")
            found[cls.__name__] = gpu.to_host(y)
    if not emulated:
        found["PyTorch"] = _by_torch(x, w, flops)
    for reason, calls in gpu.fallbacks.items():
        print(f"{calls} calls fell back: {reason}")
    first, *others = found.values()
    worst = max(float(np.abs(other - first).max()) for other in others)
    assert worst < 1e-2, f"they differ by {worst}"
    assert not gpu.fallbacks, "cuDNN refused the convolution"
    return f"{', '.join(found)} agree to {worst:.1e}"


def _by_torch(x: np.ndarray, w: np.ndarray, flops: float) -> np.ndarray:
    import torch

    torch.backends.cudnn.allow_tf32 = False
    on_gpu = [torch.from_numpy(each).cuda() for each in (x, w)]

    def forward() -> Any:
        return torch.nn.functional.conv2d(*on_gpu, padding=1)

    print(f"PyTorch: {flops / _seconds(forward, torch.cuda) / 1e12:.2f} TFLOP/s")
    return forward().cpu().numpy()


def _seconds(run: Callable[[], object], gpu: Any, times: int = 10) -> float:
    """Return the mean seconds of a call, after two that do not count."""
    for count in (2, times):
        gpu.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            run()
        gpu.synchronize()
    return (time.perf_counter() - start) / times


def compile_all() -> str:
    """Compile every source for all types, in parallel; the caches keep the results."""
    from test_gpu_sources import SOURCES

    start, failed = time.perf_counter(), []
    work = [(path, index) for path in SOURCES for index in range(4)]
    context = get_context("spawn")
    with ProcessPoolExecutor(min(16, os.cpu_count() or 1), mp_context=context) as pool:
        for (path, index), error in zip(work, pool.map(_compile, *zip(*work))):
            if error:
                failed.append(f"{path.name}, types {index}")
                print(f"{failed[-1]}: {error}", flush=True)
    if failed:
        raise SystemExit(f"not compiled: {'; '.join(failed)}")
    return f"{len(work)} modules compiled in {time.perf_counter() - start:.1f} s"


def _compile(path: Path, index: int) -> str:
    """Compile a source for one pair of types; return the error, empty if there is none."""
    from test_gpu_sources import STORED

    from pycaffe_dist import device
    from pycaffe_dist.kernels.cuda.source import parse

    data, parameter = STORED[index]
    source = parse(path)
    binding = {name: data if name == "T" else parameter for name in source.types}
    gpu = _gpu()
    try:
        with device.use(gpu):
            for signature in source.signatures.values():
                gpu.function(source, signature, binding)
    except Exception as error:  # whatever it is, the other sources are compiled
        return f"{type(error).__name__}: {error}"
    return ""


def accuracy() -> str:
    """Train LeNet for 1,000 iterations on MNIST; it should be as accurate as on the CPU."""
    for script in ("get_mnist.sh", "create_mnist.sh"):
        done = subprocess.run([f"data/mnist/{script}"], cwd=ROOT)
        if done.returncode:
            lack(f"there is no MNIST: {script} failed")
    solver = ROOT / SOLVER
    if os.environ.get(EMULATE):
        solver = Path(tempfile.mkdtemp()) / "short.prototxt"
        text = (ROOT / SOLVER).read_text()
        short = {"max_iter": 3, "test_iter": 1, "test_interval": 3, "snapshot": 0}
        for field, value in short.items():
            text = re.sub(rf"(?m)^{field}: \d+", f"{field}: {value}", text)
        solver.write_text(text)
    command = [sys.executable, "-m", "pycaffe_dist", "train", f"--solver={solver}", "--gpu=0"]
    output, environment = "", {**os.environ, "PCAFFE_CUDNN_PLANS": "timed"}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        for line in process.stdout or ():
            print(line, end="")
            output += line
    found = re.findall(r"accuracy = ([\d.]+)", output)
    assert process.returncode == 0, f"status {process.returncode}"
    assert found, "no accuracy was printed"
    if os.environ.get(EMULATE):
        return f"accuracy {found[-1]} after 3 iterations"
    assert float(found[-1]) >= LEAST_ACCURACY, f"{found[-1]} is less than {LEAST_ACCURACY}"
    return f"accuracy {found[-1]}"


def ceilings() -> str:
    """Measure what a copy and matrix products reach on this device."""
    from pycaffe_dist import device

    gpu, emulated = _gpu(), bool(os.environ.get(EMULATE))
    size, count = (128, 1 << 16) if emulated else (8192, 1 << 28)
    rows = []
    with device.use(gpu):
        source, target = gpu.zeros(count, np.float32), gpu.empty(count, np.float32)

        def copy() -> None:
            target[...] = source

        rows.append(f"copy {2 * source.nbytes / _seconds(copy, gpu) / 1e9:.0f} GB/s")
        rng = np.random.default_rng(1)
        values = rng.standard_normal((size, size), np.float32)
        for name, tf32 in (("float32", False), ("float32", True), ("float16", False)):
            a = gpu.to_device(values.astype(name))
            c = gpu.empty(a.shape, a.dtype)

            def product(a: Any = a, c: Any = c, tf32: bool = tf32) -> None:
                gpu.gemm(a, a, c, tf32=tf32)

            rate = 2 * size**3 / _seconds(product, gpu) / 1e12
            rows.append(f"{'TF32' if tf32 else name} {rate:.1f} TFLOP/s")
    return ", ".join(rows)


def plans() -> str:
    """Show the choices among cuDNN's plans and our own kernels that are kept on this machine."""
    from pycaffe_dist.kernels.cuda.plans import OURS, folder

    kept = [json.loads(path.read_text()) for path in sorted(folder().glob("*.json"))]
    if not kept:
        lack("no plans of cuDNN were timed")
    for choice in sorted(kept, key=lambda choice: choice["operation"]):
        times = sorted(choice["seconds"].items(), key=lambda item: item[1])
        print(choice["operation"])
        print("    " + ", ".join(f"{name} {1e3 * seconds:.3f} ms" for name, seconds in times))
    own = sum(choice["plan"] == OURS for choice in kept)
    return f"{len(kept)} operations, of which {own} run on our own kernels"


def watch(tool: str) -> str:
    """Run the kernels' own tests, in one process, under a tool of compute-sanitizer."""
    program = find_tool("compute-sanitizer", "nvidia/cuda_sanitizer_api/bin")
    if program is None:
        lack(f"there is no compute-sanitizer: {tool} was NOT run")
    command = [program, f"--tool={tool}", "--error-exitcode=9", sys.executable, *PYTEST]
    paths = map(str, sorted((ROOT / "tests" / "gpu").glob("test_gpu_kernels_*.py")))
    # A memory pool would hide accesses beside an array from memcheck.
    extra = {"PCAFFE_TEST_NO_POOL": "1"} if tool == "memcheck" else {}
    environment = {**os.environ, "PCAFFE_TEST_GPU": "1", **extra}
    done = subprocess.run([*command, *paths], cwd=ROOT, env=environment)
    if done.returncode:
        raise SystemExit(f"{tool} ended with {done.returncode}")
    return f"{tool} found nothing"


def profile() -> str:
    """Find the five kernels that take most of ResNet-50's time, and profile them by ncu."""
    seconds = _kernel_times(*(("LeNet", 4) if os.environ.get(EMULATE) else ("ResNet-50", 64)))
    slowest = sorted(seconds, key=seconds.__getitem__, reverse=True)
    for name in slowest[:20]:
        print(f"{name:32}{1e3 * seconds[name]:9.3f} ms")
    program = find_tool("ncu")
    if program is None:
        lack(f"there is no ncu; the slowest kernels: {', '.join(slowest[:5])}")
    command = [program, "--clock-control=none", "--launch-count=15"]
    command += [f"--kernel-name=regex:^({'|'.join(slowest[:5])})$"]
    for section in ("SpeedOfLight", "MemoryWorkloadAnalysis", "Occupancy", "WarpStateStats"):
        command += ["--section", section]
    done = subprocess.run([*command, sys.executable, __file__, "iterate"], cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"ncu ended with {done.returncode}")
    return f"profiled: {', '.join(slowest[:5])}"


def iterate() -> str:
    """Run an iteration of ResNet-50, for ncu."""
    return f"{len(_kernel_times('ResNet-50', 64))} kernels"


def _kernel_times(net: str, batch: int) -> dict[str, float]:
    """Return the seconds of an iteration in each kernel; the host waits after each launch."""
    from dataclasses import replace

    from cpu_ours import make_solver
    from gpu import GPU_NETS

    gpu, seconds = _gpu(), dict[str, float]()
    function = gpu.function

    def timed(source: Any, signature: Any, binding: Any) -> Callable[..., None]:
        launch = function(source, signature, binding)

        def run(*arguments: Any) -> None:
            gpu.synchronize()
            start = time.perf_counter()
            launch(*arguments)
            gpu.synchronize()
            taken = time.perf_counter() - start
            seconds[signature.name] = seconds.get(signature.name, 0.0) + taken

        return run

    gpu.function = timed
    solver = make_solver(replace(GPU_NETS[net], batch=batch), ROOT / "models", gpu)
    solver.step(1)  # compiles
    seconds.clear()
    solver.step(1)
    return seconds


def find_tool(name: str, package: str = "none") -> str | None:
    """Return a program of CUDA's: on the path, in CUDA's folder, or in a package of NVIDIA's."""
    found = shutil.which(name)
    if found:
        return found
    roots = [os.environ.get(variable) for variable in ("CUDA_PATH", "CUDA_HOME")]
    folders = [Path(root) / "bin" for root in (*roots, "/usr/local/cuda") if root]
    folders += [Path(entry) / package for entry in sys.path if entry]
    folders += map(Path, sorted(glob.glob("/opt/nvidia/nsight-compute/*")))
    programs = [folder / name for folder in folders]
    return next((str(path) for path in programs if os.access(path, os.X_OK)), None)


STEPS: dict[str, Callable[..., str]] = {
    "gpu": show_gpu,
    "versions": versions,
    "convolution": convolution,
    "compile": compile_all,
    "accuracy": accuracy,
    "ceilings": ceilings,
    "plans": plans,
    "watch": watch,
    "profile": profile,
    "iterate": iterate,
}

if __name__ == "__main__":
    print(STEPS[sys.argv[1]](*sys.argv[2:]))
