"""Solver updates: each method is one pass over weight, gradient and history.

All of them first form the gradient ``g = scale·diff + l2·w + l1·sign(w)``, then update the history,
write the step to ``diff`` (as Caffe does) and subtract it from ``w``.  In AdamW and Lion the decay
``l2·w + l1·sign(w)`` joins the step instead.  Arrays are flat and of one dtype, and so is the array
of the ``numbers`` scale, l2, l1, rate and the method's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

import numpy as np

from pycaffe_dist.kernels import kernel, plan
from pycaffe_dist.kernels.chains import chained
from pycaffe_dist.kernels.compiling import indices, jit
from pycaffe_dist.threads import instead_of_running, parallel_for, spread

_GRAIN = 16384


@jit
def _decay(w, l2, l1):
    decay = l2 * w
    if l1 != 0:
        if w > 0:
            decay += l1
        elif w < 0:
            decay -= l1
    return decay


@jit
def _gradient(d, w, scale, l2, l1):
    return scale * d + _decay(w, l2, l1)


@jit
def _sgd(begin, end, w, d, h, numbers):
    scale, l2, l1, rate, momentum = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    for i in indices(begin, end):
        step = momentum * h[i] + rate * _gradient(d[i], w[i], scale, l2, l1)
        h[i] = step
        d[i] = step
        w[i] -= step


@jit
def _nesterov(begin, end, w, d, h, numbers):
    scale, l2, l1, rate, momentum = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    one = w.dtype.type(1)
    for i in indices(begin, end):
        before = h[i]
        after = momentum * before + rate * _gradient(d[i], w[i], scale, l2, l1)
        step = (one + momentum) * after - momentum * before
        h[i] = after
        d[i] = step
        w[i] -= step


@jit
def _adagrad(begin, end, w, d, h, numbers):
    scale, l2, l1, rate, delta = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    for i in indices(begin, end):
        g = _gradient(d[i], w[i], scale, l2, l1)
        h[i] += g * g
        step = rate * (g / (sqrt(h[i]) + delta))
        d[i] = step
        w[i] -= step


@jit
def _rmsprop(begin, end, w, d, h, numbers):
    scale, l2, l1, rate = numbers[0], numbers[1], numbers[2], numbers[3]
    rms_decay, delta = numbers[4], numbers[5]
    one = w.dtype.type(1)
    for i in indices(begin, end):
        g = _gradient(d[i], w[i], scale, l2, l1)
        h[i] = (one - rms_decay) * (g * g) + rms_decay * h[i]
        step = rate * (g / (sqrt(h[i]) + delta))
        d[i] = step
        w[i] -= step


@jit
def _adadelta(begin, end, w, d, h, u, numbers):
    scale, l2, l1, rate = numbers[0], numbers[1], numbers[2], numbers[3]
    momentum, delta = numbers[4], numbers[5]
    one = w.dtype.type(1)
    for i in indices(begin, end):
        g = _gradient(d[i], w[i], scale, l2, l1)
        h[i] = (one - momentum) * (g * g) + momentum * h[i]
        step = g * sqrt((delta + u[i]) / (delta + h[i]))
        u[i] = (one - momentum) * (step * step) + momentum * u[i]
        d[i] = rate * step
        w[i] -= rate * step


@jit
def _adam(begin, end, w, d, m, v, numbers):
    scale, l2, l1, rate = numbers[0], numbers[1], numbers[2], numbers[3]
    beta1, beta2, delta = numbers[4], numbers[5], numbers[6]
    one = w.dtype.type(1)
    for i in indices(begin, end):
        g = _gradient(d[i], w[i], scale, l2, l1)
        m[i] = (one - beta1) * g + beta1 * m[i]
        v[i] = (one - beta2) * (g * g) + beta2 * v[i]
        step = rate * (m[i] / (sqrt(v[i]) + delta))
        d[i] = step
        w[i] -= step


@jit
def _adamw(begin, end, w, d, m, v, numbers):
    scale, l2, l1, rate = numbers[0], numbers[1], numbers[2], numbers[3]
    beta1, beta2, delta, first, second = numbers[4], numbers[5], numbers[6], numbers[7], numbers[8]
    one = w.dtype.type(1)
    for i in indices(begin, end):
        g = scale * d[i]
        m[i] = (one - beta1) * g + beta1 * m[i]
        v[i] = (one - beta2) * (g * g) + beta2 * v[i]
        root = second * sqrt(v[i]) + delta
        step = rate * (first * m[i] / root + _decay(w[i], l2, l1))
        d[i] = step
        w[i] -= step


@jit
def _lion(begin, end, w, d, m, numbers):
    scale, l2, l1, rate = numbers[0], numbers[1], numbers[2], numbers[3]
    beta1, beta2 = numbers[4], numbers[5]
    one = w.dtype.type(1)
    for i in indices(begin, end):
        g = scale * d[i]
        mean = beta1 * m[i] + (one - beta1) * g
        sign = one if mean > 0 else -one if mean < 0 else mean
        m[i] = beta2 * m[i] + (one - beta2) * g
        step = rate * (sign + _decay(w[i], l2, l1))
        d[i] = step
        w[i] -= step


@jit
def _blend(begin, end, mean, w, numbers):
    share = numbers[0]
    for i in indices(begin, end):
        mean[i] += share * (w[i] - mean[i])


def _run(step, w: np.ndarray, arrays: tuple[np.ndarray, ...], numbers: tuple[float, ...]) -> None:
    flat = (array.reshape(-1) for array in (w, *arrays))
    parallel_for(step, w.size, *flat, np.array(numbers, w.dtype), grain=_GRAIN)


@kernel
def sgd_update(w, diff, history, regularization, rate, momentum) -> None:
    """Momentum SGD: ``h = momentum·h + rate·g``; ``regularization`` is (scale, l2, l1)."""
    _run(_sgd, w, (diff, history), (*regularization, rate, momentum))


@kernel
def nesterov_update(w, diff, history, regularization, rate, momentum) -> None:
    """Nesterov's accelerated gradient in Caffe's form."""
    _run(_nesterov, w, (diff, history), (*regularization, rate, momentum))


@kernel
def adagrad_update(w, diff, history, regularization, rate, delta) -> None:
    """AdaGrad (Duchi et al. 2011)."""
    _run(_adagrad, w, (diff, history), (*regularization, rate, delta))


@kernel
def rmsprop_update(w, diff, history, regularization, rate, rms_decay, delta) -> None:
    """RMSProp (Tieleman and Hinton 2012)."""
    _run(_rmsprop, w, (diff, history), (*regularization, rate, rms_decay, delta))


@kernel
def adadelta_update(w, diff, gradients, updates, regularization, rate, momentum, delta) -> None:
    """AdaDelta (Zeiler 2012)."""
    _run(_adadelta, w, (diff, gradients, updates), (*regularization, rate, momentum, delta))


@kernel
def adam_update(w, diff, mean, variance, regularization, rate, beta1, beta2, delta) -> None:
    """Adam (Kingma and Ba 2014); ``rate`` includes the bias correction."""
    _run(_adam, w, (diff, mean, variance), (*regularization, rate, beta1, beta2, delta))


@kernel
def adamw_update(
    w, diff, mean, variance, regularization, rate, beta1, beta2, delta, first, second
) -> None:
    """AdamW (Loshchilov and Hutter 2019); ``first`` corrects the mean, ``second`` the root."""
    scalars = *regularization, rate, beta1, beta2, delta, first, second
    _run(_adamw, w, (diff, mean, variance), scalars)


@kernel
def lion_update(w, diff, mean, regularization, rate, beta1, beta2) -> None:
    """Lion (Chen et al. 2023)."""
    _run(_lion, w, (diff, mean), (*regularization, rate, beta1, beta2))


@kernel
def blend(mean, w, share) -> None:
    """Move a running mean of weights towards them: ``mean += share·(w - mean)``."""
    _run(_blend, mean, (w,), (share,))


@plan
class UpdateOfMany:
    """The update of several parameters by ``update``, one of the functions above.

    ``arrays`` has each parameter's arrays, as ``update`` takes them; ``settings`` has each
    parameter's l2, l1 and the factor of the common rate.  On a GPU this is a single launch, on the
    CPU a chain.
    """

    def __init__(
        self,
        update: Callable[..., None],
        arrays: Sequence[tuple[Any, ...]],
        settings: Sequence[tuple[float, float, float]],
    ):
        self._update, self._arrays, self._settings = update, arrays, settings
        # Of each loop: the numbers that it reads, and its parameter's setting.
        self._numbers: list[tuple[np.ndarray, tuple[float, float, float]]] = []
        self._calls: list[tuple[Callable[..., Any], tuple]] = []
        self._functions: list[Callable[[], Any]] | None = None

    def run(self, values: Callable[[], tuple[float, ...]]) -> None:
        """Update all parameters.

        ``values`` returns the gradients' scale, the rate and the other arguments of ``update``, now
        and whenever a GPU repeats the launch.
        """
        scale, rate, *own = values()
        if not self._calls:
            self._find_calls(own)
        for numbers, (l2, l1, factor) in self._numbers:
            numbers[:] = scale, l2, l1, rate * factor, *own
        if self._functions is None:
            for function, args in self._calls:  # which compiles
                function(*args)
            self._functions = chained(self._calls)
        else:
            for function in self._functions:
                function()

    def _find_calls(self, own: Sequence[float]) -> None:
        """Find the loops of ``update``; empty arrays have none."""
        for arrays, setting in zip(self._arrays, self._settings):

            def note(loop: Callable[..., None], args: tuple, setting: tuple = setting) -> None:
                self._numbers.append((args[-1], setting))
                self._calls.append((spread, (loop, args[0].size, args, _GRAIN)))

            with instead_of_running(note):
                self._update(*arrays, (0.0, 0.0, 0.0), 0.0, *own)
