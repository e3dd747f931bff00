"""A solver's updates, and the choice of the strategy that makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pycaffe_dist.device import Device
from pycaffe_dist.log import logger
from pycaffe_dist.net import Net, Parameter
from pycaffe_dist.profiling import Profiler
from pycaffe_dist.solvers import gradients
from pycaffe_dist.solvers.engine import Engine
from pycaffe_dist.solvers.local_engine import LocalEngine
from pycaffe_dist.solvers.update.batched import BatchedUpdates
from pycaffe_dist.solvers.update.deferred import DeferredUpdates
from pycaffe_dist.solvers.update.factored import FactoredUpdates
from pycaffe_dist.solvers.update.immediate import ImmediateUpdates
from pycaffe_dist.solvers.update.updater import Updater

if TYPE_CHECKING:
    from pycaffe_dist.schema.caffe_pb2 import SolverParameter


class Updates:
    """Updates a net's parameters, each once its mean gradient is there.

    ``keep_diffs`` says whether the net's diffs must hold the updates afterwards; ``graph_memory``
    is a `GPU.graph_memory`, if updates are to be CUDA graphs.
    """

    def __init__(
        self,
        param: SolverParameter,
        net: Net,
        device: Device,
        profiler: Profiler,
        keep_diffs: bool,
        graph_memory: Any = None,
    ):
        self._graph_memory = graph_memory
        self._param, self._net, self._profiler = param, net, profiler
        self.updater: Updater[Parameter] = Updater(param, net.parameters, device)
        self._factored: FactoredUpdates | None = None
        self._needs_diffs = bool(
            keep_diffs or param.snapshot_diff or param.larc_policy or device.is_gpu
        )
        self._deferred: DeferredUpdates | None = None

    def start(self, engine: Engine) -> None:
        """Prepare for the engine's new plan."""
        parameters, param = self._net.parameters, self._param
        self._engine = engine
        self._factored = FactoredUpdates(self.updater)
        self._immediate = ImmediateUpdates(parameters, engine, self.updater, self._profiler)
        self._batched = BatchedUpdates(
            parameters, engine, self.updater, self._profiler, self._graph_memory
        )
        self._deferred = None
        if not engine.spans_forward:
            return
        why = gradients.why_together(param)
        if why:
            logger.info("Updates do not wait for the next forward: %s needs them all", why)
            return
        self._deferred = DeferredUpdates(self._immediate)

    @property
    def before_layer(self) -> Callable[[int], None] | None:
        """A function that forward must call before each layer, with its index."""
        return self._deferred.before_layer if self._deferred else None

    def run(self, rate: float, iteration: int, clipping: float) -> None:
        """Make the updates of an iteration, or leave them to the next forward."""
        # Diffs that are looked at must be whole gradients.
        shown = self._needs_diffs or self._net.debug_info
        self._immediate.factored = None if shown else self._factored
        self._strategy().run(rate, iteration, clipping)

    def _strategy(self) -> ImmediateUpdates | BatchedUpdates | DeferredUpdates:
        if self._deferred is not None and self._engine.spans_forward:
            return self._deferred
        # One by one, parameters may be updated while others' gradients are on their way.
        together = self.updater.device.is_gpu or (
            isinstance(self._engine, LocalEngine) and not self._engine.factored
        )
        return self._batched if together and not self._param.larc_policy else self._immediate

    def finish(self) -> None:
        """Make updates that were left to the next forward; the weights may then be used."""
        if self._deferred:
            self._deferred.finish()
