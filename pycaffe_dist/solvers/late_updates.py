"""Updates that wait for the next forward, so that gradients may travel while it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pycaffe_dist.net import Parameter

if TYPE_CHECKING:
    from pycaffe_dist.exchange.engine import Engine


class LateUpdates:
    """The updates of one iteration, each made before the first layer that uses its parameter.

    While that layer's gradient is on its way, others that have arrived are used.  True as long as
    any update is missing: until then, only forward may look at ``parameters``.
    """

    def __init__(self, parameters: Sequence[Parameter], engine: Engine):
        self._parameters = parameters
        self._engine = engine
        self._missing: dict[int, Parameter] = {}
        self._update: Callable[[int], None] | None = None
        self._of_layer: dict[int, list[int]] = {}
        for index, parameter in enumerate(parameters):
            for layer, _ in parameter.sharers:
                self._of_layer.setdefault(layer, []).append(index)

    def __bool__(self) -> bool:
        return bool(self._missing)

    def begin(self, update: Callable[[int], None]) -> None:
        """Let all parameters wait for ``update``, which gets an index and waits for messages."""
        self._update = update
        self._missing = dict(enumerate(self._parameters))

    def before_layer(self, layer: int) -> None:
        """Update the parameters of a layer that is to run forward."""
        for index in self._of_layer.get(layer, ()) if self._missing else ():
            if index in self._missing:
                self._use_the_time(index)
                self._make(index)

    def finish(self) -> None:
        """Make all updates that are missing."""
        for index in reversed(tuple(self._missing)):
            self._make(index)

    def _use_the_time(self, index: int) -> None:
        """Make updates that can be made, until the one of parameter ``index`` can."""
        while not self._engine.has_arrived(self._parameters[index]):
            arrived = (
                other
                for other, parameter in self._missing.items()
                if other != index and self._engine.has_arrived(parameter)
            )
            other = next(arrived, None)
            if other is None:
                return
            self._make(other)

    def _make(self, index: int) -> None:
        parameter, update = self._missing.pop(index), self._update
        if not self._missing:
            self._update = None  # it refers to the owner of this object
        if update is not None:
            update(index)
        if not parameter.as_factors:
            parameter.clear_diff()
