"""The storage of a GPU's blob: a buffer on the GPU and one on the host, copied when needed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from pycaffe_dist import device
from pycaffe_dist.kernels.cuda.casting import cast
from pycaffe_dist.precision import wide
from pycaffe_dist.storage import Storage

if TYPE_CHECKING:
    from pycaffe_dist.gpu.base import GPU


class MirroredStorage(Storage):
    """A zero-initialised buffer whose valid side is the last one written.

    Each side is allocated at its first use, the host's in pinned memory.  A request for writing
    makes its side the only valid one; a request for reading makes both valid. If the storage has 16
    bits, the host's side is float32, which the CPU's kernels can read.
    """

    __slots__ = (
        "_array",
        "_borrows",
        "_capacity",
        "_copied",
        "_gpu",
        "_host_dtype",
        "_next",
        "_on_device",
        "_on_host",
        "_staged",
        "_used",
        "_views",
    )

    def __init__(self, dtype: np.dtype, gpu: GPU):
        super().__init__(dtype)
        # Equal to nothing, so that every access comes here: it may be from another device.
        self.generation = math.nan
        self._gpu = gpu
        self._host_dtype = wide(dtype)
        self._capacity = 0
        self._array: Any = None
        self._on_host = self._on_device = False  # the valid sides: none before first use
        self._borrows = False  # whether the host's side belongs to somebody else
        self._copied: Any = None  # the event after the last copy from the host's side
        self._staged: Any = None  # the event after a copy to the host that was started early
        # The target of copies that overlap with other work, and the event after its last use.
        self._next: Any = None
        self._used: Any = None
        self._views: dict[tuple[bool, tuple[int, ...]], Any] = {}

    @property
    def device(self) -> GPU:
        return self._gpu

    def stage(self) -> None:
        if self._on_host or not self._on_device:
            return
        with device.use(self._gpu):
            written = self._gpu.record()
            with self._gpu.stream("exchange"):
                self._gpu.wait(written)
                self._download()
                self._staged = self._gpu.record()

    def is_staged(self) -> bool:
        return self._staged is None or self._gpu.is_reached(self._staged)

    def array(self, shape: tuple[int, ...], count: int, write: bool = True) -> Any:
        on_gpu = device.current().is_gpu
        if count > self._capacity:
            # As in Caffe, a buffer that grows loses its values.
            self._finish_staged()
            self._capacity = count
            self._array = self._buffer = self._next = None
            self._on_host = self._on_device = False
            self._views.clear()
        if on_gpu:
            self.use_on_device(write)
            if self._gpu.watch is not None:
                self._gpu.watch.use(self, self._array, write)
        else:
            self._move_to_host()
            self._on_device = self._on_device and not write
        view = self._views.get((on_gpu, shape))
        if view is None:
            buffer: Any = self._array if on_gpu else self._buffer
            view = self._views[on_gpu, shape] = buffer[:count].reshape(shape)
        return view

    def adopt(self, buffer: np.ndarray) -> None:
        """Use flat ``buffer`` of the host from now on; it keeps its values."""
        self.renew(buffer.size, lambda target: self._upload(buffer, target))
        self._buffer, self._borrows = buffer, True
        self._on_host = True

    def renew(self, count: int, write: Callable[[Any], None]) -> None:
        """Use ``count`` values from now on that ``write`` enqueues to be written to a flat array.

        The copy stream writes at once to other memory, because the GPU may still be computing with
        the old values. The storage's array stays where it is while ``count`` does not change.
        """
        self._finish_copy()
        self._finish_staged()
        if self._borrows or count != self._capacity:
            self._buffer, self._borrows = None, False
        if count != self._capacity or self._array is None:
            self._capacity, self._next = count, None
            with device.use(self._gpu):
                self._array = self._gpu.empty(count, self.dtype)
        self._views.clear()
        with device.use(self._gpu):
            if self._next is None:
                self._next, self._used = self._gpu.empty(count, self.dtype), self._gpu.record()
            with self._gpu.stream("copy"):
                self._gpu.wait(self._used)
                write(self._next)
                self._copied = self._gpu.record()
            self._gpu.wait(self._copied)
            self._array[...] = self._next
            self._used = self._gpu.record()
        self._on_host, self._on_device = False, True

    def has(self, array: Any) -> bool:
        """Tell whether this is the memory on the device."""
        return self._array is array

    def use_on_device(self, write: bool) -> None:
        """Do as `array` does on the device."""
        if not self._on_device:
            self._move_to_device()
        if write:
            self._on_host = False
            if self._staged is not None:
                self._gpu.wait(self._staged)
                self._staged = None

    def release(self) -> None:
        self._finish_copy()

    def _move_to_device(self) -> None:
        self._gpu.refuse_in_capture("values come from the host")
        if self._array is None:
            make = self._gpu.empty if self._on_host else self._gpu.zeros
            self._array = make(self._capacity, self.dtype)
        if self._on_host and self._buffer is not None:
            self._upload(self._buffer, self._array)
        self._on_device = True

    def _upload(self, source: np.ndarray, target: Any) -> None:
        """Begin to copy the host's side, ``source``, to ``target``, on the current stream."""
        exact = self._host_dtype == self.dtype
        copy = target if exact else self._gpu.empty(self._capacity, self._host_dtype)
        self._gpu.copy_to_device(source, copy)
        if not exact:
            cast(copy, target)
        self._copied = self._gpu.record()

    def _move_to_host(self) -> None:
        # The caller may overwrite the host's array during the copy.
        self._finish_copy()
        if self._on_host:
            return
        if self._staged is not None:
            self._finish_staged()
        elif self._on_device:
            with device.use(self._gpu):
                self._download()
                self._gpu.synchronize_stream()
        elif self._buffer is None:
            self._buffer = self._gpu.host_zeros(self._capacity, self._host_dtype)
        self._on_host = True

    def _download(self) -> None:
        """Begin to copy the device's side to the host's, on the current stream."""
        if self._buffer is None:
            self._buffer = self._gpu.host_zeros(self._capacity, self._host_dtype)
        copy = self._array
        if self._host_dtype != self.dtype:
            copy = self._gpu.empty(self._capacity, self._host_dtype)
            cast(self._array, copy)
        self._gpu.copy_to_host(copy, self._buffer)

    def _finish_copy(self) -> None:
        if self._copied is not None:
            self._gpu.synchronize_event(self._copied)
            self._copied = None

    def _finish_staged(self) -> None:
        if self._staged is not None:
            self._gpu.synchronize_event(self._staged)
            self._staged = None
