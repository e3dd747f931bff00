"""Small gradients travel together, large ones in slices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from pycaffe_dist.exchange.base import Piece

if TYPE_CHECKING:
    from pycaffe_dist.net.parameter import Parameter


def fuse_and_slice(
    parameters: Sequence[Parameter], bucket_bytes: int, slice_bytes: int
) -> list[list[Piece]]:
    """Divide parameters, given in the order of backward, into groups that travel together.

    A group of several has at most ``bucket_bytes`` and one dtype; its members need not follow one
    another, for a large parameter between them travels alone, in slices of at most ``slice_bytes``.
    """
    groups: list[list[Piece]] = []
    bucket: list[Piece] = []
    for parameter in parameters:
        whole = Piece(parameter, 0, parameter.blob.count)
        if whole.nbytes > bucket_bytes:
            groups += [[piece] for piece in _slices(whole, slice_bytes)]
            continue
        filled = sum(piece.nbytes for piece in bucket)
        fits = filled + whole.nbytes <= bucket_bytes
        if not bucket or not fits or bucket[0].parameter.blob.dtype != parameter.blob.dtype:
            bucket = []
            groups.append(bucket)
        bucket.append(whole)
    return groups


def _slices(whole: Piece, slice_bytes: int) -> list[Piece]:
    """Cut a parameter into slices of nearly equal size."""
    count = -(-whole.nbytes // slice_bytes)
    cuts = [whole.end * i // count for i in range(count + 1)]
    return [Piece(whole.parameter, begin, end) for begin, end in pairwise(cuts)]
