"""How kernels divide rows among threads, and sums among blocks."""

from __future__ import annotations

from typing import Any

from pycaffe_dist.kernels.cuda.source import THREADS

# A sum is split into so many blocks that every multiprocessor of a large GPU has some.
BLOCKS = 1024
WARP = 32


def row_shift(columns: int) -> int:
    """Return log2 of the number of threads for a row, for a loop ``for EACH_ROW``.

    As many as the row has elements, at most a block, rounded down to a power of two.
    """
    return max(0, min(columns, THREADS).bit_length() - 1)


def block_size(n: int) -> int:
    """Return how many threads a block needs for n elements: whole warps, at most THREADS."""
    return min(THREADS, max(1, -(-n // WARP)) * WARP)


def splits(pieces: int, sums: int) -> int:
    """Return the number of parts, at least 1, of each of ``sums`` sums over ``pieces``."""
    return max(1, min(pieces, BLOCKS // max(1, sums)))


def shape_of_planes(x: Any) -> tuple[int, int, int]:
    """Return (images, channels, pixels) of an array (N, C, *spatial)."""
    images, channels = x.shape[:2]
    return images, channels, x.size // max(1, images * channels)
