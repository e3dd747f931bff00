"""Copies from a GPU to the host, which tasks wait for without blocking their thread."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from pycaffe_dist.comm.tasks import Step, Task
from pycaffe_dist.device import Device, use

if TYPE_CHECKING:
    from pycaffe_dist.gpu.base import GPU


def wait_for(arrived: Any, rank: int) -> Task:
    """Let a task of ``rank`` go on when ``arrived()`` is true."""
    if not arrived():
        yield Step([], late=lambda: () if arrived() else (rank,))


def in_stream(gpu: GPU, name: str, task: Task) -> Task:
    """Run a task step by step, each with a stream of ``gpu`` as the current one."""
    while True:
        with ExitStack() as stack:
            stack.enter_context(use(gpu))
            stack.enter_context(gpu.stream(name))
            try:
                step = next(task)
            except StopIteration as end:
                return end.value
        yield step


class Copies:
    """Copies of arrays of ``device`` to the host, made while the device goes on computing."""

    def __init__(self, device: Device):
        self._device: Any = device
        # The arrays, kept until their copies are made, and the events that follow the copies.
        self._under_way: list[tuple[Any, Any]] = []

    def start(self, source: Any, target: np.ndarray) -> None:
        """Begin to copy ``source``, with its values after the work enqueued so far."""
        gpu = self._device
        if not gpu.is_gpu:
            target[...] = source
            return
        with use(gpu):
            # The source may be overwritten by the next layer's backward.
            kept = source.astype(target.dtype)
            made = gpu.record()
            with gpu.stream("exchange"):
                gpu.wait(made)
                gpu.copy_to_host(kept, target)
                self._under_way.append((kept, gpu.record()))

    def arrived(self) -> bool:
        """Tell whether all copies have been made."""
        return all(self._device.is_reached(event) for _, event in self._under_way)
