"""For all tests: their order, their division among processes, and fixtures."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

# Tests under mpirun need several cores: one at a time, and first, since they take longest.
PARALLEL = "tests/parallel/"
PROCESS_DIED = pytest.StashKey[bool]()

# Several processes run tests: threads of NumPy's products would wait for cores, and for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A shell that runs the tests in the background makes them, and their processes, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def new_threads() -> Callable[[], list[str]]:
    """Return a function that names the data layers' threads started since the test began.

    Earlier tests may have left threads that end when the collector has found their layers.
    """
    before = set(threading.enumerate())

    def names() -> list[str]:
        started = [thread.name for thread in threading.enumerate() if thread not in before]
        return [name for name in started if name.startswith(("pcaffe-reader", "pcaffe-decoder"))]

    return names


# Modules and tests live until the end: the collector need not look at them again and again.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(PARALLEL))


@pytest.hookimpl(optionalhook=True)  # without xdist there is no such hook
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from by_file import ByFile

    config.option.loadscopereorder = False
    return ByFile(config, log, PARALLEL)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object | None) -> None:
    node.config.stash[PROCESS_DIED] = node.config.stash.get(PROCESS_DIED, False) or bool(error)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail a run in which a process has died outside of a test: some tests may not have run."""
    if exitstatus == pytest.ExitCode.OK and session.config.stash.get(PROCESS_DIED, False):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
