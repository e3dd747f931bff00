"""How the tests are divided among processes, by pytest's plugin xdist, and what these inherit."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

PARALLEL = "tests/parallel/"

# A shell that runs the tests in the background has them, and all they start, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
