"""BatchNorm's work on the statistics of its channels: vectors of one value for each channel.

Statistics and sums are float64; running sums, shifts, scales and the gradient's terms are of the
parameters' dtype.
"""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels import kernel


@kernel
def add_to_running_sums(
    mean: np.ndarray,
    variance: np.ndarray,
    keep: float,
    share: float,
    unbiased: float,
    means: np.ndarray,
    variances: np.ndarray,
    weight: np.ndarray | None,
) -> None:
    """Multiply the running sums by ``keep`` and add a batch's statistics times ``share``.

    The weight (1,), if there is one, gets ``share``.  The batch's variance is first multiplied by
    ``unbiased``.
    """
    for total, addend in ((means, mean), (variances, variance * unbiased), (weight, 1.0)):
        if total is not None:
            total[...] = total * keep + addend * share


@kernel
def running_statistics(
    means: np.ndarray,
    variances: np.ndarray,
    weight: np.ndarray | None,
    mean: np.ndarray,
    variance: np.ndarray,
) -> None:
    """Set mean and variance to the running sums over their weight (1,), or to 0 if that is 0.

    Without a weight the sums are the statistics.
    """
    total = 1.0 if weight is None else float(weight[0])
    factor = 1 / total if total else 0.0
    np.multiply(means, factor, out=mean)
    np.multiply(variances, factor, out=variance)


@kernel
def shift_and_scale(
    mean: np.ndarray, variance: np.ndarray, eps: float, shift: np.ndarray, scale: np.ndarray
) -> None:
    """Set shift to the mean and scale to 1 / sqrt(variance + eps)."""
    shift[...] = mean
    scale[...] = 1 / np.sqrt(variance + eps)


@kernel
def gradient_terms(
    sum_dy: np.ndarray,
    sum_dyx: np.ndarray,
    count: int,
    scale: np.ndarray,
    spread: bool,
    offset: np.ndarray,
    slope: np.ndarray,
) -> None:
    """Set the terms that `channel_affine.normalize_gradient` subtracts, from `gradient_sums`.

    Means over ``count`` elements; the slope is 0 unless the scale depends on x (``spread``).
    """
    offset[...] = sum_dy / count
    slope[...] = sum_dyx / count * scale.astype(np.float64) ** 2 if spread else 0


@kernel
def add_affine_gradients(
    sum_dy: np.ndarray,
    sum_dyx: np.ndarray,
    factor: np.ndarray | None,
    bias: np.ndarray | None,
    scale: np.ndarray | None,
    adds: tuple[bool, bool] = (True, True),
) -> None:
    """Add the sums of dy, and of dy·x times ``factor``, to the gradients of bias and scale.

    ``factor``, ``bias`` and ``scale`` may be None.  ``adds`` tells whether to add to bias and to
    scale; else they are set.
    """
    own = sum_dyx if factor is None else sum_dyx * factor
    for gradient, sums, add in ((bias, sum_dy, adds[0]), (scale, own, adds[1])):
        if gradient is not None:
            gradient[...] = gradient + sums if add else sums
