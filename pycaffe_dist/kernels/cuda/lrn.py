"""Local response normalisation on a GPU, across channels and within a channel."""

from __future__ import annotations

from typing import Any

from pycaffe_dist.kernels.cuda import kernels
from pycaffe_dist.kernels.cuda.rows import row_shift, shape_of_planes

_cu = kernels("lrn")
# Channels are cut into chunks until a large GPU's threads have one each; a chunk's first window is
# summed anew, so that it should be longer than a window.
_THREADS = 1 << 18
_WINDOWS = 4


def lrn_across_forward(
    x: Any, y: Any, scale: Any, size: int, alpha: float, beta: float, k: float = 1.0
) -> None:
    """See `pycaffe_dist.kernels.lrn.lrn_across_forward`."""
    images, channels, pixels = shape_of_planes(x)
    window = min(size // 2, channels), alpha / size, beta, k
    chunks, length = _chunks(images * pixels, channels, size)
    n = images * pixels * chunks
    _cu.across_forward(n, x, y, scale, channels, pixels, chunks, length, *window, n)


def lrn_across_backward(
    x: Any, y: Any, scale: Any, dy: Any, dx: Any, size: int, alpha: float, beta: float
) -> None:
    """See `pycaffe_dist.kernels.lrn.lrn_across_backward`."""
    images, channels, pixels = shape_of_planes(x)
    window = min(size // 2, channels), 2 * alpha * beta / size, beta
    chunks, length = _chunks(images * pixels, channels, size)
    n = images * pixels * chunks
    _cu.across_backward(n, x, y, scale, dy, dx, channels, pixels, chunks, length, *window, n)


def lrn_within_forward(x: Any, y: Any, scale: Any, size: int, alpha: float, beta: float) -> None:
    """See `pycaffe_dist.kernels.lrn.lrn_within_forward`."""
    sizes, rows = _lines(x)
    window = size // 2, alpha / (size * size), beta
    _cu.within_forward(rows[0] << rows[1], x, y, scale, *sizes, *window, *rows)


def lrn_within_backward(
    x: Any, y: Any, scale: Any, dy: Any, dx: Any, size: int, alpha: float, beta: float
) -> None:
    """See `pycaffe_dist.kernels.lrn.lrn_within_backward`."""
    sizes, rows = _lines(x)
    window = size // 2, 2 * alpha * beta / (size * size), beta
    _cu.within_backward(rows[0] << rows[1], x, y, scale, dy, dx, *sizes, *window, *rows)


def _chunks(places: int, channels: int, size: int) -> tuple[int, int]:
    """Return the number of chunks of the channels and their length."""
    wanted = -(-_THREADS // max(1, places))
    length = -(-channels // max(1, min(wanted, channels // (_WINDOWS * size))))
    return -(-channels // max(1, length)), length


def _lines(x: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the size of x's planes, and the number of their rows with the row_shift of one."""
    height, width = x.shape[-2:]
    return (height, width), (x.size // max(1, width), row_shift(width))
