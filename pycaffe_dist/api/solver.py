"""Solvers as Python programs see them: one class per method, step by step training."""

from __future__ import annotations

import html
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pycaffe_dist.api.net import Net
from pycaffe_dist.api.process import chosen_device, process, show_log
from pycaffe_dist.config import ExchangeSettings, TrainOptions
from pycaffe_dist.errors import UsageError
from pycaffe_dist.schema import text
from pycaffe_dist.solvers import Solver as CoreSolver
from pycaffe_dist.solvers.layer_metrics import LayerMetrics
from pycaffe_dist.solvers.sharing import share_weights

if TYPE_CHECKING:
    from pycaffe_dist.schema.caffe_pb2 import SolverParameter

_Path = str | os.PathLike[str]


class Solver:
    """A solver: ``net`` is its train net, ``test_nets`` are its test nets.

    Under mpirun every rank makes the same solver, gradients are averaged over ranks, and rank 0
    logs and writes snapshots.  Making one starts Caffe's log on standard error, in notebooks its
    warnings only.  ``exchange`` and
    ``staleness`` are as the flags of `pcaffe train`.
    """

    method: str | None = None

    def __init__(
        self, solver_file: _Path, *, exchange: str = TrainOptions.exchange, staleness: int = 0
    ):
        from pycaffe_dist.training.trainer import launched_cluster, make_solver

        show_log()
        param = text.read_solver(os.fspath(solver_file))
        if self.method is not None:
            param.type = self.method
        if param.random_seed < 0 and process.seed is not None:
            param.random_seed = process.seed
        self._solver: CoreSolver = make_solver(
            param,
            launched_cluster(),
            exchange=exchange,
            settings=ExchangeSettings(staleness=staleness),
            keep_diffs=True,
            device=chosen_device(),
        )
        # The program's own loop may call forward before the solver starts.
        self._take_weights_of_rank_0()
        self.net = Net.of(self._solver.net)
        self.test_nets = [Net.of(net) for net in self._solver.test_nets]

    def __repr__(self) -> str:
        end = f" of {self.param.max_iter}" if self.param.max_iter else ""
        return (
            f"<{type(self).__name__} of type {self.param.type}: iteration {self.iter}{end}, "
            f"learning rate {self.lr:g}, net {self.net!r}>"
        )

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self))}</p>\n{self.net._repr_html_()}"

    def _take_weights_of_rank_0(self) -> None:
        share_weights(self._solver.net, self._solver.cluster)

    @property
    def iter(self) -> int:
        """The number of iterations done."""
        return self._solver.iteration

    @property
    def param(self) -> SolverParameter:
        """The SolverParameter; a changed ``base_lr`` applies from the next iteration on."""
        return self._solver.param

    @property
    def lr(self) -> float:
        """The learning rate of the next iteration."""
        return self._solver.state.learning_rate.at(self._solver.iteration)

    def step(self, iterations: int) -> None:
        """Run ``iterations`` iterations."""
        self._solver.step(iterations)

    def solve(self, resume_file: _Path | None = None) -> None:
        """Train up to ``max_iter`` iterations, from a solver state if one is given."""
        self._solver.solve(os.fspath(resume_file or ""))

    def snapshot(self) -> None:
        """Write weights and solver state now."""
        self._solver.snapshot()

    def restore(self, path: _Path) -> None:
        """Continue from a solver state."""
        self._solver.restore(os.fspath(path))

    def share_weights(self, net: Net) -> None:
        """Let ``net`` use the train net's weights."""
        net.share_with(self.net)

    def apply_update(self) -> None:
        """Update the parameters by their diffs, as one iteration; on several ranks by their mean.

        For programs that call ``net.forward`` and ``net.backward`` themselves.
        """
        self._solver.apply_update()

    def add_callback(
        self,
        on_start: Callable[[], Any] | NCCL,
        on_gradients_ready: Callable[[], Any] | None = None,
    ) -> None:
        """Call functions in every iteration: before forward, and when the gradients are ready.

        ``on_gradients_ready`` gets the mean gradients over ranks.  An NCCL object alone may be
        given: the solver averages gradients in any case.
        """
        if isinstance(on_start, NCCL):
            return
        if on_gradients_ready is None:
            raise UsageError("add_callback needs two functions: on_start, on_gradients_ready")
        ready = on_gradients_ready
        self._solver.callbacks.before_gradients.append(lambda solver: on_start())
        self._solver.callbacks.after_gradients.append(lambda solver: ready())

    def add_record_callback(
        self, function: Callable[[dict[str, Any]], Any], layers: bool = False
    ) -> None:
        """Call ``function`` with a record of each start, display and test, on rank 0.

        They are those of `pcaffe train --metrics` (docs/metrics.md); ``layers`` asks for the norms
        and times of layers, too.
        """
        if layers:
            self._solver.recorder.layers = LayerMetrics()
        self._solver.callbacks.on_record.append(lambda solver, record: function(record))


class SGDSolver(Solver):
    """Stochastic gradient descent with momentum, whatever type the solver's file names."""

    method = "SGD"


class NesterovSolver(SGDSolver):
    """Nesterov's accelerated gradient, whatever type the solver's file names."""

    method = "Nesterov"


class AdaGradSolver(SGDSolver):
    """AdaGrad, whatever type the solver's file names."""

    method = "AdaGrad"


class RMSPropSolver(SGDSolver):
    """RMSProp, whatever type the solver's file names."""

    method = "RMSProp"


class AdaDeltaSolver(SGDSolver):
    """AdaDelta, whatever type the solver's file names."""

    method = "AdaDelta"


class AdamSolver(SGDSolver):
    """Adam, whatever type the solver's file names."""

    method = "Adam"


_CLASSES = {
    cls.method: cls
    for cls in (
        SGDSolver,
        NesterovSolver,
        AdaGradSolver,
        RMSPropSolver,
        AdaDeltaSolver,
        AdamSolver,
    )
}


def get_solver(
    solver_file: _Path, *, exchange: str = TrainOptions.exchange, staleness: int = 0
) -> Solver:
    """Return a solver of the type in the file; see `Solver`."""
    method = text.read_solver(os.fspath(solver_file)).type
    kind = _CLASSES.get(method, Solver)
    return kind(solver_file, exchange=exchange, staleness=staleness)


class NCCL:
    """pycaffe's connection of ranks, for programs for several GPUs; under mpirun it is MPI.

    ``uid`` is not needed: mpirun has connected the ranks.
    """

    def __init__(self, solver: Solver, uid: bytes | str = b""):
        self._solver = solver

    @staticmethod
    def new_uid() -> bytes:
        """Return a name for a group of ranks, as pycaffe does: 128 random bytes."""
        return os.urandom(128)

    def bcast(self) -> None:
        """Give all ranks the weights of rank 0; all ranks must call it."""
        self._solver._take_weights_of_rank_0()

    def __call__(self, layer: int = 0) -> None:
        """Do nothing: when net or solver call this, the exchange has been done already."""
