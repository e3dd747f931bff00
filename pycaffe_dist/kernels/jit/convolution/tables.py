"""Which rows of x the microkernels of planes read for each row of y."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels.jit.codegen.target import Target

# Rows of y that are filtered together, with 32 registers and with fewer.
TOGETHER = {True: 4, False: 2}

Reads = tuple[tuple[int, ...], ...]


def vector_starts(count: int, lanes: int) -> list[int]:
    """Return the first of each vector of ``count`` elements; the last vector ends with them."""
    if count <= lanes:
        return [0]
    return [*range(0, count - lanes, lanes), count - lanes]


def shared_reads(target: Target, lines: int, stride: int, dilation: int, height: int) -> Reads:
    """Return, for each row of y in a step, the rows of x that it reads, counted within the step.

    A step has neighbouring rows of y, which has ``height`` rows.  A window has ``lines`` rows, and
    begins ``stride`` rows after the one before.
    """
    together = min(TOGETHER[target.registers == 32], height)
    if stride > (lines - 1) * dilation:
        together = 1
    rows = [[i * stride + t * dilation for t in range(lines)] for i in range(together)]
    places = sorted({place for row in rows for place in row})
    return tuple(tuple(map(places.index, row)) for row in rows)


def step_table(rows: np.ndarray, reads: Reads, row_bytes: int) -> np.ndarray:
    """Return the table of `FilterKernel`: for each step the offsets of its rows of y and of x.

    ``rows`` has the offset of the row of x for each row of y, of ``row_bytes``, and line of a
    window.  The last step ends with the last row of y.
    """
    starts = vector_starts(len(rows), len(reads))
    table = np.empty((len(starts), 2 + max(map(max, reads))), np.int64)
    for step, start in zip(table, starts):
        step[0] = start * row_bytes
        for i, own in enumerate(reads):
            step[1 + np.array(own)] = rows[start + i]
    return table


def window_rows(
    height: int, width: int, pooled: int, kernel: int, stride: int, pad: int
) -> np.ndarray:
    """Return the offset of the row of x, of ``width``, for each row of y and line of a window."""
    lines = np.arange(pooled)[:, None] * stride - pad + np.arange(kernel)
    return np.where((lines < 0) | (lines >= height), -1, 4 * width * lines)
