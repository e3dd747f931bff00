"""The converters of layers: functions by layer type, registered by the modules of a package."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from pycaffe_dist.errors import NetError
from pycaffe_dist.exporting.steps import Step

Converter = Callable[..., Any]


class Target(Protocol):
    """What converters write to."""

    def begin(self, step: Step) -> None:
        """Take note of the step whose converter comes next."""


class Converters:
    """The converters to one format, registered by the modules of ``package``."""

    def __init__(self, format: str, package: str):
        self._format, self._package = format, package
        self._functions: dict[str, Converter] = {}

    def converts(self, *types: str) -> Callable[[Converter], Converter]:
        """Return a decorator that registers the converter of these layer types."""

        def decorate(function: Converter) -> Converter:
            self._functions.update(dict.fromkeys(types, function))
            return function

        return decorate

    def types(self) -> list[str]:
        """Return all layer types with a converter, sorted."""
        for module in pkgutil.iter_modules(importlib.import_module(self._package).__path__):
            importlib.import_module(f"{self._package}.{module.name}")
        return sorted(self._functions)

    def run(self, steps: Iterable[Step], target: Target) -> None:
        """Convert all steps into ``target``; raises NetError that names all that have no form."""
        known, wrong = self.types(), []
        for step in steps:
            if step.type not in known:
                reason = f"this type has no converter to {self._format}"
                wrong.append(str(step.error(reason)))
                continue
            try:
                target.begin(step)
                self._functions[step.type](step, target)
            except NetError as error:
                wrong.append(str(error))
        if wrong:
            raise NetError(
                f"{len(wrong)} layer(s) cannot be expressed in {self._format}, so nothing is "
                f"written:\n" + "\n".join(wrong)
            )
