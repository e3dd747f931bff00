"""Values of layers and parameters in a run's records: norms, times, dead channels of ReLUs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pycaffe_dist.kernels.activation import positive_channels
from pycaffe_dist.kernels.norms import sum_of_squares
from pycaffe_dist.precision import wide
from pycaffe_dist.profiling import Kind
from pycaffe_dist.solvers.callbacks import Metrics

if TYPE_CHECKING:
    from pycaffe_dist.net import Net
    from pycaffe_dist.solvers.solver import Solver
    from pycaffe_dist.solvers.update.target import UpdateTarget

_PASSES = {Kind.FORWARD: "forward_ms", Kind.BACKWARD: "backward_ms"}


class LayerMetrics:
    """The norms of weights, mean gradients and updates of one iteration that is displayed.

    Gradients are without loss scale, divided by iter_size, before clipping and decay.  Parameters
    that an exchange updates, and all if the update was left out, have weights alone.  The norms are
    taken as each parameter, or part of one, is updated, and its arrays come from memory anyway.
    """

    def __init__(self) -> None:
        # The squares of the norms of weights, gradient and update, by the parameter's index.
        self._squares: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])

    def before_update(self, solver: Solver) -> None:
        """Watch the updates."""
        self._squares.clear()
        solver.watch_updates(self._add)

    def _add(self, index: int, part: UpdateTarget, updated: bool) -> None:
        squares = self._squares[index]
        if updated:
            squares[2] += sum_of_squares(part.gradient)
        else:
            squares[0] += sum_of_squares(part.weights)
            squares[1] += sum_of_squares(part.gradient)

    def after_update(self, solver: Solver) -> Metrics:
        """Return the norms by parameter, and the shares of dead channels by ReLU."""
        solver.watch_updates(None)
        scale = solver.state.loss_scale.value if solver.state.loss_scale else 1.0
        scale *= solver.param.iter_size
        found: dict[str, dict[str, float]] = {}
        for index, parameter in enumerate(solver.net.parameters):
            if parameter.receives_gradient and index in self._squares:
                weights, gradient, update = map(math.sqrt, self._squares[index])
                norms = {"weights": weights, "gradient": gradient / scale, "update": update}
                if weights:
                    norms["ratio"] = update / weights
            else:
                norms = {"weights": math.sqrt(sum_of_squares(parameter.blob.read_data()))}
            found[parameter.key] = norms
        return {"parameters": found, "dead": dead_channels(solver.net)}

    def times(self, seconds: Mapping[tuple[str, str], float], iterations: float) -> Metrics:
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
            alive = positive_channels(top.astype(wide(top.dtype), copy=False))
            found[node.name] = 1 - float(alive.mean())
    return found
