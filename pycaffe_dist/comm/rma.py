"""Memory that other ranks write to or share: MPI's windows, kept until the cluster is closed.

Only all ranks together can make or free a window. An exchange that ends, perhaps because its rank
fails, must not wait: it gives its windows back for the next exchange.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pycaffe_dist.errors import ClusterError

_SHARED_MEMORY = Path("/dev/shm")
_MIB = 1 << 20


class Window(NamedTuple):
    """An MPI window, this process's memory in it (bytes), and its set of ranks."""

    win: Any
    memory: np.ndarray
    kind: str


class Windows:
    """The windows of a rank.  ``call`` runs a function in the thread that talks to MPI.

    All ranks of a communicator ask for the same sizes in the same order, from their main threads.
    """

    def __init__(self, mpi: Any, call: Callable[[Callable[[], Any], str], Any], local_ranks: int):
        self._mpi, self._call, self._local_ranks = mpi, call, local_ranks
        self._idle: list[Window] = []
        self._made: list[Window] = []

    def remote(self, communicator: Any, nbytes: int) -> Window:
        """Return a window of ``nbytes`` on every rank, to which all others may put.

        Raises ClusterError when there is no room, or when MPI cannot write to a window without
        calls of its owner.
        """
        if self._local_ranks > 1:
            self._require_room(nbytes * self._local_ranks, "one_sided")
        return self._take("remote", nbytes, lambda: self._make_remote(communicator, nbytes))

    def shared(self, communicator: Any, nbytes: int) -> Window:
        """Return ``nbytes`` that the ranks of ``communicator``, all on one host, share."""
        self._require_room(nbytes, "hierarchical")
        return self._take("shared", nbytes, lambda: self._make_shared(communicator, nbytes))

    def give_back(self, window: Window) -> None:
        """Give a window back for other exchanges, without waiting."""
        self._idle.append(window)

    def free(self) -> None:
        """Free all windows, in the thread that talks to MPI; all ranks do it together."""
        for window in self._made:
            window.win.Unlock_all()
            window.win.Free()
        self._made.clear()
        self._idle.clear()

    def _take(self, kind: str, nbytes: int, make: Callable[[], tuple[Any, np.ndarray]]) -> Window:
        for number, idle in enumerate(self._idle):
            if idle.kind == kind and idle.memory.nbytes >= nbytes:
                return self._idle.pop(number)
        try:
            win, memory = self._call(make, "making a window")
        except self._mpi.Exception as error:
            raise ClusterError(
                f"MPI cannot make a window of {nbytes / _MIB:.1f} MiB ({error}); "
                "use --exchange=allreduce"
            ) from None
        self._made.append(Window(win, memory, kind))
        return self._made[-1]

    def _make_remote(self, communicator: Any, nbytes: int) -> tuple[Any, np.ndarray]:
        mpi = self._mpi
        win = mpi.Win.Allocate(max(1, nbytes), 1, comm=communicator)
        if win.Get_attr(mpi.WIN_MODEL) != mpi.WIN_UNIFIED:
            raise ClusterError(
                "this MPI keeps what others put apart from what a rank reads (its windows' memory "
                "model is not unified): use --exchange=allreduce"
            )
        win.Lock_all(mpi.MODE_NOCHECK)
        return win, np.frombuffer(win.tomemory(), np.uint8)

    def _make_shared(self, communicator: Any, nbytes: int) -> tuple[Any, np.ndarray]:
        mpi = self._mpi
        first = communicator.Get_rank() == 0
        win = mpi.Win.Allocate_shared(nbytes if first else 0, 1, comm=communicator)
        win.Lock_all(mpi.MODE_NOCHECK)
        memory, _ = win.Shared_query(0)
        return win, np.frombuffer(memory, np.uint8, nbytes)

    def _require_room(self, nbytes: int, exchange: str) -> None:
        """Raise ClusterError when the host's shared memory has less room."""
        if not _SHARED_MEMORY.is_dir():
            return
        state = os.statvfs(_SHARED_MEMORY)
        free = state.f_bavail * state.f_frsize
        if nbytes > free:
            raise ClusterError(
                f"--exchange={exchange} needs {nbytes / _MIB:.0f} MiB in {_SHARED_MEMORY}, and "
                f"{free / _MIB:.0f} MiB are free: make it larger (docker run --shm-size=…) or use "
                "--exchange=allreduce"
            )
