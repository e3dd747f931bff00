"""Dictionaries that tell when something is taken from them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, ItemsView, Mapping, ValuesView
from typing import Any, TypeVar

Value = TypeVar("Value")


class OnDemand(OrderedDict[str, Value]):
    """Values by name; calls ``ask`` before it gives one whose name is not in ``free``."""

    def __init__(
        self, values: Mapping[str, Value], ask: Callable[[], None], free: Collection[str] = ()
    ):
        super().__init__(values)
        self._ask, self._free = ask, frozenset(free)

    def __getitem__(self, name: str) -> Value:
        if name not in self._free and name in self:
            self._ask()
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value, or the default for an unknown name."""
        if name not in self:
            return default
        return self[name]

    def values(self) -> ValuesView[Value]:  # type: ignore[override]
        """Return all values."""
        self._ask()
        return super().values()

    def items(self) -> ItemsView[str, Value]:  # type: ignore[override]
        """Return all names and values."""
        self._ask()
        return super().items()
