"""Bias and slope of a convolution, where its kernels read them."""

from __future__ import annotations

import abc

import numpy as np

from pycaffe_dist.kernels.filling import copy_rows
from pycaffe_dist.kernels.jit.constants import factors


class BiasedConvolution(abc.ABC):
    """One direction of one convolution: the base of its kinds.

    Input and output are relative to the direction: the data gradient reads dy and writes dx.  Of
    each group's bias, ``outputs`` values are used; there is memory for ``padded``.
    """

    def __init__(self, group: int, outputs: int, padded: int):
        self._outputs = outputs
        self._bias = np.zeros((group, padded), np.float32)
        self._no_bias = np.zeros(group * outputs, np.float32)
        self._slope = factors(1.0)

    @property
    def scratch_bytes(self) -> int:
        """The bytes of memory kept between calls."""
        return self._bias.nbytes + self._no_bias.nbytes

    @abc.abstractmethod
    def hold(self, w: np.ndarray) -> None:
        """Take the weights for every later `run` without them."""

    def run(
        self,
        source: np.ndarray,
        w: np.ndarray | None,
        b: np.ndarray | None,
        out: np.ndarray,
        slope: float = 1.0,
    ) -> None:
        """Set out to the convolution of source, plus b; multiply negative results by slope."""
        groups = len(self._bias)
        bias = self._no_bias if b is None else b
        copy_rows(bias.reshape(groups, -1), self._bias[:, : self._outputs])
        self._slope = factors(slope)
        self._convolve(source.reshape(-1), w, out.reshape(-1))

    @abc.abstractmethod
    def _convolve(self, source: np.ndarray, w: np.ndarray | None, out: np.ndarray) -> None:
        """Set ``out``; it and ``source`` are flat."""
