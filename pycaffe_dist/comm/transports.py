"""The transports of the ranks' messages, as far as the operating system shows them."""

from __future__ import annotations

import ctypes
import os
import re
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_PROC = Path("/proc/self")
_INFINIBAND = Path("/sys/class/infiniband")
# Files for the messages between ranks of one host, by the names that MPI libraries give them.
_SEGMENT = re.compile(
    r"/dev/shm/\S*(?:sm_segment|vader_segment|mpich|ucx|psm|Intel_MPI)\S*|/memfd:ucx"
)
_ESTABLISHED = "01"
# MPICH's name of CUDA among the kinds of GPUs.
_MPICH_CUDA = 0
# Variables that switch the support of GPUs on, in Cray's MPICH and in MVAPICH2.
_SWITCHES = ("MPICH_GPU_SUPPORT_ENABLED", "MV2_USE_CUDA")
# Names of libraries that send messages; an MPI library may use several.
_LIBRARIES = {"libucp": "UCX", "libfabric": "libfabric", "libpsm2": "PSM2"}


def in_use(maps: str | None = None, files: Iterable[str] | None = None) -> list[str]:
    """Return the transports that this process has opened, once it has exchanged messages.

    ``maps`` and ``files`` are Linux's lists of its memory and its open files; on other systems the
    result is empty.
    """
    maps = _read(_PROC / "maps") if maps is None else maps
    files = list(_open_files() if files is None else files)
    found = []
    if _SEGMENT.search(maps):
        found.append("shared memory")
    devices = sorted(
        {f.rpartition("/")[2] for f in files if f.startswith("/dev/infiniband/uverbs")}
    )
    if devices:
        found.append(f"InfiniBand ({', '.join(devices)})")
    peers = sorted(set(_peers(files)))
    if peers:
        found.append(f"TCP (to {', '.join(peers)})")
    return found


def libraries(maps: str | None = None) -> list[str]:
    """Return the libraries for messages that the MPI library has loaded, in use or not."""
    maps = _read(_PROC / "maps") if maps is None else maps
    return [name for library, name in _LIBRARIES.items() if f"/{library}" in maps]


def infiniband_devices() -> list[str]:
    """Return the names of this host's InfiniBand (or RoCE) devices."""
    return sorted(device.name for device in _INFINIBAND.iterdir()) if _INFINIBAND.is_dir() else []


def cuda_aware(library: Any = None) -> bool | None:
    """Tell whether the started MPI library sends from a GPU's memory; None if it does not say.

    Open MPI, MVAPICH2 and MPICH have functions for it; without them, as in Cray's MPICH, the user's
    setting counts.  ``library`` is the MPI library in this process.
    """
    if library is None:
        found = re.search(r"(/\S*/libmpi(?:ch|_\w+)?\.so\S*)", _read(_PROC / "maps"))
        try:
            library = ctypes.CDLL(found.group(1) if found else None)
        except OSError:
            return None
    if (query := getattr(library, "MPIX_Query_cuda_support", None)) is not None:
        return bool(query())
    if (query := getattr(library, "MPIX_GPU_query_support", None)) is not None:
        answer = ctypes.c_int(0)
        return query(_MPICH_CUDA, ctypes.byref(answer)) == 0 and bool(answer.value)
    return True if any(os.environ.get(name) == "1" for name in _SWITCHES) else None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _open_files() -> Iterator[str]:
    folder = _PROC / "fd"
    for name in os.listdir(folder) if folder.is_dir() else ():
        try:
            yield os.readlink(folder / name)
        except OSError:
            continue


def _peers(files: list[str]) -> Iterator[str]:
    """Return the other hosts' addresses to which these sockets are connected."""
    ours = {f[len("socket:[") : -1] for f in files if f.startswith("socket:[")}
    for table in ("net/tcp", "net/tcp6"):
        for line in _read(_PROC / table).splitlines()[1:]:
            fields = line.split()
            if fields[3] == _ESTABLISHED and fields[9] in ours:
                local, remote = (_address(fields[column]) for column in (1, 2))
                if local != remote and not remote.startswith("127."):
                    yield remote


def _address(text: str) -> str:
    """Return an address of Linux's tables: words in the machine's own order of bytes, in hex."""
    raw = bytes.fromhex(text.partition(":")[0])
    words = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
    if len(words) == 16 and words.startswith(bytes(10) + b"\xff\xff"):
        words = words[12:]
    return socket.inet_ntop(socket.AF_INET if len(words) == 4 else socket.AF_INET6, words)
