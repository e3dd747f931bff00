"""Random keys, from which kernels make random numbers on any device."""

from __future__ import annotations

import numpy as np

from pycaffe_dist import device
from pycaffe_dist.blob import Blob


class RandomKey:
    """64 random bits, drawn from ``random`` on the host, for each forward pass.

    Kernels read them from memory, so that a GPU can repeat a pass with other bits.
    """

    def __init__(self, random: np.random.Generator):
        self._random = random
        self._blob = Blob((1,), np.uint64)

    def draw(self) -> None:
        """Draw new bits, in this pass and when it is repeated."""
        device.current().at_every_pass(self._draw)

    def _draw(self) -> None:
        bits = self._random.integers(2**64, dtype=np.uint64)
        with device.use(device.HOST):
            self._blob.data[0] = bits

    @property
    def array(self) -> np.ndarray:
        """The bits on the current device: (1,) of uint64."""
        return self._blob.read_data()
