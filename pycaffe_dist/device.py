"""What a rank computes on: the host, or a GPU; which of them is the current one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pycaffe_dist.errors import DeviceError

if TYPE_CHECKING:
    import numpy as np


class Device:
    """Where arrays lie and kernels run; the base of the host and of `pycaffe_dist.gpu.base.GPU`."""

    is_gpu = False
    name = "CPU"

    @property
    def xp(self) -> Any:
        """The module that makes and handles this device's arrays."""
        import numpy

        return numpy

    def enter(self) -> Any:
        """Prepare the calling thread; return what `leave` needs to undo it."""

    def leave(self, before: Any) -> None:
        """Undo what `enter` did."""

    def host_array(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return an undefined array on the host, of memory that copies to this device fast."""
        return HOST.xp.empty(shape, dtype)

    def at_every_pass(self, action: Callable[[], None]) -> None:
        """Do what the host must do in each forward: a GPU may repeat the rest without the layer."""
        action()

    def synchronize(self) -> None:
        """Let the calling thread wait until the device has done all that it was given."""

    def warn_of_fallbacks(self) -> None:
        """Log how often our own kernels did what a library refused, if they did."""


HOST = Device()


class _ThreadState(threading.local):
    # Threads begin on the host; readers of data and the exchange's thread stay there.
    device = HOST


_here = _ThreadState()


def current() -> Device:
    """Return the device that the calling thread computes on."""
    return _here.device


def current_gpu() -> Any:
    """Return the calling thread's GPU; raises DeviceError when it computes on the host."""
    device = _here.device
    if not device.is_gpu:
        raise DeviceError("a GPU's arrays were used outside of device.use(gpu)")
    return device


def xp() -> Any:
    """Return the module that makes arrays on the current device: NumPy, or CuPy."""
    return _here.device.xp


def is_on_gpu(array: Any) -> bool:
    """Tell whether an object is an array of a GPU."""
    # Asked of its class: CuPy's arrays make a description of themselves when they are asked.
    return hasattr(type(array), "__cuda_array_interface__")


def to_numpy(array: Any) -> np.ndarray:
    """Return an array of the current device as one of the host: a copy, if it is a GPU's."""
    return current_gpu().to_host(array) if is_on_gpu(array) else array


def from_numpy(array: np.ndarray) -> Any:
    """Return a contiguous host array on the current device: itself, or a copy on a GPU.

    The copy is made in the order of the current stream: until then ``array`` must stay as it is.
    """
    here: Any = current()
    if not here.is_gpu:
        return array
    copy = here.empty(array.shape, array.dtype)
    here.copy_to_device(array, copy)
    return copy


class use:
    """A context in which the calling thread computes on ``device``."""

    __slots__ = ("_before", "_device", "_state")

    def __init__(self, device: Device):
        self._device = device

    def __enter__(self) -> Device:
        self._before = _here.device
        self._state = None
        if self._device is not self._before:
            self._state = self._device.enter()
            _here.device = self._device
        return self._device

    def __exit__(self, *exception: object) -> None:
        if self._device is not self._before:
            _here.device = self._before
            self._device.leave(self._state)
