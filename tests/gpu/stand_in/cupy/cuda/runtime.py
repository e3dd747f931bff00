"""The part of CUDA's runtime that pcaffe calls, for two GPUs."""

from __future__ import annotations

import ctypes
from operator import index
from typing import Any

from cupy._machine import CUDARuntimeError, check_stream, here, pinned
from pycaffe_dist.gpu.emulated_graph import change, recording, refuse

CUDA_R_32F, CUDA_R_64F, CUDA_R_16F, CUDA_R_16BF = 0, 1, 2, 14
memcpyHostToDevice, memcpyDeviceToHost = 1, 2
_GPUS = 2


def getDeviceCount() -> int:
    return _GPUS


def getDevice() -> int:
    return here.device


def setDevice(device: int) -> None:
    if not 0 <= index(device) < _GPUS:
        raise CUDARuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
    here.device = device


def getDeviceProperties(device: int) -> dict[str, Any]:
    return {"name": f"stand-in {index(device)}".encode(), "multiProcessorCount": 1}


def deviceSynchronize() -> None:
    refuse("the host waits")


def driverGetVersion() -> int:
    return 13020


def runtimeGetVersion() -> int:
    return 13020


def memGetInfo() -> tuple[int, int]:
    return 3 << 30, 4 << 30


def memcpyAsync(dst: int, src: int, size: int, kind: int, stream: int) -> None:
    check_stream(stream)
    if kind not in (memcpyHostToDevice, memcpyDeviceToHost):
        raise CUDARuntimeError(f"cudaErrorInvalidMemcpyDirection: {kind}")
    host = src if kind == memcpyHostToDevice else dst
    if recording() is not None and not _is_pinned(host, size):
        raise CUDARuntimeError("memory that is not pinned is copied while a graph is captured")
    change(ctypes.memmove, index(dst), index(src), index(size))


def _is_pinned(address: int, size: int) -> bool:
    places = [(array.ctypes.data, array.nbytes) for array in list(pinned.values())]
    return any(begin <= address and address + size <= begin + count for begin, count in places)
