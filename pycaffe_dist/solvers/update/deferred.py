"""Deferred updates: they wait for the next forward, so that gradients may travel while it runs."""

from __future__ import annotations

from functools import partial

from pycaffe_dist.net import Parameter
from pycaffe_dist.solvers.update.immediate import ImmediateUpdates


class DeferredUpdates:
    """Leaves the updates of one iteration to the next forward, before the first layer that needs
    each.

    While that layer's gradient is on its way, others that have arrived are used.  True as long as
    any update is missing: until then, only forward may look at the parameters.
    """

    def __init__(self, immediate: ImmediateUpdates):
        self._immediate = immediate
        self._engine = immediate.engine
        self._missing: dict[int, Parameter] = {}
        self._update = partial(immediate.update, rate=0.0, iteration=0, clipping=1.0)
        self._of_layer: dict[int, list[int]] = {}
        for index, parameter in enumerate(immediate.parameters):
            for layer, _ in parameter.sharers:
                self._of_layer.setdefault(layer, []).append(index)

    def __bool__(self) -> bool:
        return bool(self._missing)

    def run(self, rate: float, iteration: int, clipping: float) -> None:
        """Leave the updates of all parameters to `before_layer` and `finish`."""
        self._update = partial(
            self._immediate.update, rate=rate, iteration=iteration, clipping=clipping
        )
        self._missing = dict(enumerate(self._immediate.parameters))

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
        while not self._engine.has_arrived(self._missing[index]):
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
        del self._missing[index]
        self._update(index)
