"""Registries: classes by name, filled by decorators in all modules of a package.

A new layer, solver, exchange or database is one new file: nothing lists it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from pycaffe_dist.errors import PcaffeError, UsageError, did_you_mean

T = TypeVar("T")

# An error lists no more names.
_MOST_CHOICES = 20


class Registry(Generic[T]):
    """The classes of one kind, registered by the modules of ``package``.

    ``kind`` is the word for errors ("layer type"), ``error`` what an unknown name raises; modules
    are imported at the first look-up.
    """

    def __init__(self, kind: str, package: str, error: type[PcaffeError] = UsageError):
        self._kind, self._package, self._error = kind, package, error
        self._classes: dict[str, type[T]] = {}
        self._scanned = False

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        """Return a decorator that registers a class as ``name`` and sets its ``type``."""

        def decorate(cls: type[T]) -> type[T]:
            known = self._classes.get(name)
            if known is not None and known.__module__ != cls.__module__:
                raise PcaffeError(
                    f"{self._kind} '{name}' is registered twice: "
                    f"by {known.__module__} and by {cls.__module__}"
                )
            cls.type = name  # type: ignore[attr-defined]
            self._classes[name] = cls
            return cls

        return decorate

    def names(self) -> list[str]:
        """Return all registered names, sorted."""
        self._scan()
        return sorted(self._classes)

    def get(self, name: str, also: Iterable[str] = ()) -> type[T]:
        """Return the class called ``name``; raises an error with the nearest known name.

        Names in ``also`` are known, but have no class.
        """
        self._scan()
        try:
            return self._classes[name]
        except KeyError:
            if not name:
                raise self._error(f"no {self._kind} is given") from None
            known = [*also, *sorted(self._classes)]
            hint = did_you_mean(name, known)
            if not hint and len(known) <= _MOST_CHOICES:
                hint = f"; known are {', '.join(known)}"
            raise self._error(f"unknown {self._kind} '{name}'{hint}") from None

    def _scan(self) -> None:
        if self._scanned:
            return
        package = importlib.import_module(self._package)
        for module in pkgutil.walk_packages(package.__path__, f"{self._package}."):
            importlib.import_module(module.name)
        self._scanned = True
