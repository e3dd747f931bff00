"""What a part of an iteration uses that may change until it runs again: for graphs of the part."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pycaffe_dist.gpu.mirror import MirroredStorage


class Watch:
    """Takes note of storages, of the host's actions and of checks, while a part runs.

    ``is_again``: the part runs once more in the same way. The actions have been done then, and the
    checks' memory on the host is there.
    """

    def __init__(self) -> None:
        self.is_again = False
        self.actions: list[Callable[[], None]] = []
        self.checks: list[tuple[np.ndarray, Callable[[np.ndarray], None]]] = []
        self._written: dict[MirroredStorage, bool] = {}
        self._arrays: dict[MirroredStorage, Any] = {}
        self._next_check = 0

    def prepare(self) -> None:
        """Do what the host must do before the part runs once more, and give it the values."""
        for action in self.actions:
            action()
        for storage, written in self._written.items():
            storage.use_on_device(written)

    def start_again(self) -> None:
        """Let the part run once more, after `prepare`."""
        self.is_again, self._next_check = True, 0

    def act(self, action: Callable[[], None]) -> None:
        """Do what the host must do before each run."""
        if not self.is_again:
            action()
            self.actions.append(action)

    def use(self, storage: MirroredStorage, array: Any, write: bool) -> None:
        """Note that the part uses a storage's array on the device, and whether it changes it."""
        self._written[storage] = write or self._written.get(storage, False)
        self._arrays[storage] = array

    def check(
        self, check: Callable[[np.ndarray], None], make: Callable[[], np.ndarray]
    ) -> np.ndarray:
        """Return the host's memory for the values that ``check`` gets, by ``make`` at first."""
        if not self.is_again:
            self.checks.append((make(), check))
        self._next_check += 1
        return self.checks[self._next_check - 1][0]

    def is_current(self) -> bool:
        """Tell whether all storages still have the arrays that the part has used."""
        return all(storage.has(array) for storage, array in self._arrays.items())
