"""Sums of rows that go to the same place."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels import kernel


@kernel
def scatter_add(rows: np.ndarray, indices: np.ndarray, total: np.ndarray) -> None:
    """Add row i of ``rows`` to row ``indices[i]`` of ``total``, for each i; both are matrices."""
    if not indices.size:
        return
    # Rows of one place are brought together and summed at once: ufunc.at is far slower.
    order = np.argsort(indices, kind="stable")
    places = indices[order]
    starts = np.flatnonzero(np.concatenate(([True], places[1:] != places[:-1])))
    total[places[starts]] += np.add.reduceat(rows[order], starts, axis=0)
