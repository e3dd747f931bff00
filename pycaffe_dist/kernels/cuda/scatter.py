"""Lookups of rows in a table, and sums of rows by index, on a GPU."""

from __future__ import annotations

from typing import Any

from pycaffe_dist.kernels.cuda import kernels
from pycaffe_dist.kernels.cuda.division import division

_cu = kernels("scatter")


def scatter_add(rows: Any, indices: Any, total: Any) -> None:
    """See `pycaffe_dist.kernels.scatter.scatter_add`."""
    count, columns = rows.shape
    _cu.scatter_add.blocks(len(total), rows, indices, total, count, columns, len(total))


def gather(table: Any, indices: Any, rows: Any) -> None:
    """See `pycaffe_dist.kernels.scatter.gather`."""
    columns = rows.shape[1]
    factor, bits = division(max(1, columns))
    _cu.gather(rows.size, table, indices, rows, factor, bits, columns, rows.size)
