"""Where compiled kernels are kept, and how the processes of a host take turns at compiling."""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pycaffe_dist.log import logger

# Seconds for which a process waits for another one that compiles, before it compiles for itself.
LOCK_SECONDS = 60.0


def cache_directory() -> Path:
    """Return where compiled code is kept: $PCAFFE_CACHE_DIR, else the user's cache directory."""
    own = os.environ.get("PCAFFE_CACHE_DIR")
    if own:
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "pcaffe"


def digest(*paths: Path) -> str:
    """Return a hash of the contents of files; raises OSError when one cannot be read."""
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in paths)).hexdigest()


@functools.lru_cache(maxsize=1)
def version() -> str:
    """Return a hash over the sources of all CPU kernels: kernels call and inline each other."""
    folder = Path(__file__).parent
    sources = (path for path in folder.rglob("*.py") if path.parent != folder / "cuda")
    return digest(*sorted(sources))[:16]


def mark(name: str) -> Path:
    """Return the file whose existence means that all kernels of ``name`` are in the cache."""
    return cache_directory() / f"{version()}-{name}.complete"


@functools.lru_cache(maxsize=1)
def announce() -> None:
    """Log, once, that kernels are being compiled."""
    logger.info(
        "Compiling kernels for this machine, which takes up to a minute the first time; "
        "they are kept in %s",
        cache_directory(),
    )


@functools.lru_cache(maxsize=1)
def _announce_waiting() -> None:
    logger.info("Waiting for another process of this machine that is compiling kernels")


@contextlib.contextmanager
def exclusive(
    path: Path, ready: Callable[[], bool], seconds: float = LOCK_SECONDS
) -> Iterator[None]:
    """Hold a lock on the file ``path``, or give up after ``seconds`` or when ``ready()``.

    Without a lock, go on: some file systems have none, and some folders cannot be written.
    """
    try:
        import fcntl

        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "w")  # noqa: SIM115
    except (ImportError, OSError):
        yield
        return
    with file:
        start = time.monotonic()
        while not _lock(fcntl, file):
            if ready() or time.monotonic() > start + seconds:
                break
            _announce_waiting()
            time.sleep(0.005)
        yield


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Stop Python's collector, which looks at a compiler's many objects again and again."""
    runs = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if runs:
            gc.enable()


def _lock(fcntl, file) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True
