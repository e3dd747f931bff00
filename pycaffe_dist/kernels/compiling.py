"""How CPU kernels are compiled: `jit` turns a Python loop into machine code at its first call.

Numba's own cache of machine code checks the one file that defines a function, but kernels call
kernels of other files.  Our cache has a folder for each version of all kernel sources.  One process
of a host compiles a kernel while the others that need it wait for the result.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.core.caching import CompileResultCacheImpl, FunctionCache

from pycaffe_dist import threads
from pycaffe_dist.kernels import caching
from pycaffe_dist.kernels.jit.codegen.waiting import swap_function

# Enough to vectorise sums and to fuse multiply-adds.  The compiler must not assume that NaN and
# infinity never occur.
SAFE_FASTMATH = {"contract", "reassoc", "nsz", "arcp"}

# Threads run what is compiled here.
threads.wait_awake(swap_function)


@functools.lru_cache(maxsize=1)
def _defer_scipy() -> None:
    """Import Numba's array functions, which look for SciPy, without importing that.

    SciPy would take longer than all else that a process does for its first kernel, and no kernel
    uses it.  Numba imports it when it compiles a user's linear algebra.
    """
    from numba.np import linalg

    def find_blas() -> None:
        if importlib.util.find_spec("scipy") is None:
            raise ImportError("there is no SciPy")

    import_blas, linalg.ensure_blas = linalg.ensure_blas, find_blas
    try:
        importlib.import_module("numba.np.arraymath")
    finally:
        linalg.ensure_blas = import_blas


@functools.cache
def _stamp(path: Path) -> str:
    return caching.digest(path)


class _Place:
    """The cache's folder for the machine code of a function, and the version of its sources.

    Raises OSError when the function's source cannot be read: then the version is unknown.
    """

    def __init__(self, function: Callable[..., Any]):
        path = Path(inspect.getfile(function))
        self._stamp = _stamp(path)
        tag = hashlib.sha256(str(path).encode()).hexdigest()[:8]
        self._disambiguator = f"{function.__code__.co_firstlineno}-{tag}"

    def get_cache_path(self) -> str:
        return str(caching.cache_directory() / f"numba-{caching.version()}")

    def ensure_cache_path(self) -> None:
        os.makedirs(self.get_cache_path(), exist_ok=True)

    def get_source_stamp(self) -> str:
        return self._stamp

    def get_disambiguator(self) -> str:
        return self._disambiguator


class _Implementation(CompileResultCacheImpl):
    def __init__(self, function: Callable[..., Any]):
        self._lineno = function.__code__.co_firstlineno
        self._locator = _Place(function)
        name = f"{function.__module__}.{function.__qualname__}"
        self._filename_base = self.get_filename_base(name, "")


class _Turn:
    """This process's turn to compile, from the first missing kernel until the last one is saved."""

    def __init__(self) -> None:
        self._missing = 0
        self._lock: contextlib.ExitStack | None = None

    def begin(self, lock: Path, ready: Callable[[], bool]) -> None:
        """Take a turn, unless this process has one; stop waiting for it when ``ready()``."""
        self._missing += 1
        if self._lock is None:
            self._lock = contextlib.ExitStack()
            self._lock.enter_context(caching.exclusive(lock, ready))
            self._lock.enter_context(caching.collector_paused())

    def end(self) -> None:
        """Note that one function is done; after the last one, end the turn."""
        self._missing -= 1
        if self._missing == 0 and self._lock is not None:
            self._lock.close()
            self._lock = None


_turn = _Turn()


class _Cache(FunctionCache):
    """Numba's cache in our folder; it treats errors as misses."""

    _impl_class = _Implementation

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        _defer_scipy()
        found = self._load(sig, target_context)
        if found is not None:
            return found

        def ready() -> bool:
            nonlocal found
            found = self._load(sig, target_context)
            return found is not None

        # The functions that it calls need no locks of their own: nobody waits while holding one.
        _turn.begin(Path(self.cache_path) / f"{self._impl.filename_base}.lock", ready)
        if found is not None or ready():
            _turn.end()
        else:
            caching.announce()
        return found

    def _load(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # a damaged file can raise anything; an empty index repairs it
            with contextlib.suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            # A cache that cannot be written costs time at the next start, and nothing else.
            with contextlib.suppress(OSError):
                super().save_overload(sig, data)
        finally:
            _turn.end()


def is_kept(function: Any, types: tuple) -> bool:
    """Tell whether a `jit` function needs no compiling for arguments of these Numba types."""
    if types in function.overloads:
        return True
    cache = function._cache
    if not isinstance(cache, _Cache):
        return False
    try:
        index = cache._cache_file._load_index()
    except Exception:  # a damaged file; an empty index repairs it at the next read
        return False
    return cache._index_key(types, function.targetctx.codegen()) in index


def compile_for(module: str, name: str, types: tuple) -> None:
    """Compile the `jit` function ``name`` of a module for arguments of these types, and keep it."""
    getattr(importlib.import_module(module), name).compile(types)


def jit(function: Callable[..., Any] | None = None, *, fast: bool = False) -> Any:
    """Compile ``function`` with Numba: no interpreter lock, cached on disk, IEEE division.

    ``fast=True`` lets the compiler reorder sums and contract multiply-adds; NaN and infinity keep
    their meaning.  Used as ``@jit`` or ``@jit(fast=True)``.
    """
    # No C code calls kernels, and a wrapper for it would take time to compile.
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
    if fast:
        options["fastmath"] = SAFE_FASTMATH

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(**options)(function)
        with contextlib.suppress(OSError):
            dispatcher._cache = _Cache(function)
        return dispatcher

    return decorate if function is None else decorate(function)


@jit
def indices(begin: int, end: int) -> range:
    """Return range(begin, end) as unsigned numbers; both are at least 0.

    A negative index counts from an array's end.  In a loop that starts at a variable the compiler
    tests each signed index for that, and makes no vector code.  Unsigned ones need no test.  (An
    unsigned and a signed 64-bit number make a float64: add np.uint64(1), not 1.)
    """
    return range(np.uint64(begin), np.uint64(end))


@jit
def aligned(count: int) -> np.ndarray:
    """Return float32 memory of undefined contents that begins with a cache line.

    Numba's own arrays begin anywhere: then each second vector of 64 bytes lies in two lines.
    """
    memory = np.empty(count + 16, np.float32)
    start = -(memory.ctypes.data // 4) % 16
    return memory[start : start + count]


@jit
def copy_values(source: np.ndarray, target: np.ndarray) -> None:
    """Set the first numbers of ``target`` to those of ``source``.

    ``target[:] = source`` takes two seconds to compile: it brings Numba's strings for an error.
    """
    for i in range(len(source)):
        target[i] = source[i]


@jit
def aligned_zeros(count: int) -> np.ndarray:
    """Return zeros like `aligned`."""
    memory = aligned(count)
    memory[:] = 0
    return memory
