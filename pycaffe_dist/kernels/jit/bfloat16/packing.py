"""Packing of matrices: float32 numbers rounded to bfloat16, in pairs (see `kernels`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.kernels.half import to_brain
from pycaffe_dist.kernels.jit.bfloat16.kernels import PAIRS
from pycaffe_dist.kernels.jit.constants import constants
from pycaffe_dist.threads import parallel_for

WORDS_PER_CHUNK = 1 << 14


def steps_of(depth: int) -> int:
    """Return the number of steps for ``depth`` values of k."""
    return -(-depth // (2 * PAIRS))


@dataclass(frozen=True)
class MatrixPacking:
    """A matrix (count, depth) in bands of ``rows``; missing rows and values of k are 0.

    A step of a band is (rows, PAIRS) words, or (PAIRS, rows) if ``turned``.
    """

    count: int
    depth: int
    rows: int
    turned: bool = False

    @property
    def words(self) -> int:
        """The number of words of the packed matrix."""
        return -(-self.count // self.rows) * self._band_words

    @property
    def _band_words(self) -> int:
        return steps_of(self.depth) * self.rows * PAIRS

    def run(self, matrix: np.ndarray, packed: np.ndarray, transposed: bool = False) -> None:
        """Pack a matrix (count, depth), or (depth, count) if ``transposed``; all flat."""
        by_row, by_k = (1, self.count) if transposed else (self.depth, 1)
        to_row, to_pair = (1, self.rows) if self.turned else (PAIRS, 1)
        sizes = constants(self.count, self.depth, self.rows, by_row, by_k, to_row, to_pair)
        bands, grain = -(-self.count // self.rows), max(1, WORDS_PER_CHUNK // self._band_words)
        parallel_for(_pack_bands, bands, matrix, packed, sizes, grain=grain)


@jit
def _pack_bands(begin, end, matrix, packed, sizes):
    count, depth, rows, by_row, by_k, to_row, to_pair = sizes
    steps = (depth + 2 * PAIRS - 1) // (2 * PAIRS)
    for band in range(begin, end):
        for step in range(steps):
            for i in range(rows):
                row = band * rows + i
                to = (band * steps + step) * rows * PAIRS + i * to_row
                for p in range(PAIRS):
                    k = 2 * (step * PAIRS + p)
                    word = np.uint32(0)
                    if row < count and k < depth:
                        word |= to_brain(matrix[row * by_row + k * by_k])
                    if row < count and k + 1 < depth:
                        second = to_brain(matrix[row * by_row + (k + 1) * by_k])
                        word |= np.uint32(np.uint32(second) << np.uint32(16))
                    packed[to + p * to_pair] = word
