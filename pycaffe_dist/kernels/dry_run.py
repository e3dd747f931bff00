"""Dry runs: find out which kernels some code needs, without compiling or running any.

In a dry run `parallel_for` and `address_of` only note the request. Nobody touches the arrays, whose
pages are still zero, so they take no memory.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from pycaffe_dist.threads import instead_of_running

Loop = tuple[Any, tuple]  # a `jit` function and the Numba types of its arguments


class Needs:
    """The kernels that a dry run asked for, each with the name of the layer that asked first.

    ``microkernels`` has pairs of a specification and a target; ``loops`` has pairs of a `jit`
    function and the types of its arguments.
    """

    def __init__(self) -> None:
        self.microkernels: dict[Hashable, str] = {}
        self.loops: dict[Loop, str] = {}
        self._asking: list[tuple[dict, Any]] = []  # since the last layer was named

    def add_microkernel(self, spec: Any, target: Any) -> None:
        """Note a microkernel."""
        self._add(self.microkernels, (spec, target))

    def add_loop(self, function: Any, args: tuple) -> None:
        """Note a call ``function(begin, end, *args)`` of a `jit` function."""
        if hasattr(function, "typeof_pyval"):
            types = tuple(function.typeof_pyval(arg) for arg in (0, 1, *args))
            self._add(self.loops, (function, types))

    def _add(self, found: dict, key: Any) -> None:
        if key not in found:
            found[key] = ""
            self._asking.append((found, key))

    def name_layer(self, name: str) -> None:
        """Name the layer that asked for all kernels noted since the last call."""
        for found, key in self._asking:
            found[key] = name
        self._asking.clear()


class _State(threading.local):
    needs: Needs | None = None


_state = _State()


def active() -> Needs | None:
    """Return the needs of the calling thread's dry run, or None outside of one."""
    return _state.needs


@contextmanager
def noting(needs: Needs) -> Iterator[None]:
    """Make the calling thread's work a dry run."""
    before, _state.needs = _state.needs, needs
    try:
        with instead_of_running(needs.add_loop):
            yield
    finally:
        _state.needs = before


def cached(maxsize: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a decorator like `functools.lru_cache` that keeps no results of a dry run."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        kept = functools.lru_cache(maxsize)(function)

        @functools.wraps(function)
        def call(*args: Any) -> Any:
            return kept(*args) if _state.needs is None else function(*args)

        return call

    return decorate
