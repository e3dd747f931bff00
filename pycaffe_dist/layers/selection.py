"""Layers that select samples of a batch: Filter, BatchReindex and Select."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.kernels.scatter import gather, scatter_add
from pycaffe_dist.layers.base import Arity, Layer, Need, register
from pycaffe_dist.layers.checking import (
    checked_indices,
    describe,
    mismatch,
    require_axes,
    require_no_gradient,
    require_same_batch,
    require_same_count,
)


@register("Filter")
class Filter(Layer):
    """The samples of each bottom for which the last bottom, the selector, is not 0.

    The tops' batch size is known in forward only; until then it is the bottoms'.
    """

    host_only = True
    bottoms = Arity(2, None)
    tops = Arity(1, None)
    backward_needs_bottom = Need.NONE
    reshape_every_forward = True

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        if len(top) != len(bottom) - 1:
            raise self.error(
                f"needs one top for each bottom but the selector: {len(bottom) - 1}, "
                f"found {len(top)}"
            )
        # At the first reshape there are no data yet.
        self._chosen = np.arange(bottom[-1].shape[0])
        self._has_data = False

    def allow_force_backward(self, bottom_index: int) -> bool:
        """The selector has no gradient."""
        return bottom_index != len(self.param.bottom) - 1

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        last = len(bottom) - 1
        if bottom[last].count_of(1) != 1:
            raise self.error(
                f"needs one selector per sample, found bottom {describe(self, bottom, last)}"
            )
        for index in range(last):
            require_same_batch(self, bottom, index, last)
        if self._has_data:
            self._chosen = np.flatnonzero(bottom[last].data.reshape(-1))
        self._has_data = True
        self._shape_tops(bottom, top)

    def _shape_tops(self, bottom: list[Blob], top: list[Blob]) -> None:
        for source, target in zip(bottom, top):
            target.reshape(len(self._chosen), *source.shape[1:])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._chosen = np.flatnonzero(bottom[-1].data.reshape(-1))
        self._shape_tops(bottom, top)
        for source, target in zip(bottom, top):
            np.take(source.data, self._chosen, axis=0, out=target.data)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        require_no_gradient(self, propagate_down, len(bottom) - 1)
        for source, target, wanted in zip(bottom, top, propagate_down):
            if wanted:
                source.diff.fill(0)
                source.diff[self._chosen] = target.diff


@register("BatchReindex")
class BatchReindex(Layer):
    """top[n] = bottom[0][bottom[1][n]]: samples permuted, repeated or omitted."""

    bottoms = Arity(2, 2)
    # The indices only.
    backward_needs_bottom = Need.VALUE

    def allow_force_backward(self, bottom_index: int) -> bool:
        """The indices have no gradient."""
        return bottom_index == 0

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        require_axes(self, bottom, 1, 1)
        top[0].reshape(bottom[1].shape[0], *bottom[0].shape[1:])

    def _indices(self, bottom: list[Blob]) -> np.ndarray:
        names = describe(self, bottom, 1), describe(self, bottom, 0)

        def error(index: int, value: float) -> Exception:
            return self.error(
                f"index {value:g} at {index} of bottom {names[0]} is no sample of bottom {names[1]}"
            )

        return checked_indices(bottom[1].data, bottom[0].shape[0], False, error)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        indices, size = self._indices(bottom), bottom[0].count_of(1)
        samples = bottom[0].data.reshape(bottom[0].shape[0], size)
        gather(samples, indices, top[0].data.reshape(top[0].shape[0], size))

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        require_no_gradient(self, propagate_down, 1)
        if propagate_down[0]:
            bottom[0].diff.fill(0)
            rows = top[0].diff.reshape(top[0].shape[0], -1)
            total = bottom[0].diff.reshape(bottom[0].shape[0], -1)
            scatter_add(rows, self._indices(bottom), total)


@register("Select")
class Select(Layer):
    """Each sample from the bottom that the last bottom, an index for each sample, names.

    Follows swift-n-brutal/caffe (there on a GPU; its gradient on the CPU is lost).
    """

    bottoms = Arity(2, None)
    backward_needs_bottom = Need.NONE

    def allow_force_backward(self, bottom_index: int) -> bool:
        """The indices have no gradient."""
        return bottom_index != len(self.param.bottom) - 1

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        last = len(bottom) - 1
        if bottom[last].count != bottom[0].count_of(0, 1):
            raise mismatch(self, bottom, 0, last, "do not fit: each sample needs one index")
        for index in range(last):
            require_same_batch(self, bottom, 0, index)
            require_same_count(self, bottom, 0, index)
        top[0].reshape_like(bottom[0])

    def _rows(self, array: Any) -> Any:
        return array.reshape(len(self._chosen), -1)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        candidates, where = bottom[:-1], describe(self, bottom, len(bottom) - 1)

        def error(index: int, value: float) -> Exception:
            return self.error(
                f"needs indices of bottoms from 0 to {len(candidates) - 1}, found {value:g} for "
                f"sample {index} in bottom {where}"
            )

        indices = bottom[-1].data.reshape(-1, 1)
        self._chosen = checked_indices(indices, len(candidates), False, error)
        for index, blob in enumerate(candidates):
            np.copyto(self._rows(top[0].data), self._rows(blob.data), where=self._chosen == index)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        require_no_gradient(self, propagate_down, len(bottom) - 1)
        for index, blob in enumerate(bottom[:-1]):
            if propagate_down[index]:
                blob.diff.fill(0)
                np.copyto(
                    self._rows(blob.diff), self._rows(top[0].diff), where=self._chosen == index
                )
