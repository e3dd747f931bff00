"""Learning-rate policies: the rate of an iteration, from the solver's fields and, for plateau, the
losses so far."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pycaffe_dist.errors import UsageError, did_you_mean
from pycaffe_dist.log import logger

if TYPE_CHECKING:
    from pycaffe_dist.schema.caffe_pb2 import SolverParameter

# Weights are float32, and so is what their gradients are multiplied by.
_LARGEST_RATE = 3.4028234663852886e38
# exp() of more overflows.
_LARGEST_EXPONENT = 709.0
_WARMUP_POWERS = {"linear": 1, "quadratic": 2}


class LearningRate:
    """The learning rate over the iterations of one run.

    ``current_step`` is what a solver state keeps for the step, multistep and plateau policies.
    All rates are multiplied by a factor that grows from 1 to ``factor`` in the first ``gradually``
    iterations (Goyal et al., Accurate, Large Minibatch SGD, 2017).  Not in Caffe: this, plateau,
    multifixed, cosine, onecycle, min_lr and warm-up.  Raises UsageError for an unknown policy or a
    field out of range.
    """

    def __init__(self, param: SolverParameter, factor: float = 1.0, gradually: int = 0):
        self._param = param
        self._factor, self._gradually = factor, gradually
        self.current_step = 0
        self._least_loss = math.inf
        self._least_at = 0  # the iteration of the least loss, or of the drop after it
        name = param.lr_policy
        if name not in POLICIES:
            hint = did_you_mean(name, POLICIES) or f"; known are {', '.join(POLICIES)}"
            what = f"unknown lr_policy '{name}'" if name else "the solver has no lr_policy"
            raise UsageError(f"{what}{hint}")
        if name in ("step", "sigmoid") and param.stepsize <= 0:
            raise UsageError(f"lr_policy '{name}' needs a stepsize above 0, found {param.stepsize}")
        if name not in ("fixed", "poly") and param.gamma < 0:
            raise UsageError(f"lr_policy '{name}' needs a gamma of at least 0, got {param.gamma:g}")
        if name == "plateau" and min(param.plateau_winsize, default=0) <= 0:
            raise UsageError("lr_policy 'plateau' needs a plateau_winsize above 0 for each drop")
        if name == "cosine":
            _check_cosine(param)
        if name == "onecycle":
            _check_onecycle(param)
        if name == "multifixed" and not 0 < len(param.stagelr) == len(param.stageiter):
            raise UsageError(
                "lr_policy 'multifixed' needs a stageiter for each stagelr, found "
                f"{len(param.stageiter)} and {len(param.stagelr)}"
            )
        if param.warmup_type not in _WARMUP_POWERS:
            raise UsageError(
                f"unknown warmup_type '{param.warmup_type}'; known are {', '.join(_WARMUP_POWERS)}"
            )
        for field in ("warmup_iter", "warmup_start_lr", "min_lr"):
            if getattr(param, field) < 0:
                raise UsageError(f"{field} must be at least 0, found {getattr(param, field):g}")
        self._policy = POLICIES[name]
        self.needs_loss: bool = name == "plateau"

    def at(self, iteration: int, loss: float = math.inf) -> float:
        """Return the rate of ``iteration``; iterations must be asked for in order.

        ``loss`` is the displayed loss, read by plateau only (see ``needs_loss``).
        """
        if loss < self._least_loss:
            self._least_loss, self._least_at = loss, iteration
        param = self._param
        rate = self._multiplier(iteration) * max(self._rate(iteration), param.min_lr)
        if iteration >= param.warmup_iter:
            return rate
        done = (iteration / param.warmup_iter) ** _WARMUP_POWERS[param.warmup_type]
        return param.warmup_start_lr + (rate - param.warmup_start_lr) * done

    def _multiplier(self, iteration: int) -> float:
        if iteration >= self._gradually:
            return self._factor
        return 1.0 + (self._factor - 1.0) * iteration / self._gradually

    def state(self) -> dict[str, Any]:
        """Return what the next rates depend on beside the iteration, for JSON."""
        return {
            "current_step": self.current_step,
            "least_loss": self._least_loss,
            "least_at": self._least_at,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state` returned."""
        self.current_step = state["current_step"]
        self._least_loss, self._least_at = state["least_loss"], state["least_at"]

    def _rate(self, iteration: int) -> float:
        """Return the policy's rate; raises UsageError when it is not a float32."""
        param = self._param
        try:
            rate = self._policy(self, iteration)
        except (OverflowError, ZeroDivisionError):
            rate = math.inf
        # A negative number to a fractional power is complex in Python.
        if isinstance(rate, complex) or not abs(rate) <= _LARGEST_RATE:
            raise UsageError(
                f"lr_policy '{param.lr_policy}' gives no usable learning rate for iteration "
                f"{iteration}, but {rate:g}: base_lr {param.base_lr:g}, gamma {param.gamma:g}, "
                f"power {param.power:g}"
            )
        return rate

    def _fixed(self, iteration: int) -> float:
        """Return `base_lr`, always."""
        return self._param.base_lr

    def _step(self, iteration: int) -> float:
        """Return `base_lr`·`gamma`^k, k: the iteration divided by `stepsize`, rounded down."""
        self.current_step = iteration // self._param.stepsize
        return self._param.base_lr * self._param.gamma**self.current_step

    def _exp(self, iteration: int) -> float:
        """Return `base_lr`·`gamma`^iteration."""
        return self._param.base_lr * self._param.gamma**iteration

    def _inv(self, iteration: int) -> float:
        """Return `base_lr`·(1 + `gamma`·iteration)^−`power`."""
        p = self._param
        return p.base_lr * (1.0 + p.gamma * iteration) ** -p.power

    def _multistep(self, iteration: int) -> float:
        """Return `base_lr`·`gamma`^k, k: how many `stepvalue` the iteration has reached."""
        steps = self._param.stepvalue
        if self.current_step < len(steps) and iteration >= steps[self.current_step]:
            self.current_step += 1
            logger.info("MultiStep Status: Iteration %d, step = %d", iteration, self.current_step)
        return self._param.base_lr * self._param.gamma**self.current_step

    def _multifixed(self, iteration: int) -> float:
        """Return `stagelr`[k] up to `stageiter`[k], inclusive, as in hustzxd/caffe-yolo."""
        p = self._param
        stages = (rate for rate, last in zip(p.stagelr, p.stageiter) if iteration <= last)
        return next(stages, p.stagelr[-1])

    def _poly(self, iteration: int) -> float:
        """Return `base_lr`·(1 − iteration/`max_iter`)^`power`."""
        p = self._param
        return p.base_lr * (1.0 - iteration / p.max_iter) ** p.power

    def _sigmoid(self, iteration: int) -> float:
        """Return `base_lr` / (1 + exp(−`gamma`·(iteration − `stepsize`)))."""
        p = self._param
        exponent = min(-p.gamma * (iteration - p.stepsize), _LARGEST_EXPONENT)
        return p.base_lr / (1.0 + math.exp(exponent))

    def _cosine(self, iteration: int) -> float:
        """Return half a cosine from `base_lr` to `min_lr` after the warm-up, or several one by one.

        SGDR: Loshchilov and Hutter, 2017.
        """
        p = self._param
        done, length = max(0.0, iteration - p.warmup_iter), float(p.max_iter - p.warmup_iter)
        if p.restart_iter:
            length = float(p.restart_iter)
            if p.restart_mult == 1:
                done %= length
            while done >= length:
                done, length = done - length, length * p.restart_mult
        return _half_cosine(p.base_lr, p.min_lr, done / length)

    def _onecycle(self, iteration: int) -> float:
        """Return half a cosine up to `base_lr` and another down, to `max_iter`.

        Smith and Topin, 2019, in PyTorch's form.
        """
        p = self._param
        first = p.base_lr / p.onecycle_div
        last, peak = p.max_iter - 1, p.onecycle_rise * p.max_iter - 1
        if iteration < peak:
            return _half_cosine(first, p.base_lr, iteration / peak)
        peak = max(peak, 0)
        done = (iteration - peak) / (last - peak) if last > peak else 1
        return _half_cosine(p.base_lr, first / p.onecycle_final_div, done)

    def _plateau(self, iteration: int) -> float:
        """Return `base_lr`·`gamma`^k, k: how often the loss stood still for `plateau_winsize`."""
        patience = self._param.plateau_winsize[self.current_step :]
        if patience and iteration - self._least_at >= patience[0]:
            self.current_step += 1
            self._least_at = iteration
            logger.info("Plateau Status: Iteration %d, step = %d", iteration, self.current_step)
        return self._param.base_lr * self._param.gamma**self.current_step


#: What each policy returns for an iteration.
POLICIES: dict[str, Callable[[LearningRate, int], float]] = {
    "fixed": LearningRate._fixed,
    "step": LearningRate._step,
    "exp": LearningRate._exp,
    "inv": LearningRate._inv,
    "multistep": LearningRate._multistep,
    "poly": LearningRate._poly,
    "sigmoid": LearningRate._sigmoid,
    "plateau": LearningRate._plateau,
    "multifixed": LearningRate._multifixed,
    "cosine": LearningRate._cosine,
    "onecycle": LearningRate._onecycle,
}


def _half_cosine(first: float, last: float, done: float) -> float:
    """Return a value on the half cosine from ``first``, at ``done`` 0, to ``last``, from 1 on."""
    return last + (first - last) * (1 + math.cos(math.pi * min(done, 1))) / 2


def _check_cosine(param: SolverParameter) -> None:
    if param.restart_iter < 0 or not param.restart_mult >= 1:
        raise UsageError(
            "lr_policy 'cosine' needs a restart_iter of at least 0 and a restart_mult of at least "
            f"1, found {param.restart_iter} and {param.restart_mult:g}"
        )
    if not param.restart_iter and param.max_iter <= param.warmup_iter:
        raise UsageError(
            "lr_policy 'cosine' needs a max_iter above warmup_iter, or a restart_iter, found "
            f"max_iter {param.max_iter} and warmup_iter {param.warmup_iter}"
        )


def _check_onecycle(param: SolverParameter) -> None:
    if param.max_iter <= 0:
        raise UsageError(f"lr_policy 'onecycle' needs a max_iter above 0, found {param.max_iter}")
    if param.warmup_iter:
        raise UsageError("lr_policy 'onecycle' has its own warm-up, onecycle_rise: no warmup_iter")
    if not 0 <= param.onecycle_rise < 1:
        raise UsageError(
            f"onecycle_rise must be at least 0 and below 1, found {param.onecycle_rise:g}"
        )
    for field in ("onecycle_div", "onecycle_final_div"):
        if not getattr(param, field) >= 1:
            raise UsageError(f"{field} must be at least 1, found {getattr(param, field):g}")
