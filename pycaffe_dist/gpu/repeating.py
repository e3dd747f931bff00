"""Work that a GPU repeats: enqueued call by call at first, then launched as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from pycaffe_dist.gpu.base import GPU, Graph
from pycaffe_dist.gpu.watch import Watch
from pycaffe_dist.log import DETAIL, logger


class _Mode(Enum):
    """How a round is run: the first modes follow each other, EACH is for all other rounds."""

    FIRST = 0  # allocates, compiles and chooses algorithms
    WATCHED = 1  # shows what the work uses; its arrays come from the graphs' memory
    SETTLED = 2  # the same, while the arrays of the last round that layers keep are still there
    GRAPH = 3  # captured at first
    EACH = 4


class _Part:
    """A function that is repeated, the arrays that it uses, and its graph."""

    def __init__(self, work: Callable[[], None]):
        self.work = work
        self.watch = Watch()
        self.graph: Graph | None = None


class Repeating:
    """Parts of an iteration that run one after the other, each as one graph after three rounds.

    ``memory`` is a `GPU.graph_memory`, which other objects may share.  A round begins anew if the
    ``signature`` given to `begin`, or the memory of a storage, has changed.  ``name`` is for the
    log.
    """

    def __init__(self, gpu: GPU, memory: Any, name: str, works: Sequence[Callable[[], None]]):
        self._gpu, self._memory, self._name, self._works = gpu, memory, name, works
        self._signature: Any = None
        self._mode = _Mode.EACH
        self.why = ""  # there is no graph
        self._forget()

    def _forget(self) -> None:
        self._parts = [_Part(work) for work in self._works]
        self._next = _Mode.FIRST

    @property
    def is_captured(self) -> bool:
        """Whether there are graphs of all parts."""
        return all(part.graph is not None for part in self._parts)

    def begin(self, signature: Any = None) -> None:
        """Decide how the round is run that follows: `run` for each part, in their order."""
        if self.why:
            if self._mode is not _Mode.EACH:
                self._forget()
            self._mode = _Mode.EACH
            return
        if signature != self._signature or not self._is_current():
            self._signature = signature
            self._forget()
        self._mode = self._next
        self._next = _Mode(min(self._mode.value + 1, _Mode.GRAPH.value))

    def _is_current(self) -> bool:
        return all(part.watch.is_current() for part in self._parts)

    def run(self, index: int) -> None:
        """Run part ``index``, with the GPU as the current device."""
        part = self._parts[index]
        if self.why or self._mode in (_Mode.FIRST, _Mode.EACH):
            part.work()
        elif self._mode in (_Mode.WATCHED, _Mode.SETTLED):
            part.watch = Watch()
            self._run_watched(part)
        else:
            part.watch.prepare()
            if part.graph is None:
                self._capture(part)
            if part.graph is not None:
                part.graph.launch()
                self._gpu.check_again(part.watch)

    def _run_watched(self, part: _Part) -> None:
        with self._gpu.watched(part.watch), self._gpu.allocating_from(self._memory):
            part.work()
        self._gpu.check_again(part.watch)

    def _capture(self, part: _Part) -> None:
        part.watch.start_again()
        try:
            with self._gpu.watched(part.watch):
                part.graph = self._gpu.capture(self._memory, part.work)
        except Exception as error:  # of CuPy, CUDA or a library; what is wrong shows in this run
            self.why = f"No CUDA graph of {self._name}: {error}"
            logger.log(DETAIL, "%s", self.why)
            part.watch.start_again()
            self._run_watched(part)
            return
        if part is self._parts[-1]:
            logger.log(DETAIL, "CUDA graph of %s captured", self._name)
