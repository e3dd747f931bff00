"""Small gradients travel together, large ones in slices."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from pycaffe_dist.comm.tasks import Task
from pycaffe_dist.config import ExchangeSettings, Wire
from pycaffe_dist.device import xp
from pycaffe_dist.exchange.base import Bucket, Exchange, Slice
from pycaffe_dist.exchange.wire_format import WireFormat, wire_format

if TYPE_CHECKING:
    from pycaffe_dist.comm.cluster import Cluster
    from pycaffe_dist.net.parameter import Parameter


def fuse_and_slice(
    parameters: Sequence[Parameter], bucket_bytes: int, slice_bytes: int
) -> list[list[Slice]]:
    """Divide parameters, given in the order of backward, into groups that travel together.

    A group of several has at most ``bucket_bytes`` and one dtype; its members need not follow one
    another, for a large parameter between them travels alone, in slices of at most ``slice_bytes``.
    """
    groups: list[list[Slice]] = []
    bucket: list[Slice] = []
    for parameter in parameters:
        whole = Slice(parameter, 0, parameter.blob.count)
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


def _slices(whole: Slice, slice_bytes: int) -> list[Slice]:
    """Cut a parameter into slices of nearly equal size."""
    count = -(-whole.nbytes // slice_bytes)
    cuts = [whole.end * i // count for i in range(count + 1)]
    return [Slice(whole.parameter, begin, end) for begin, end in pairwise(cuts)]


class FusingExchange(Exchange):
    """An exchange that takes any gradients, fused and sliced, rounded for the wire if asked to.

    A subclass defines ``mean``.  What rounding loses stays, per rank and bucket, in a residual
    that is added before the next rounding: over the iterations, nothing gets lost.
    """

    compresses = True

    def __init__(self, cluster: Cluster, settings: ExchangeSettings):
        super().__init__(cluster, settings)
        self._fused: dict[Bucket, np.ndarray] = {}
        self._residuals: dict[Bucket, np.ndarray] = {}

    def prepare(self, buckets: Sequence[Bucket]) -> None:
        """Have the wire's kernels ready."""
        self.wire(np.dtype(np.float32))

    def group(self, parameters: Sequence[Parameter]) -> list[list[Slice]]:
        """Fuse small parameters and slice large ones."""
        return fuse_and_slice(parameters, self.settings.bucket_bytes, self.settings.slice_bytes)

    @abc.abstractmethod
    def mean(self, values: np.ndarray, bucket: Bucket) -> Task:
        """Replace ``values`` (one axis), a bucket's gradients, by their mean over ranks."""

    def steps(self, bucket: Bucket) -> Task:
        """Combine the slices in place, or through one array that holds them all."""
        if len(bucket.slices) == 1:
            yield from self.mean(bucket.slices[0].gradient, bucket)
            return
        gradients = [piece.gradient for piece in bucket.slices]
        fused = self._fused.get(bucket)
        if fused is None:
            count = sum(gradient.size for gradient in gradients)
            fused = self._fused[bucket] = xp().empty(count, gradients[0].dtype)
        np.concatenate(gradients, out=fused)
        yield from self.mean(fused, bucket)
        begin = 0
        for gradient in gradients:
            gradient[:] = fused[begin : begin + gradient.size]
            begin += gradient.size

    def wire(self, dtype: np.dtype) -> WireFormat:
        """Return the form in which gradients of ``dtype`` travel."""
        return wire_format(self.settings.wire, dtype)

    def residual(self, values: np.ndarray, bucket: Bucket) -> np.ndarray | None:
        """Return what rounding has lost of a bucket's ``values`` so far; None if nothing is."""
        if self.settings.wire is Wire.FLOAT32:
            return None
        if bucket not in self._residuals:
            self._residuals[bucket] = np.zeros_like(values)
        return self._residuals[bucket]

    def bytes_on_the_wire(self, slices: Sequence[Slice]) -> float:
        """Return the size of all slices in the form in which they travel."""
        return sum(
            self.wire(piece.parameter.blob.dtype).nbytes(
                piece.end - piece.begin, piece.parameter.blob.dtype.itemsize
            )
            for piece in slices
        )

    def close(self) -> None:
        """Forget the run, and what rounding has lost in it."""
        self._fused.clear()
        self._residuals.clear()
