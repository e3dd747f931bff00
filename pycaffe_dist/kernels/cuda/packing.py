"""Images from rows of bytes, transformed on a GPU."""

from __future__ import annotations

from typing import Any

from pycaffe_dist.kernels.cuda import kernels
from pycaffe_dist.kernels.cuda.rows import row_shift

_cu = kernels("packing")


def unpack_images(rows: Any, mean: Any, scale: float, out: Any) -> None:
    """Write (pixel - mean) * scale of the images in ``rows`` to ``out`` (n, C, h, w).

    ``rows``: (n, bytes), as `pycaffe_dist.kernels.packing` makes them; ``mean``: an image of the
    uncropped images' shape, or one value per channel.
    """
    channels, height, width = out.shape[1:]
    mean_size = mean.shape[1:] if mean.ndim == 3 else (0, 0)
    lines, shift = out.size // max(1, width), row_shift(width)
    _cu.unpack_images(
        *(lines << shift, rows, rows.shape[1], mean, *mean_size, scale, out),
        *(channels, height, width, lines, shift),
    )
