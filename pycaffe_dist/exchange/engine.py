"""What a solver asks of an engine, which combines gradients over ranks; and that of one rank."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pycaffe_dist.config import Action

if TYPE_CHECKING:
    from pycaffe_dist.net.parameter import Parameter
    from pycaffe_dist.profiling import Record
    from pycaffe_dist.solvers.layer_times import Times
    from pycaffe_dist.solvers.updating import Updater


class Factors(NamedTuple):
    """What a mean gradient uᵀ·v/ranks of M×N weights is made of: u (K, M) and v (K, N)."""

    u: np.ndarray
    v: np.ndarray
    ranks: int = 1


class Engine(abc.ABC):
    """What the solver knows of other ranks' gradients.

    Per iteration: :meth:`begin`, then :meth:`gradient_ready` for every parameter during backward,
    then :meth:`wait` for every parameter.
    """

    @abc.abstractmethod
    def start(
        self,
        parameters: Sequence[Parameter],
        by_hand: bool = False,
        updater: Updater | None = None,
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
        """Take note of the iteration whose gradients come next, and of its learning rate."""

    @abc.abstractmethod
    def gradient_ready(self, parameter: Parameter) -> None:
        """Take note that ``parameter.blob.diff`` holds this rank's final gradient."""

    @abc.abstractmethod
    def wait(self, parameter: Parameter) -> None:
        """Return when ``parameter.blob.diff`` holds the mean gradient over ranks.

        Or, if an exchange :meth:`updates` it, when its weights are updated.
        """

    def wait_for_factors(self, parameter: Parameter) -> Factors | None:
        """Do as :meth:`wait` does, or leave it to the caller to rebuild the mean gradient.

        Then it returns the factors, which hold until the next iteration.
        """
        self.wait(parameter)
        return None

    def has_arrived(self, parameter: Parameter) -> bool:
        """Tell whether :meth:`wait` would find all messages of a parameter there."""
        return True

    @property
    def spans_forward(self) -> bool:
        """Whether the solver is to leave each update to the next forward of the layer."""
        return False

    def hidden(self) -> str:
        """Say how much of the messages' time was hidden since the last call; empty if unknown."""
        return ""

    def listen(self, record: Record | None) -> None:  # noqa: B027 (optional)
        """Tell ``record`` of all messages and of waiting for them from now on."""

    @property
    def can_revise(self) -> bool:
        """Whether the plan would gain by knowing how long the layers take."""
        return False

    def keep_apart(self, apart: bool) -> None:  # noqa: B027 (optional)
        """Send messages only while nobody computes, so that layers can be timed, or when ready."""

    def revise(self, parameters: Sequence[Parameter], times: Times) -> int:
        """Make plans, between two iterations, knowing how long the layers take.

        The one that is expected to be best is used.  Returns how many are worth a trial.
        """
        return 0

    def use_plan(  # noqa: B027 (optional)
        self, number: int, parameters: Sequence[Parameter], words: str = ""
    ) -> None:
        """Change to the plan of that number, 0 for the best, between two iterations.

        ``words`` are for the log: why.
        """

    def fix_plan(self) -> bytes:
        """Return the plan, which is not revised any more; empty if any run makes the same."""
        return b""

    def resume_plan(self, plan: bytes) -> None:  # noqa: B027 (optional)
        """Use a plan that :meth:`fix_plan` returned, if it fits what :meth:`start` gets."""

    def synchronize(self) -> None:  # noqa: B027 (optional)
        """Give all ranks the same weights, when some may have seen fewer updates than others."""

    def collect_history(self, updater: Updater) -> list[np.ndarray]:
        """Return all history on rank 0, also that which is elsewhere; all ranks must call it."""
        return updater.method.history

    @abc.abstractmethod
    def mean_statistics(self) -> None:
        """Give the layers' running statistics their mean over ranks, on all ranks."""

    @abc.abstractmethod
    def agree(self, action: Action) -> Action:
        """Return what all ranks do, at the latest one call after a rank asked for it."""

    @abc.abstractmethod
    def finish(self) -> None:
        """Forget the net; waits for nothing, so that a rank that fails ends at once."""


# Gradients that stay in a cache between the product and the update gain nothing.
_LEAST_BYTES = 8 << 20


class LocalEngine(Engine):
    """One rank: its gradient is the mean.

    Backward leaves out the products that are large inner-product weights' gradients: it keeps their
    factors, so that the solver can make some rows at a time, just before it updates them.
    """

    def __init__(self) -> None:
        self._spared: list[Parameter] = []
        self._factors: dict[str, Factors] = {}
        self._unmade: set[str] = set()  # whose diff does not hold the gradient of its factors yet

    def start(
        self,
        parameters: Sequence[Parameter],
        by_hand: bool = False,
        updater: Updater | None = None,
    ) -> None:
        """Choose the weights whose products are left to the update."""
        self.finish()
        if by_hand or updater is None or updater.param.iter_size > 1:
            return  # sums of several passes have no factors
        self._spared = [parameter for parameter in parameters if _gains(parameter)]
        for parameter in self._spared:
            parameter.as_factors = True

    def gradient_ready(self, parameter: Parameter) -> None:
        """Keep the factors of a gradient that is made later: other layers overwrite them."""
        factors = parameter.factors() if parameter.as_factors else None
        if factors is None:
            return
        key = parameter.key
        kept = self._factors.get(key)
        u, v = factors
        if kept is not None and (kept.u.shape, kept.v.shape) == (u.shape, v.shape):
            np.copyto(kept.u, u)
            np.copyto(kept.v, v)
        else:
            self._factors[key] = Factors(u.copy(), v.copy())
        self._unmade.add(key)

    def wait(self, parameter: Parameter) -> None:
        """Make the gradient if that was left out."""
        factors = self.wait_for_factors(parameter)
        if factors is not None:
            from pycaffe_dist.kernels.gemm import gemm

            gemm(factors.u, factors.v, parameter.blob.diff, trans_a=True)

    def wait_for_factors(self, parameter: Parameter) -> Factors | None:
        """Leave it to the caller to make a gradient whose factors are kept."""
        if parameter.key not in self._unmade:
            return None
        self._unmade.discard(parameter.key)
        return self._factors[parameter.key]

    def mean_statistics(self) -> None:
        """Do nothing."""

    def agree(self, action: Action) -> Action:
        """Return ``action``."""
        return action

    def finish(self) -> None:
        """Let backward make all gradients again."""
        for parameter in self._spared:
            parameter.as_factors = False
        self._spared = []
        self._factors.clear()
        self._unmade.clear()


def _gains(parameter: Parameter) -> bool:
    """Tell whether a gradient is large, and one product that takes its time in main memory."""
    return (
        parameter.receives_gradient
        and parameter.factor_rows > 0
        and len(parameter.shape) == 2
        and len(parameter.sharers) == 1
        and parameter.blob.data.nbytes >= _LEAST_BYTES
        and not parameter.blob.device.is_gpu
    )
