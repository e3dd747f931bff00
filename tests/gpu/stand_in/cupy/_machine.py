"""What the parts of the stand-in share: its GPUs, and what CUDA's addresses stand for."""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from operator import index
from typing import Any

from pycaffe_dist.gpu.emulated import EmulatedGPU
from pycaffe_dist.gpu.emulated_graph import recording

# By their addresses, while somebody keeps them.
streams: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
functions: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
# Arrays in pinned memory, by their identity.
pinned: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

_numbers = itertools.count(1)


class _Current(threading.local):
    device = 0


here = _Current()


class CUDARuntimeError(RuntimeError):
    """An error of CUDA's runtime."""


def new_address() -> int:
    """Return an address of something of CUDA's, which the host cannot read."""
    return 0x7F0000000000 + 256 * next(_numbers)


@functools.cache
def _gpu(device: int) -> EmulatedGPU:
    return EmulatedGPU(device)


def gpu() -> EmulatedGPU:
    """Return the emulation of the calling thread's GPU."""
    return _gpu(here.device)


def check_stream(stream: int) -> None:
    """Raise CUDARuntimeError unless work may be enqueued on the stream at an address."""
    if stream == 0:
        raise CUDARuntimeError("work on CUDA's default stream, which none of our streams wait for")
    known = streams.get(index(stream))
    if known is None or known.device_id != here.device:
        raise CUDARuntimeError("cudaErrorInvalidResourceHandle: no stream of this GPU")
    if (recording() is not None) != known._is_recorded:
        raise CUDARuntimeError("work on another stream than the one that is captured")
