"""Blobs: the N-dimensional arrays, data and diff, that layers read and write."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from pycaffe_dist import device
from pycaffe_dist.device import Device
from pycaffe_dist.errors import NetError
from pycaffe_dist.storage import ALIGNMENT, Storage, aligned_zeros

# Caffe's limits.
MOST_AXES = 32
MOST_ELEMENTS = 2**31 - 1


def _storage(dtype: np.dtype) -> Storage:
    """Return memory for arrays of the current device."""
    here: Any = device.current()
    return here.storage(dtype) if here.is_gpu else Storage(dtype)


def _too_large(shape: tuple[int, ...], count: int) -> str:
    if len(shape) > MOST_AXES:
        return f"a blob has at most {MOST_AXES} axes, found {len(shape)}"
    return f"a blob has at most {MOST_ELEMENTS} elements, found {count:.6g}: shape {shape}"


class Blob:
    """An N-dimensional array of values (``data``) and of their gradient (``diff``).

    Both are C-contiguous and writable, allocated as zeros when first used, and stay the same array
    object until the blob is reshaped or adopts other memory.  A blob made on a GPU gives arrays of
    the current device, this GPU or the host: access on the other device copies the values, and the
    arrays returned by ``data`` and ``diff`` count as written.  ``shape`` is a tuple of non-negative
    ints; ``dtype`` is float32, or float64 in tests.
    """

    def __init__(self, shape: tuple[int, ...] = (), dtype: Any = np.float32):
        self.dtype = np.dtype(dtype)
        self._data = _storage(self.dtype)
        self._diff = _storage(self.dtype)
        self._data_view: np.ndarray | None = None
        self._diff_view: np.ndarray | None = None
        self._data_generation = self._diff_generation = -1.0
        self.shape: tuple[int, ...] = ()
        self.count = 0
        self.reshape(*shape)

    def reshape(self, *shape: int) -> None:
        """Change the shape; storage is kept when it is large enough, as in Caffe."""
        if len(shape) == 1 and isinstance(shape[0], tuple | list):
            shape = tuple(shape[0])
        shape = tuple(int(dim) for dim in shape)
        if any(dim < 0 for dim in shape):
            raise NetError(f"blob shape {shape} has a negative dimension")
        if shape == self.shape and self._data_view is not None:
            return
        count = math.prod(shape)
        if len(shape) > MOST_AXES or count > MOST_ELEMENTS:
            raise NetError(_too_large(shape, count))
        self.shape, self.count = shape, count
        self._data_view = self._diff_view = None

    def reshape_like(self, other: Blob) -> None:
        """Take the shape of ``other``."""
        self.reshape(*other.shape)

    @property
    def data(self) -> np.ndarray:
        """The values."""
        view = self._data_view
        if view is None or self._data_generation != self._data.generation:
            view = self._data_view = self._data.array(self.shape, self.count)
            self._data_generation = self._data.generation
        return view

    @property
    def diff(self) -> np.ndarray:
        """The gradient of the loss with respect to ``data``."""
        view = self._diff_view
        if view is None or self._diff_generation != self._diff.generation:
            view = self._diff_view = self._diff.array(self.shape, self.count)
            self._diff_generation = self._diff.generation
        return view

    @property
    def device(self) -> Device:
        """The GPU that the blob was made for, or the host."""
        return self._data.device

    def stage_diff(self) -> None:
        """Begin to copy the diff to the host, if it is on a GPU, for an exchange to use there."""
        self._diff.stage()

    def diff_is_staged(self) -> bool:
        """Tell whether the diff can be read on the host without waiting."""
        return self._diff.is_staged()

    def read_data(self) -> np.ndarray:
        """Return the values, read-only: their copy on the other device stays valid."""
        return self._data.array(self.shape, self.count, write=False)

    def read_diff(self) -> np.ndarray:
        """Return the gradient, read-only: its copy on the other device stays valid."""
        return self._diff.array(self.shape, self.count, write=False)

    def adopt(self, values: np.ndarray) -> None:
        """Take over the memory of ``values`` as data and shape, without copying.

        This includes blobs that share the data; layers may write to it.  ``values`` has the dtype
        of this blob and is a contiguous part of an array of `aligned_zeros`.  A part that is not
        aligned is copied to new memory, because the old memory may have been adopted as well.
        """
        if values.ctypes.data % ALIGNMENT:
            copy = aligned_zeros(values.size, values.dtype)
            copy[:] = values.reshape(-1)
            values = copy.reshape(values.shape)
        self._data.adopt(values.reshape(-1))
        self.reshape(*values.shape)

    def renew(self, shape: tuple[int, ...], write: Callable[[Any], None]) -> None:
        """Take ``shape``, and the data that ``write`` puts into a flat array of the blob's device.

        On a GPU ``write`` only enqueues the work, which overlaps with other kernels.
        """
        self._data.renew(math.prod(shape), write)
        self.reshape(*shape)

    def release(self) -> None:
        """Wait until memory passed to :meth:`adopt` or used by :meth:`renew` may be overwritten."""
        self._data.release()

    def share_data(self, other: Blob) -> None:
        """Use the data of ``other``, which must have at least as many elements."""
        self._data = other._data
        self._data_view = None

    def share_diff(self, other: Blob) -> None:
        """Use the diff of ``other``, which must have at least as many elements."""
        self._diff = other._diff
        self._diff_view = None

    def new_storage(self) -> Storage:
        """Return memory for values of this blob's kind, empty so far."""
        return _storage(self.dtype)

    @property
    def diff_storage(self) -> Any:
        """The diff's storage, the same object for blobs that share it.  May be set."""
        return self._diff

    @diff_storage.setter
    def diff_storage(self, storage: Any) -> None:
        self._diff = storage
        self._diff_view = None

    @property
    def data_storage(self) -> Any:
        """The data's storage, the same object for blobs that share it.  May be set."""
        return self._data

    @data_storage.setter
    def data_storage(self, storage: Any) -> None:
        self._data = storage
        self._data_view = None

    @property
    def layout(self) -> tuple[tuple[int, ...], Storage, Any]:
        """The shape, and the storages of data and diff."""
        return self.shape, self._data, self._diff

    @property
    def memory(self) -> tuple[Any, ...]:
        """What changes when the shape or the arrays of data and diff become others."""
        data, diff = self._data, self._diff
        return self.shape, data, data.generation, diff, diff.generation

    def shares_data_with(self, other: Blob) -> bool:
        """Tell whether both blobs share the memory of their values."""
        return self._data is other._data

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def canonical_axis(self, axis: int) -> int:
        """Return ``axis`` counted from the front; raises NetError when it is out of range."""
        if not -self.ndim <= axis < self.ndim:
            raise NetError(f"axis {axis} is out of range for a {self.ndim}-axis blob {self.shape}")
        return axis % self.ndim if self.ndim else 0

    def count_of(self, start: int = 0, stop: int | None = None) -> int:
        """Return the product of the dimensions ``shape[start:stop]``."""
        return math.prod(self.shape[start:stop])

    def _legacy_axis(self, axis: int) -> int:
        if self.ndim > 4:
            raise NetError(f"a {self.ndim}-axis blob has no num, channels, height and width")
        return self.shape[axis] if axis < self.ndim else 1

    @property
    def num(self) -> int:
        """Axis 0 of a blob of at most four axes."""
        return self._legacy_axis(0)

    @property
    def channels(self) -> int:
        """Axis 1 of a blob of at most four axes."""
        return self._legacy_axis(1)

    @property
    def height(self) -> int:
        """Axis 2 of a blob of at most four axes."""
        return self._legacy_axis(2)

    @property
    def width(self) -> int:
        """Axis 3 of a blob of at most four axes."""
        return self._legacy_axis(3)

    def shape_string(self) -> str:
        """Return the shape as Caffe logs it: ``64 1 28 28 (50176)``."""
        return " ".join([*map(str, self.shape), f"({self.count})"])

    def __repr__(self) -> str:
        return f"Blob(shape={self.shape}, dtype={self.dtype})"
