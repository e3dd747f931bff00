"""Labels as class numbers, correct predictions, and total losses.

Labels are floats and cut to integers, as in Caffe.  The first wrong label goes to ``wrong``, one
unsigned 64-bit number for which a GPU need not wait: its upper half has the label's position, its
lower half the bits of its value as float32; or it is `NOTHING_WRONG`.
"""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels import kernel

NOTHING_WRONG = 2**64 - 1


def first_wrong(wrong: np.ndarray) -> tuple[int, float] | None:
    """Return the position and value in ``wrong`` (1,), a host array, or None."""
    code = int(wrong[0])
    if code == NOTHING_WRONG:
        return None
    return code >> 32, float(np.uint32(code % 2**32).view(np.float32))


def wrong_code(position: int, value: float) -> int:
    """Return the number for ``wrong``."""
    return position << 32 | int(np.float32(value).view(np.uint32))


def _code(bad: np.ndarray, values: np.ndarray) -> int:
    places = np.flatnonzero(bad)
    if not places.size:
        return NOTHING_WRONG
    return wrong_code(int(places[0]), values.reshape(-1)[places[0]])


@kernel
def class_numbers(
    values: np.ndarray,
    limit: int,
    ignore: int,
    whole: bool,
    numbers: np.ndarray,
    counted: np.ndarray,
    wrong: np.ndarray,
) -> None:
    """Set numbers (int64) to the values cut to integers; ignored and wrong ones become 0.

    Labels from 0 to ``limit`` - 1 are right; with ``whole`` they must be whole numbers, too.
    ``counted`` (bool) says which are not equal to ``ignore``.
    """
    with np.errstate(invalid="ignore"):
        np.copyto(numbers, values, casting="unsafe")
        bad = (numbers < 0) | (numbers >= limit)
        if whole:
            bad |= numbers != values
    np.not_equal(numbers, ignore, out=counted)
    bad &= counted
    wrong[0] = _code(bad, values)
    numbers[bad | ~counted] = 0


@kernel
def total_loss(
    losses: np.ndarray,
    valid: np.ndarray,
    wrong_at: np.ndarray,
    labels: np.ndarray,
    divisor: float,
    total: np.ndarray,
    wrong: np.ndarray,
) -> None:
    """Set total (2,) to the sum of losses (outer) divided by a normalizer, and to the normalizer.

    The normalizer is ``divisor`` or, if that is 0, the sum of ``valid`` (outer, int64), and then at
    least 1.  ``wrong_at`` (outer, int64) is -1 or the inner index of a wrong label; labels are
    (outer, inner).
    """
    total[1] = divisor or max(1, int(valid.sum()))
    total[0] = losses.sum() / total[1]
    wrong[0] = NOTHING_WRONG
    rows = np.flatnonzero(wrong_at >= 0)
    if rows.size:
        bad = np.zeros(labels.shape, bool)
        bad[rows[0], wrong_at[rows[0]]] = True
        wrong[0] = _code(bad, labels)


@kernel
def label_hits(
    scores: np.ndarray, numbers: np.ndarray, counted: np.ndarray, top_k: int, hits: np.ndarray
) -> None:
    """Set hits (outer, inner) to 1 where fewer than top_k other classes reach the label's score.

    Scores are (outer, classes, inner), ``numbers`` the labels; labels that do not count are no
    hits.
    """
    own = np.take_along_axis(scores, numbers[:, None, :], axis=1)
    better = np.count_nonzero(scores >= own, axis=1) - 1
    np.logical_and(better < top_k, counted, out=hits)


@kernel
def class_counts(numbers: np.ndarray, chosen: np.ndarray, counts: np.ndarray) -> None:
    """Set counts (classes, int64) to how often each class is among the chosen numbers."""
    counts[...] = np.bincount(numbers[chosen], minlength=len(counts))
