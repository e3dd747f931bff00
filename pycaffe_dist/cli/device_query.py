"""Show the cores, GPUs, MPI and versions that pcaffe can use here."""

from __future__ import annotations

import argparse
import os
import platform
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pycaffe_dist.cli.flags import FlagParser, add_caffe_flags
from pycaffe_dist.errors import DeviceError
from pycaffe_dist.log import logger

if TYPE_CHECKING:
    from pycaffe_dist.comm.mpi import MPICluster
    from pycaffe_dist.device import Device

_PACKAGES = ("numpy", "numba", "llvmlite", "protobuf", "lmdb", "plyvel", "h5py", "mpi4py")
# The widest first.
_SIMD_LEVELS = ("avx512f", "avx2", "avx", "sse4_2", "neon", "asimd")
_AWARENESS = {True: "CUDA-aware", False: "not CUDA-aware", None: "CUDA awareness not known"}


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags."""
    add_caffe_flags(parser, ("gpu",), gpu="show these GPUs: numbers, or 'all' (when not given)")


def run(options: argparse.Namespace) -> int:
    """Log the machine's devices and versions; raises DeviceError for a missing GPU."""
    for line in chain(_cpu(), _gpus(options.gpu), _mpi(), _versions()):
        logger.info(line)
    return 0


def _cpu() -> Iterator[str]:
    from pycaffe_dist.threads import thread_count

    info = _proc_cpuinfo()
    model = re.search(r"^model name\s*: (.*)$", info, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*: (.*)$", info, re.MULTILINE)
    known = set(flags.group(1).split()) if flags else set()
    simd = next((level for level in _SIMD_LEVELS if level in known), "not known")
    yield f"CPU:                {model.group(1) if model else platform.processor() or 'not known'}"
    yield f"Cores:              {os.cpu_count()}, of which this process may use {thread_count()}"
    yield f"SIMD:               {simd}{' with FMA' if 'fma' in known else ''}"


def _proc_cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""


def _gpus(wanted: str) -> Iterator[str]:
    from pycaffe_dist.gpu.choice import gpu_numbers
    from pycaffe_dist.gpu.finding import count, open_gpu

    try:
        known = count()
    except DeviceError as error:
        if wanted not in ("", "all"):
            raise DeviceError(f"there is no GPU {wanted}: {error}") from None
        yield f"GPUs:               none: {error}"
        return
    for number in range(known) if wanted in ("", "all") else gpu_numbers(wanted):
        gpu = open_gpu(number)
        memory = gpu.memory()
        yield (
            f"GPU {number}:              {gpu.name}, {memory.total / 2**30:.1f} GiB of which "
            f"{memory.free / 2**30:.1f} are free, compute capability {gpu.capability}"
        )
    for line in open_gpu(0).libraries():
        yield f"                    {line}"


def _mpi() -> Iterator[str]:
    from pycaffe_dist.calibration.link import link_of
    from pycaffe_dist.comm import transports
    from pycaffe_dist.comm.cluster import detect
    from pycaffe_dist.launch import environment

    try:
        from pycaffe_dist.comm.mpi import abilities, library

        name = library()
    except (ImportError, RuntimeError) as error:
        if environment.find():
            raise
        yield f"MPI:                none: {error}"
        return
    if environment.find() is None:
        level, aware = abilities()
        yield f"MPI:                {name}, thread level {level}, {_AWARENESS[aware]}"
        yield "Ranks:              1 (mpirun starts several, and shows what joins them)"
        return
    with detect() as found:
        cluster = cast("MPICluster", found)  # there is a launcher
        link = link_of(cluster)  # its messages make MPI open its transports
        mine = ", ".join(transports.in_use()) or "not known"
        loaded = transports.libraries()
        devices = transports.infiniband_devices()
        mine += f"; {' and '.join(loaded)} loaded" if loaded else ""
        mine += f"; InfiniBand devices: {', '.join(devices)}" if devices else ""
        level, aware = abilities()
        mine += f", {_AWARENESS[aware]}"
        of_all = [text.decode() for text in cluster.gather_bytes(mine.encode())]
        yield f"MPI:                {name}, thread level {level}"
        yield (
            f"Ranks:              {cluster.size} on {len(set(cluster.hosts))} node(s); "
            f"{link.latency * 1e6:.0f} us and {link.bandwidth / 1e6:.0f} MB/s between the slowest"
        )
        yield from _between_gpus(cluster)
        for host in dict.fromkeys(cluster.hosts):
            ranks = [rank for rank, theirs in enumerate(cluster.hosts) if theirs == host]
            shown = f"{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
            for transport in dict.fromkeys(of_all[rank] for rank in ranks):
                yield f"Node {host}:".ljust(20) + f"rank{shown}: {transport}"


def _between_gpus(cluster: MPICluster) -> Iterator[str]:
    """Log the speed of exchanges between GPUs, with ranks on the GPUs of their host in turn."""
    from pycaffe_dist.calibration.gpu_link import gpu_link
    from pycaffe_dist.device import HOST
    from pycaffe_dist.gpu.finding import count, open_gpu

    try:
        mine: Device = open_gpu(cluster.local_rank % count())
    except DeviceError:
        mine = HOST
    peers = cluster.peers(mine)  # it logs what joins them, and why the rest does not
    for path in peers.paths:
        link = gpu_link(peers, path)
        yield f"  {path}:".ljust(20) + (
            f"{link.latency * 1e6:.0f} us and {link.bandwidth / 1e6:.0f} MB/s between the slowest"
        )


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
