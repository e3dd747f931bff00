"""Show what pcaffe can compute with here: cores, GPUs, MPI and versions."""

from __future__ import annotations

import argparse
import os
import platform
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from pycaffe_dist.cli.flags import FlagParser, add_caffe_flags
from pycaffe_dist.errors import DeviceError
from pycaffe_dist.log import logger

_PACKAGES = ("numpy", "numba", "llvmlite", "protobuf", "lmdb", "plyvel", "h5py", "mpi4py", "cupy")
# The widest first.
_SIMD_LEVELS = ("avx512f", "avx2", "avx", "sse4_2", "neon", "asimd")


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags."""
    add_caffe_flags(parser, ("gpu",), gpu="show these GPUs: numbers, or 'all' (when not given)")


def run(options: argparse.Namespace) -> int:
    """Log what was found; raises DeviceError for a GPU that is not there."""
    for line in chain(_cpu(), _gpus(options.gpu), _mpi(), _versions()):
        logger.info(line)
    return 0


def _cpu() -> Iterator[str]:
    from pycaffe_dist import device

    info = _proc_cpuinfo()
    model = re.search(r"^model name\s*: (.*)$", info, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*: (.*)$", info, re.MULTILINE)
    known = set(flags.group(1).split()) if flags else set()
    simd = next((level for level in _SIMD_LEVELS if level in known), "not known")
    yield f"CPU:                {model.group(1) if model else platform.processor() or 'not known'}"
    yield f"Cores:              {os.cpu_count()}, of which this process may use {device.threads()}"
    yield f"SIMD:               {simd}{' with FMA' if 'fma' in known else ''}"


def _proc_cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""


def _gpus(wanted: str) -> Iterator[str]:
    try:
        import cupy

        count = cupy.cuda.runtime.getDeviceCount()
        missing = "no CUDA device was found"
    except ImportError:
        count, missing = 0, "CuPy is not installed (pip install 'pycaffe-dist[gpu]')"
    except Exception as error:  # CuPy raises what CUDA says, from any of its modules
        count, missing = 0, f"CUDA does not answer: {error}"
    numbers = range(count) if wanted in ("", "all") else [_number(n) for n in wanted.split(",")]
    if not numbers:
        yield f"GPUs:               none: {missing}"
    for number in numbers:
        if number not in range(count):
            found = f"the {count} here count from 0" if count else missing
            raise DeviceError(f"there is no GPU {number}: {found}")
        properties = cupy.cuda.runtime.getDeviceProperties(number)
        name, memory = properties["name"].decode(), properties["totalGlobalMem"] / 2**30
        version = f"{properties['major']}.{properties['minor']}"
        yield f"GPU {number}:              {name}, {memory:.1f} GiB, compute capability {version}"


def _number(text: str) -> int:
    if not text.strip().isdigit():
        raise DeviceError(f"a GPU is given by its number, not by '{text}'")
    return int(text)


def _mpi() -> Iterator[str]:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        yield f"MPI:                none: {error}"
        return
    levels = {
        MPI.THREAD_SINGLE: "single",
        MPI.THREAD_FUNNELED: "funneled",
        MPI.THREAD_SERIALIZED: "serialized",
        MPI.THREAD_MULTIPLE: "multiple",
    }
    library = MPI.Get_library_version().strip("\0\n ").split(",")[0].splitlines()[0]
    yield f"MPI:                {library}, thread level {levels[MPI.Query_thread()]}"
    yield f"Ranks:              {MPI.COMM_WORLD.size}"


def _versions() -> Iterator[str]:
    from importlib import metadata  # slow to import, and every command's module is for --help

    found = []
    for package in _PACKAGES:
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    yield f"Python:             {platform.python_version()} on {platform.platform()}"
    yield f"Packages:           {', '.join(found)}"
