"""Values of layers and parameters in a run's records: norms, times, dead channels of ReLUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from pycaffe_dist.kernels.norms import distance, norm, norm_and_copy
from pycaffe_dist.profiling import Kind
from pycaffe_dist.solvers.callbacks import Metrics

if TYPE_CHECKING:
    from pycaffe_dist.net import Net
    from pycaffe_dist.solvers.solver import Solver

_PASSES = {Kind.FORWARD: "forward_ms", Kind.BACKWARD: "backward_ms"}


class LayerMetrics:
    """The norms of weights, mean gradients and updates of one iteration that is displayed.

    Gradients are without loss scale, divided by iter_size, before clipping and decay.  Parameters
    that an exchange updates have neither gradient nor update.  Copies of the weights stay
    allocated.
    """

    def __init__(self) -> None:
        self._before: dict[str, np.ndarray] = {}
        self._found: dict[str, dict[str, float]] = {}

    def before_update(self, solver: Solver) -> None:
        """Take weights and gradients."""
        scale = solver.state.loss_scale.value if solver.state.loss_scale else 1.0
        scale *= solver.param.iter_size
        self._found = {}
        for parameter in solver.net.parameters:
            weights = parameter.blob.read_data()
            if parameter.receives_gradient and not solver.engine.updates(parameter):
                if parameter.key not in self._before:
                    self._before[parameter.key] = np.empty_like(weights)
                kept = self._before[parameter.key]
                self._found[parameter.key] = {
                    "weights": norm_and_copy(weights, kept),
                    "gradient": norm(parameter.blob.read_diff()) / scale,
                }
            else:
                self._found[parameter.key] = {"weights": norm(weights)}

    def after_update(self, solver: Solver) -> Metrics:
        """Return the norms by parameter, and the shares of dead channels by ReLU."""
        for parameter in solver.net.parameters:
            norms = self._found[parameter.key]
            if "gradient" in norms:
                before = self._before[parameter.key]
                norms["update"] = distance(parameter.blob.read_data(), before)
                if norms["weights"]:
                    norms["ratio"] = norms["update"] / norms["weights"]
        return {"parameters": self._found, "dead": dead_channels(solver.net)}

    def times(self, seconds: Mapping[tuple[Kind, str], float], iterations: float) -> Metrics:
        """Return the milliseconds of layers per iteration; layers that run as one are the first."""
        found: dict[str, dict[str, float]] = {}
        for (kind, name), spent in seconds.items():
            if kind in _PASSES:
                found.setdefault(name, {})[_PASSES[kind]] = 1e3 * spent / iterations
        return {"layers": found}


def dead_channels(net: Net) -> dict[str, float]:
    """Return each ReLU's share of channels that are positive nowhere in this rank's batch."""
    found = {}
    for node in net.nodes:
        if node.layer.rectifier_slope == 0 and node.top[0].ndim > 1 and node.top[0].count:
            top = node.top[0].read_data()
            alive = (top > 0).any(axis=(0, *range(2, top.ndim)))
            found[node.name] = 1 - float(alive.mean())
    return found
