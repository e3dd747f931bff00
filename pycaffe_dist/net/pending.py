"""The loss of a forward pass that a GPU may still be computing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pycaffe_dist import device
from pycaffe_dist.blob import Blob


class PendingLoss:
    """The weighted sum of tops.  Only `value` waits for a GPU; on the host there is no wait."""

    def __init__(self) -> None:
        self._parts: list[Any] = []
        self._on_host: np.ndarray | None = None
        self._copied: Any = None
        self._gpu: Any = None

    def add(self, top: Blob, weight: float) -> None:
        """Add ``weight`` times the sum of a top that its layer has just computed."""
        total = top.read_data().sum(dtype=np.float64)
        self._parts.append(weight * (total if device.current().is_gpu else float(total)))

    def start_reading(self) -> None:
        """Begin to copy the loss to the host; called when all tops are added."""
        here: Any = device.current()
        if not here.is_gpu:
            return
        self._gpu = here
        if self._parts:
            parts = here.xp.stack([here.xp.asarray(part) for part in self._parts])
            self._on_host = here.host_zeros(parts.size, np.float64)
            here.copy_to_host(parts, self._on_host)
        self._copied = here.record()

    def value(self) -> float:
        """Return the loss; raises LayerError for wrong labels and the like that a GPU found."""
        if self._gpu is not None:
            self._gpu.synchronize_event(self._copied)
            self._gpu.settle()
            if self._on_host is not None:
                self._parts = self._on_host.tolist()
        return math.fsum(self._parts)
