"""NCCL for emulated GPUs: CuPy's interface, over sockets between processes of one host.

Nothing is enqueued: a call returns when all ranks have made it.  Rank 0 adds in the ranks' order.
"""

from __future__ import annotations

import ctypes
import pickle
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

import numpy as np

available = True
NCCL_SUM = 0
NCCL_FLOAT16, NCCL_FLOAT32, NCCL_FLOAT64 = 6, 7, 8
_DTYPES = {NCCL_FLOAT16: "float16", NCCL_FLOAT32: "float32", NCCL_FLOAT64: "float64"}

# The listening sockets of this process's rank 0, by the ids that it has given away.
_listeners: dict[bytes, Listener] = {}


class NcclError(RuntimeError):
    """An error of a call."""


def get_version() -> int:
    """Return the version of NCCL that this emulates."""
    return 22501


def get_unique_id() -> bytes:
    """Return an id by which the ranks of a new communicator find each other."""
    listener = Listener(family="AF_UNIX", backlog=64)
    identity = pickle.dumps(listener.address)
    _listeners[identity] = listener
    return identity


class NcclCommunicator:
    """One rank of a communicator; all ranks make theirs together."""

    def __init__(self, ndev: int, commId: bytes, rank: int):
        self._others: list[Connection] = []  # rank 0 has one to each other rank, in their order
        self._first: Connection | None = None  # the others have one to rank 0
        if rank:
            self._first = Client(pickle.loads(commId))
            self._first.send(rank)
            return
        with _listeners.pop(commId) as listener:
            found = [listener.accept() for _ in range(1, ndev)]
        self._others = [link for _, link in sorted((link.recv(), link) for link in found)]

    def allReduce(
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int
    ) -> None:
        """Set ``recvbuf`` to the sum over ranks of ``sendbuf``: addresses of ``count`` numbers."""
        if op != NCCL_SUM or datatype not in _DTYPES:
            raise NcclError("NCCL_ERROR_INVALID_ARGUMENT: invalid argument")
        mine, total = (_numbers(address, count, datatype) for address in (sendbuf, recvbuf))
        if self._first is not None:
            self._first.send_bytes(mine.data)
            self._first.recv_bytes_into(total.data)
            return
        total[...] = mine
        for link in self._others:
            total += np.frombuffer(link.recv_bytes(), total.dtype)
        for link in self._others:
            link.send_bytes(total.data)

    def check_async_error(self) -> None:
        """Do nothing: errors appear in the calls."""

    def destroy(self) -> None:
        """Leave the communicator."""
        for link in [*self._others, *([self._first] if self._first else [])]:
            link.close()
        self._others, self._first = [], None


def _numbers(address: int, count: int, datatype: int) -> np.ndarray:
    """Return the numbers at an address, for reading and writing."""
    dtype = np.dtype(_DTYPES[datatype])
    memory: Any = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
    return np.ndarray(count, dtype, memory)
