"""Ends the process with one line when a mapped file is truncated while it is read.

Reading a page after the file's new end raises SIGBUS, for which Python has no exception.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import signal
from collections.abc import Callable
from typing import Any

from pycaffe_dist import log
from pycaffe_dist.errors import FAILURE, DataError

# Descriptors of mapped files, their required sizes, and the messages for shorter files.
_guarded: dict[int, tuple[int, int, str]] = {}
_numbers = itertools.count()


def guard(descriptor: int, size: int, message: str) -> Callable[[], None]:
    """End the process with ``message`` if a read fails because the file has less than ``size``.

    Returns a function that ends this, to be called before the file is closed.
    """
    number = next(_numbers)
    _guarded[number] = descriptor, size, message
    _handler()

    def end() -> None:
        _guarded.pop(number, None)

    return end


def shrunken(descriptor: int, size: int) -> bool:
    """Tell whether an open file has less than ``size`` bytes."""
    return os.fstat(descriptor).st_size < size


@functools.cache
def _handler() -> Any:
    """Handle SIGBUS: Python's own handlers would run after the failing access, that is, never."""
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p

    @ctypes.CFUNCTYPE(None, ctypes.c_int)
    def handle(number: int) -> None:
        for descriptor, size, message in list(_guarded.values()):
            if shrunken(descriptor, size):
                log.fatal(DataError(message))
                os._exit(FAILURE)
        # Another cause: the access is repeated, and the default handler ends the process.
        libc.signal(number, before)

    before = libc.signal(signal.SIGBUS, ctypes.cast(handle, ctypes.c_void_p))
    return handle
