"""Graphs of the emulated GPU: calls that are recorded, and done only when the graph is launched.

Like a graph of CUDA, a recording keeps addresses and numbers, but no arrays: what an address holds
when the graph is launched is what counts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pycaffe_dist.errors import DeviceError
from pycaffe_dist.gpu.base import Graph
from pycaffe_dist.gpu.emulated_memory import (
    GARBAGE,
    Place,
    Pool,
    allocate,
    is_part_of,
    uses_pool,
)


class _Current(threading.local):
    recording: Recording | None = None


_here = _Current()


def recording() -> Recording | None:
    """Return the recording that takes this thread's calls, if there is one."""
    return _here.recording


def refuse(what: str) -> None:
    """Raise DeviceError while a graph is captured."""
    if _here.recording is not None:
        raise DeviceError(f"{what} while a graph is captured")


class Recording(Graph):
    """The calls of a pass over arrays, which come from ``pool`` and from outside."""

    def __init__(self, pool: Pool):
        self._pool = pool  # keeps the memory
        self._steps: list[Callable[[], Any]] = []

    def __enter__(self) -> Recording:
        self._pool.is_closed, _here.recording = True, self
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.is_closed, _here.recording = False, None

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, function: Callable[..., Any], *args: Any, **options: Any) -> None:
        """Record a call with arrays of the device and numbers."""
        args, options = _places(args), _places(options)
        self._steps.append(lambda: function(*_arrays(args), **_arrays(options)))

    def add_with_result(
        self, result: np.ndarray, function: Callable[..., Any], path: Sequence[int], *args: Any
    ) -> None:
        """Record a call, and the copy of its result, or of a part of it, to ``result``."""
        args, place = _places(args), Place(result)

        def step() -> None:
            with np.errstate(all="ignore"):
                value = function(*_arrays(args))
            for index in path:
                value = value[index]
            np.copyto(place.array(), value, casting="unsafe")

        self._steps.append(step)

    def launch(self) -> None:
        for step in self._steps:
            step()


def change(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function that changes its arguments, or record the call."""
    if _here.recording is None:
        return function(*args, **options)
    _here.recording.add(function, *args, **options)
    return None


def compute(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Return the result of a function without side effects, with memory from the pool if one is
    used; in a capture, arrays whose values the graph will compute."""
    if not uses_pool():
        return function(*args, **options)

    def call(args: tuple, options: dict) -> Any:
        return function(*args, **options)

    with np.errstate(all="ignore"):
        found = call(args, options)
    return _kept(found, _inputs((args, options)), call, (args, options), ())


def _kept(found: Any, inputs: list, call: Callable, args: tuple, path: tuple[int, ...]) -> Any:
    """Return a result, or copies in the pool of those of its arrays that are new."""
    if isinstance(found, list | tuple):
        parts = [_kept(each, inputs, call, args, (*path, i)) for i, each in enumerate(found)]
        return type(found)(parts)
    if not isinstance(found, np.ndarray | np.generic):
        return found
    if isinstance(found, np.ndarray) and is_part_of(found, inputs):
        return found
    result = allocate(found.shape, found.dtype)
    if _here.recording is None:
        result[...] = found
    else:
        _here.recording.add_with_result(result, call, path, *args)
    return result


def new_array(shape: Any, dtype: Any, fill: int = GARBAGE) -> np.ndarray:
    """Return a new array of the device with equal bytes, which in a capture the graph sets."""
    array = allocate(shape, dtype, fill)
    if _here.recording is not None:
        _here.recording.add(_fill_bytes, array, fill)
    return array


def _fill_bytes(array: np.ndarray, fill: int) -> None:
    array.reshape(-1).view(np.uint8)[...] = fill


def _inputs(value: Any) -> list[np.ndarray]:
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, list | tuple):
        return [array for each in value for array in _inputs(each)]
    return []


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {key: _mapped(each, change) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_mapped(each, change) for each in value)
    if isinstance(value, slice):
        parts = value.start, value.stop, value.step
        return slice(*(_mapped(each, change) for each in parts))
    return change(value)


def _places(value: Any) -> Any:
    return _mapped(value, lambda each: Place(each) if isinstance(each, np.ndarray) else each)


def _arrays(value: Any) -> Any:
    return _mapped(value, lambda each: each.array() if isinstance(each, Place) else each)
