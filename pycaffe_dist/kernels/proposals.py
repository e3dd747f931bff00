"""Boxes that an image's anchors become by their predicted moves, and the best of them."""

from __future__ import annotations

import math

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.boxes import best_scores, suppress
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.threads import parallel_for

CELLS_PER_CHUNK = 1 << 8


@jit
def _moved(low, high, shift, growth):
    """Return the borders of a range of pixels whose centre and length changed.

    ``low`` and ``high`` are the first and the last pixel; ``shift`` counts lengths, ``growth`` is
    the logarithm of a factor.  The new borders lie at pixel edges: they are one length apart.
    (Girshick et al., 2014.)
    """
    one, half = type(low)(1), type(low)(0.5)
    length = high - low + one
    centre = low + half * length + shift * length
    length *= type(low)(math.exp(growth))
    return centre - half * length, centre + half * length


@jit
def _propose(begin, end, scores, moves, anchors, stride, image, smallest, boxes, chances):
    count, height, width = scores.shape[1], scores.shape[2], scores.shape[3]
    one, nothing = boxes.dtype.type(1), boxes.dtype.type(0)
    for cell in range(begin, end):
        n, place = divmod(cell, height * width)
        h, w = divmod(place, width)
        right, bottom = image[n, 1] - one, image[n, 0] - one
        for a in range(count):
            x, y = anchors[a, 0] + w * stride, anchors[a, 1] + h * stride
            own = moves[n, 4 * a : 4 * a + 4, h, w]
            x1, x2 = _moved(x, anchors[a, 2] + w * stride, own[0], own[2])
            y1, y2 = _moved(y, anchors[a, 3] + h * stride, own[1], own[3])
            x1, x2 = max(nothing, min(x1, right)), max(nothing, min(x2, right))
            y1, y2 = max(nothing, min(y1, bottom)), max(nothing, min(y2, bottom))
            k = place * count + a
            boxes[n, k, 0], boxes[n, k, 1], boxes[n, k, 2], boxes[n, k, 3] = x1, y1, x2, y2
            fits = x2 - x1 + one >= smallest[n, 1] and y2 - y1 + one >= smallest[n, 0]
            chances[n, k] = scores[n, a, h, w] if fits else nothing


@kernel
def propose(
    scores: np.ndarray,
    moves: np.ndarray,
    anchors: np.ndarray,
    stride: float,
    image: np.ndarray,
    smallest: np.ndarray,
    boxes: np.ndarray,
    chances: np.ndarray,
) -> None:
    """Set boxes (N, H·W·A, 4) and their chances (N, H·W·A), by cell, then by anchor.

    Shapes: scores (N, A, H, W), moves (N, 4·A, H, W); anchors (A, 4) belong to the first cell.
    ``image`` and ``smallest`` (N, 2) have the height and width of the image, to which boxes are
    clipped, and of the smallest box; smaller ones get the chance 0.
    """
    args = scores, moves, anchors, boxes.dtype.type(stride), image, smallest, boxes, chances
    cells = scores.shape[0] * scores.shape[2] * scores.shape[3]
    parallel_for(_propose, cells, *args, grain=CELLS_PER_CHUNK)


@jit
def _best(begin, end, edges, chances, most, threshold, kept, counts):
    for n in range(begin, end):
        candidates = np.flatnonzero(chances[n] > -np.inf)
        scores = chances[n][candidates].astype(np.float32)
        order = candidates[best_scores(scores, most)]
        counts[n] = suppress(edges[n], order, threshold, 1.0, -np.inf, kept[n])


@kernel
def best_boxes(
    edges: np.ndarray, chances: np.ndarray, most: int, room: int, threshold: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the images (R,) and the places (R,) of the boxes to keep, by image, the best first.

    edges are (N, M, 4), the borders of boxes; of each image the ``most`` with the largest chances
    (N, M) are considered, without those of -inf, and ``room`` are kept.  A box stays if its overlap
    with every better one that stays is at most ``threshold``.
    """
    # A dry run leaves the first box of each image.
    kept, counts = np.zeros((len(edges), room), np.int64), np.ones(len(edges), np.int64)
    parallel_for(_best, len(edges), edges, chances, most, threshold, kept, counts)
    return np.repeat(np.arange(len(edges)), counts), kept[np.arange(room) < counts[:, None]]
