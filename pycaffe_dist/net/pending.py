"""The loss of a forward pass that a GPU may still be computing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from pycaffe_dist import device
from pycaffe_dist.blob import Blob

if TYPE_CHECKING:
    from pycaffe_dist.gpu.base import GPU


class PendingLoss:
    """The weighted sum of tops.  Only `value` waits for a GPU."""

    def __init__(self) -> None:
        self._parts: list[tuple[float, np.ndarray]] = []  # weights, and sums on the host
        self._kept: list[np.ndarray] = []  # memory for the sums of the next pass
        self._copied: Any = None
        self._gpu: Any = None

    def start_again(self) -> None:
        """Begin the next pass of the same net, with the same memory on the host."""
        self._kept, self._parts = [sums for _, sums in self._parts], []

    def add(self, top: Blob, weight: float) -> None:
        """Add ``weight`` times the sum of a top that its layer has just computed."""
        values, here = top.read_data(), device.current()
        total = values if values.size == 1 else values.sum(dtype=np.float64)
        if here.is_gpu:
            on_host = self._kept.pop(0) if self._kept else here.host_array((1,), total.dtype)
            cast("GPU", here).copy_to_host(total, on_host)
        else:
            on_host = total.copy()
        self._parts.append((weight, on_host))

    def start_reading(self) -> None:
        """Record a GPU event after the copies to the host; called when all tops are added."""
        here: Any = device.current()
        if here.is_gpu:
            self._gpu, self._copied = here, here.record()

    def value(self) -> float:
        """Return the loss; raises LayerError for errors that a GPU found, such as wrong labels."""
        if self._gpu is not None:
            self._gpu.synchronize_event(self._copied)
            self._gpu.settle()
        return math.fsum(weight * float(total.item()) for weight, total in self._parts)
