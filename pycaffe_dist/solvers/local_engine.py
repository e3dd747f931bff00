"""The engine of one rank, whose own gradient is the mean."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pycaffe_dist.config import Action
from pycaffe_dist.solvers.engine import Engine, Factors

if TYPE_CHECKING:
    from pycaffe_dist.net.parameter import Parameter
    from pycaffe_dist.solvers.update.updater import Updater

# Gradients that stay in a cache between the product and the update gain nothing.
_LEAST_BYTES = 8 << 20


class LocalEngine(Engine):
    """One rank: its gradient is the mean.

    Backward leaves out the products that are large inner-product weights' gradients: the engine
    keeps their factors, which other layers overwrite, for factored updates.
    """

    def __init__(self) -> None:
        self._factored: frozenset[str] = frozenset()
        self._factors: dict[str, Factors] = {}
        self._unmade: set[str] = set()  # whose diff does not hold the gradient of its factors yet

    def start(
        self,
        parameters: Sequence[Parameter],
        by_hand: bool = False,
        updater: Updater[Parameter] | None = None,
    ) -> None:
        """Choose the weights whose products are left to the update."""
        self.finish()
        # Sums of several passes have no factors.
        if not (by_hand or updater is None or updater.param.iter_size > 1):
            self._factored = frozenset(p.key for p in parameters if _gains(p))

    @property
    def factored(self) -> Collection[str]:
        """The keys of the weights whose products are left to the update."""
        return self._factored

    def gradient_ready(self, parameter: Parameter) -> None:
        """Keep the factors of a gradient that is made later."""
        key = parameter.key
        factors = parameter.factors() if key in self._factored else None
        if factors is None:
            return
        kept = self._factors.get(key)
        u, v = factors
        if kept is not None and (kept.u.shape, kept.v.shape) == (u.shape, v.shape):
            np.copyto(kept.u, u)
            np.copyto(kept.v, v)
        else:
            self._factors[key] = Factors(u.copy(), v.copy())
        self._unmade.add(key)

    def wait(self, parameter: Parameter, rebuild: bool = True) -> Factors | None:
        """Make the gradient if that was left out, or return its factors."""
        if parameter.key not in self._unmade:
            return None
        self._unmade.discard(parameter.key)
        factors = self._factors[parameter.key]
        if not rebuild:
            return factors
        from pycaffe_dist.kernels.gemm import gemm

        gemm(factors.u, factors.v, parameter.blob.diff, trans_a=True)
        return None

    def mean_statistics(self) -> None:
        """Do nothing."""

    def agree(self, action: Action) -> Action:
        """Return ``action``."""
        return action

    def finish(self) -> None:
        """Let backward make all gradients again."""
        self._factored = frozenset()
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
