"""Divides the tests among the processes of pytest-xdist, also after a process has died."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController


class ByFile(LoadScopeScheduling):
    """Keeps the tests of a file in one process, and all tests of one folder.

    A test whose process dies has failed; the rest of its file goes on in another process.
    LoadScopeScheduling would run that test again in each new process; it also hands out finished
    files, for which a process then waits for ever.
    """

    def __init__(self, config: pytest.Config, log: Any, folder: str):
        super().__init__(config, log)
        self._folder = folder

    def _split_scope(self, nodeid: str) -> str:
        return self._folder if nodeid.startswith(self._folder) else nodeid.partition("::")[0]

    def remove_node(self, node: WorkerController) -> str | None:
        """Forget a worker; give its unfinished tests to others, except the test in which it died.

        Returns that test, or None if the worker has finished all its tests.
        """
        if self.collection is None:
            # The tests are divided when the worker that replaces this one has collected them.
            self.registered_collections.pop(node, None)
        unfinished = [
            (scope, test)
            for scope, tests in self.assigned_work.pop(node).items()
            for test, is_complete in tests.items()
            if not is_complete
        ]
        if not unfinished:
            return None
        (_, died), *others = unfinished
        left: OrderedDict[str, dict[str, bool]] = OrderedDict()
        for scope, test in others:
            left.setdefault(scope, {})[test] = False
        self.workqueue = left | self.workqueue
        for other in self.nodes:
            self._reschedule(other)
        return died

    def _reschedule(self, node: WorkerController) -> None:
        """Give a worker two tests, or let it end: it starts a test when it knows the next one."""
        if node not in self.registered_collections:
            return
        for _ in range(2):
            if not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
                super()._reschedule(node)
