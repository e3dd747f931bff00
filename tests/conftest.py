"""How the tests are divided among processes, by pytest's plugin xdist, and what these inherit."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

PARALLEL = "tests/parallel/"

# A shell that runs the tests in the background has them, and all they start, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def new_threads() -> Callable[[], list[str]]:
    """A function that names the data layers' threads that were started since the test began.

    Tests before it may have left some that end when the collector has found their layers.
    """
    before = set(threading.enumerate())

    def names() -> list[str]:
        started = [thread.name for thread in threading.enumerate() if thread not in before]
        return [name for name in started if name.startswith(("pcaffe-reader", "pcaffe-decoder"))]

    return names


class ByFile(LoadScopeScheduling):
    """Keeps the tests of a file together, and all those under mpirun: they need several cores."""

    def _split_scope(self, nodeid: str) -> str:
        return PARALLEL if nodeid.startswith(PARALLEL) else nodeid.partition("::")[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest."""
    items.sort(key=lambda item: not item.nodeid.startswith(PARALLEL))


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    config.option.loadscopereorder = False
    return ByFile(config, log)
