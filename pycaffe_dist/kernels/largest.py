"""The indices of the largest values along an axis."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels import kernel


@kernel
def largest(x: np.ndarray, places: np.ndarray) -> None:
    """Set places to the indices of the largest values along the middle axis, the largest first.

    ``x`` is (outer, n, inner), ``places`` (outer, count, inner) of int64 with 0 < count <= n. Of
    equal values the last comes first, as in Caffe; NaNs come last.
    """
    n, count = x.shape[1], places.shape[1]
    order = np.argsort(-x[:, ::-1], axis=1, kind="stable")
    np.subtract(n - 1, order[:, :count], out=places)
