"""Show the cores, GPUs, MPI and versions that pcaffe can use here."""

from __future__ import annotations

import argparse
import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pycaffe_dist.cli.flags import FlagParser, add_caffe_flags, add_json_flag
from pycaffe_dist.errors import DeviceError
from pycaffe_dist.table import aligned

if TYPE_CHECKING:
    from pycaffe_dist.comm.mpi import MPICluster
    from pycaffe_dist.device import Device

_PACKAGES = ("numpy", "numba", "llvmlite", "protobuf", "lmdb", "plyvel", "h5py", "mpi4py")
# The widest first.
_SIMD_LEVELS = ("avx512f", "avx2", "avx", "sse4_2", "neon", "asimd")
_AWARENESS = {True: "CUDA-aware", False: "not CUDA-aware", None: "CUDA awareness not known"}


Fact = tuple[str, str]


@dataclass(frozen=True)
class Facts:
    """What is here, by name."""

    facts: dict[str, str]

    def table(self) -> str:
        """Return a line for each fact."""
        return aligned([(f"{name}:", text) for name, text in self.facts.items()], left=(0, 1))


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags."""
    add_caffe_flags(parser, ("gpu",), gpu="show these GPUs: numbers, or 'all' (when not given)")
    add_json_flag(parser)


def run(options: argparse.Namespace) -> int:
    """Print the machine's devices and versions; raises DeviceError for a missing GPU."""
    from pycaffe_dist.results import show

    show(Facts(dict(chain(_cpu(), _gpus(options.gpu), _mpi(), _versions()))), options.json)
    return 0


def _cpu() -> Iterator[Fact]:
    from pycaffe_dist.threads import thread_count

    info = _proc_cpuinfo()
    model = re.search(r"^model name\s*: (.*)$", info, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*: (.*)$", info, re.MULTILINE)
    known = set(flags.group(1).split()) if flags else set()
    simd = next((level for level in _SIMD_LEVELS if level in known), "not known")
    yield "CPU", f"{model.group(1) if model else platform.processor() or 'not known'}"
    yield "Cores", f"{os.cpu_count()}, of which this process may use {thread_count()}"
    yield "SIMD", f"{simd}{' with FMA' if 'fma' in known else ''}"


def _proc_cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""


def _gpus(wanted: str) -> Iterator[Fact]:
    from pycaffe_dist.gpu.choice import gpu_numbers
    from pycaffe_dist.gpu.finding import count, open_gpu

    try:
        known = count()
    except DeviceError as error:
        if wanted not in ("", "all"):
            raise DeviceError(f"there is no GPU {wanted}: {error}") from None
        yield "GPUs", f"none: {error}"
        return
    for number in range(known) if wanted in ("", "all") else gpu_numbers(wanted):
        gpu = open_gpu(number)
        memory = gpu.memory()
        yield (
            f"GPU {number}",
            f"{gpu.name}, {memory.total / 2**30:.1f} GiB of which {memory.free / 2**30:.1f} are "
            f"free, compute capability {gpu.capability}",
        )
    yield "GPU libraries", "; ".join(open_gpu(0).libraries())


def _mpi() -> Iterator[Fact]:
    from pycaffe_dist.calibration.link import link_of
    from pycaffe_dist.comm import transports
    from pycaffe_dist.comm.cluster import detect
    from pycaffe_dist.launch import environment

    try:
        from pycaffe_dist.comm import library

        name = library.version()
    except (ImportError, RuntimeError) as error:
        if environment.find():
            raise
        yield "MPI", f"none: {error}"
        return
    if environment.find() is None:
        level, aware = library.abilities()
        yield "MPI", f"{name}, thread level {level}, {_AWARENESS[aware]}"
        yield "Ranks", "1 (mpirun starts several, and shows what joins them)"
        return
    with detect() as found:
        cluster = cast("MPICluster", found)  # there is a launcher
        link = link_of(cluster)  # its messages make MPI open its transports
        mine = ", ".join(transports.in_use()) or "not known"
        loaded = transports.libraries()
        devices = transports.infiniband_devices()
        mine += f"; {' and '.join(loaded)} loaded" if loaded else ""
        mine += f"; InfiniBand devices: {', '.join(devices)}" if devices else ""
        level, aware = library.abilities()
        mine += f", {_AWARENESS[aware]}"
        of_all = [text.decode() for text in cluster.gather_bytes(mine.encode())]
        yield "MPI", f"{name}, thread level {level}"
        yield (
            "Ranks",
            f"{cluster.size} on {len(set(cluster.hosts))} node(s); {link} between the slowest",
        )
        yield from _between_gpus(cluster)
        for host in dict.fromkeys(cluster.hosts):
            ranks = [rank for rank, theirs in enumerate(cluster.hosts) if theirs == host]
            shown = f"{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
            used = "; ".join(dict.fromkeys(of_all[rank] for rank in ranks))
            yield f"Node {host}", f"rank{shown}: {used}"


def _between_gpus(cluster: MPICluster) -> Iterator[Fact]:
    """Yield the speed of exchanges between GPUs, with ranks on the GPUs of their host in turn."""
    from pycaffe_dist.calibration.gpu_link import gpu_link
    from pycaffe_dist.device import HOST
    from pycaffe_dist.gpu.finding import count, open_gpu

    try:
        mine: Device = open_gpu(cluster.local_rank % count())
    except DeviceError:
        mine = HOST
    peers = cluster.peers(mine)  # it logs what joins them, and why the rest does not
    for path in peers.paths:
        yield f"GPUs by {path}", f"{gpu_link(peers, path)} between the slowest"


def _versions() -> Iterator[Fact]:
    from importlib import metadata  # slow to import, and every command's module is for --help

    found = []
    for package in _PACKAGES:
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    yield "Python", f"{platform.python_version()} on {platform.platform()}"
    yield "Packages", f"{', '.join(found)}"
