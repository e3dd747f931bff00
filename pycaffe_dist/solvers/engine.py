"""What a solver asks of an engine, which combines gradients over ranks."""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pycaffe_dist.config import Action

if TYPE_CHECKING:
    from pycaffe_dist.net.parameter import Parameter
    from pycaffe_dist.profiling import Record
    from pycaffe_dist.solvers.update.updater import Updater


class Factors(NamedTuple):
    """The factors of a mean gradient uᵀ·v/ranks of M×N weights: u (K, M) and v (K, N)."""

    u: np.ndarray
    v: np.ndarray
    ranks: int = 1


class Engine(abc.ABC):
    """The solver's way to the mean of all ranks' gradients.

    Per iteration: :meth:`begin`, then :meth:`gradient_ready` for every parameter during backward,
    then :meth:`wait` for every parameter.
    """

    @abc.abstractmethod
    def start(
        self,
        parameters: Sequence[Parameter],
        by_hand: bool = False,
        updater: Updater[Parameter] | None = None,
    ) -> None:
        """Prepare for a net's parameters; their values are equal on all ranks already.

        In a loop ``by_hand``, gradients may be sums over any number of backward passes.  Exchanges
        that update parameters do what ``updater`` would, and go on from rank 0's history in it.
        """

    def updates(self, parameter: Parameter) -> bool:
        """Tell whether an exchange updates a parameter, so that the solver must not."""
        return False

    @property
    def updates_some(self) -> bool:
        """Whether there is such a parameter."""
        return False

    def begin(self, iteration: int, rate: float) -> None:  # noqa: B027 (optional)
        """Note the iteration whose gradients come next, and its learning rate."""

    @property
    def factored(self) -> Collection[str]:
        """The keys of the parameters whose gradients backward is to leave to their factors."""
        return ()

    @abc.abstractmethod
    def gradient_ready(self, parameter: Parameter) -> None:
        """Note that ``parameter.blob.diff`` holds this rank's final gradient.

        For a :attr:`factored` parameter, the layer holds the gradient's factors instead.
        """

    @abc.abstractmethod
    def wait(self, parameter: Parameter, rebuild: bool = True) -> Factors | None:
        """Return when ``parameter.blob.diff`` holds the mean gradient over ranks.

        If an exchange :meth:`updates` the parameter, return when its weights are updated.  Without
        ``rebuild`` it may return the factors instead, which hold until the next iteration.
        """

    def commit(self, together: bool) -> None:  # noqa: B027 (optional)
        """Where ranks may be lost without ending the run: wait for all mean gradients.

        Then this rank's update can be made whoever is lost.  With ``together``, all ranks make it
        or, if one of them is lost before, none.
        """

    def has_arrived(self, parameter: Parameter) -> bool:
        """Tell whether :meth:`wait` would find all messages of a parameter there."""
        return True

    @property
    def spans_forward(self) -> bool:
        """Whether the solver is to leave each update to the next forward of the layer."""
        return False

    @property
    def seconds_waited(self) -> float:
        """The time that this rank has waited for messages, in total."""
        return 0.0

    @property
    def seconds_under_way(self) -> float:
        """The time in which this rank has had messages under way, in total."""
        return 0.0

    def messages(self) -> dict[str, dict[str, float]]:
        """Return the messages of the plan by name: count, gradient's bytes, predicted ms of each.

        The same dictionary while the plan is the same; empty without a plan.
        """
        return {}

    def profile(self, record: Record | None) -> None:  # noqa: B027 (optional)
        """Call ``record`` for all messages, and for waiting for them, from now on."""

    def fix_plan(self) -> bytes:
        """Return the plan, which is not revised any more; empty if any run makes the same."""
        return b""

    def resume_plan(self, plan: bytes) -> None:  # noqa: B027 (optional)
        """Use a plan that :meth:`fix_plan` returned, if it fits what :meth:`start` gets."""

    def synchronize(self) -> None:  # noqa: B027 (optional)
        """Give all ranks the same weights, when some may have seen fewer updates than others."""

    def collect_history(self, updater: Updater[Parameter]) -> list[np.ndarray]:
        """Return all history on rank 0, wherever it is; all ranks must call it."""
        return updater.method.history

    @property
    def mean(self) -> Callable[[float], float] | None:
        """The mean of a number over several ranks, which all ask for in the same pass."""
        return None

    @abc.abstractmethod
    def mean_statistics(self) -> None:
        """Give the layers' running statistics their mean over ranks, on all ranks."""

    @abc.abstractmethod
    def agree(self, action: Action) -> Action:
        """Return what all ranks do, at the latest one call after a rank asked for it."""

    @abc.abstractmethod
    def finish(self) -> None:
        """Forget the net; waits for nothing, so that a rank that fails ends at once."""
