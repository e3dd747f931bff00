"""Solver updates on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pycaffe_dist import device
from pycaffe_dist.errors import DeviceError
from pycaffe_dist.kernels.cuda import kernels

_cu = kernels("update")
# Elements that one block updates, of one parameter.
_PIECE = 16384


def sgd_update(w, diff, history, regularization, rate, momentum) -> None:
    """See `pycaffe_dist.kernels.update.sgd_update`."""
    _cu.sgd_update(w.size, w, diff, history, *regularization, rate, momentum, w.size)


def nesterov_update(w, diff, history, regularization, rate, momentum) -> None:
    """See `pycaffe_dist.kernels.update.nesterov_update`."""
    _cu.nesterov_update(w.size, w, diff, history, *regularization, rate, momentum, w.size)


def adagrad_update(w, diff, history, regularization, rate, delta) -> None:
    """See `pycaffe_dist.kernels.update.adagrad_update`."""
    _cu.adagrad_update(w.size, w, diff, history, *regularization, rate, delta, w.size)


def rmsprop_update(w, diff, history, regularization, rate, rms_decay, delta) -> None:
    """See `pycaffe_dist.kernels.update.rmsprop_update`."""
    _cu.rmsprop_update(w.size, w, diff, history, *regularization, rate, rms_decay, delta, w.size)


def adadelta_update(w, diff, gradients, updates, regularization, rate, momentum, delta) -> None:
    """See `pycaffe_dist.kernels.update.adadelta_update`."""
    scalars = *regularization, rate, momentum, delta
    _cu.adadelta_update(w.size, w, diff, gradients, updates, *scalars, w.size)


def adam_update(w, diff, mean, variance, regularization, rate, beta1, beta2, delta) -> None:
    """See `pycaffe_dist.kernels.update.adam_update`."""
    scalars = *regularization, rate, beta1, beta2, delta
    _cu.adam_update(w.size, w, diff, mean, variance, *scalars, w.size)


def adamw_update(
    w, diff, mean, variance, regularization, rate, beta1, beta2, delta, first, second
) -> None:
    """See `pycaffe_dist.kernels.update.adamw_update`."""
    scalars = *regularization, rate, beta1, beta2, delta, first, second
    _cu.adamw_update(w.size, w, diff, mean, variance, *scalars, w.size)


def lion_update(w, diff, mean, regularization, rate, beta1, beta2) -> None:
    """See `pycaffe_dist.kernels.update.lion_update`."""
    _cu.lion_update(w.size, w, diff, mean, *regularization, rate, beta1, beta2, w.size)


def blend(mean, w, share) -> None:
    """See `pycaffe_dist.kernels.update.blend`."""
    _cu.blend(w.size, mean, w, share, w.size)


class UpdateOfMany:
    """See `pycaffe_dist.kernels.update.UpdateOfMany`; update.cu describes the tables."""

    def __init__(
        self,
        update: Callable[..., None],
        arrays: Sequence[tuple[Any, ...]],
        settings: Sequence[tuple[float, float, float]],
    ):
        # A launch cannot check the arrays in a table.
        kinds = {(array.dtype, array.size) for own in arrays for array in own}
        if len({dtype for dtype, _ in kinds}) > 1 or len(kinds) > len({a[0].size for a in arrays}):
            raise DeviceError(f"{update.__name__}: arrays of other types or sizes than the weights")
        self._arrays = tuple(array for own in arrays for array in own)
        # The kernel of many targets is named after the one of a single target.
        self._launch = getattr(_cu, f"{update.__name__}s")
        table = np.zeros((len(arrays), 5), np.int64)
        pieces = []
        for number, (row, own) in enumerate(zip(table, arrays)):
            row[0] = own[0].size
            row[1 : 1 + len(own)] = [array.data.ptr for array in own]
            pieces += [(number, begin) for begin in range(0, own[0].size, _PIECE)]
        to_device = device.current_gpu().to_device
        self._count = len(pieces)
        self._tables = (
            to_device(np.array(pieces, np.int32).reshape(-1, 2)),
            to_device(table),
            to_device(np.array(settings, arrays[0][0].dtype).reshape(-1, 3)),
        )
        self._scalars = device.current_gpu().storage(arrays[0][0].dtype)

    def run(self, values: Callable[[], tuple[float, ...]]) -> None:
        """Update all parameters."""
        here, size, count = device.current_gpu(), len(values()), self._count

        def write() -> None:
            with device.use(device.HOST):
                self._scalars.array((size,), size)[...] = values()

        here.at_every_pass(write)
        scalars = self._scalars.array((size,), size, write=False)
        arguments = *self._tables, scalars, _PIECE, count
        self._launch.blocks(count, *arguments, behind=self._arrays)
