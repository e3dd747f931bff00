"""One time step of long short-term memory: what follows the products with the weights."""

from __future__ import annotations

import math

import numpy as np

from pycaffe_dist.device import parallel_for
from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.compiling import jit

ELEMENTS_PER_CHUNK = 1 << 9


@jit
def _forward(begin, end, c_old, gates, keep, activations, c, h):
    hidden = c.shape[1]
    half = c.dtype.type(0.5)
    for n in range(begin, end):
        for d in range(hidden):
            i = half + half * math.tanh(half * gates[n, d])
            f = keep[n] * (half + half * math.tanh(half * gates[n, hidden + d]))
            o = half + half * math.tanh(half * gates[n, 2 * hidden + d])
            g = math.tanh(gates[n, 3 * hidden + d])
            if keep[n] == 0:
                # What was not kept may not be a number.
                c[n, d] = i * g
            else:
                c[n, d] = f * c_old[n, d] + i * g
            h[n, d] = o * math.tanh(c[n, d])
            activations[n, d] = i
            activations[n, hidden + d] = f
            activations[n, 2 * hidden + d] = o
            activations[n, 3 * hidden + d] = g


@jit
def _backward(begin, end, c_old, activations, c, dc, dh, dc_old, dgates):
    hidden = c.shape[1]
    one = c.dtype.type(1)
    for n in range(begin, end):
        for d in range(hidden):
            i, f = activations[n, d], activations[n, hidden + d]
            o, g = activations[n, 2 * hidden + d], activations[n, 3 * hidden + d]
            squashed = math.tanh(c[n, d])
            through_c = dc[n, d] + dh[n, d] * o * (one - squashed * squashed)
            dc_old[n, d] = through_c * f
            dgates[n, d] = through_c * g * i * (one - i)
            dgates[n, hidden + d] = through_c * c_old[n, d] * f * (one - f)
            dgates[n, 2 * hidden + d] = dh[n, d] * squashed * o * (one - o)
            dgates[n, 3 * hidden + d] = through_c * i * (one - g * g)


def _grain(c: np.ndarray) -> int:
    return max(1, ELEMENTS_PER_CHUNK // max(1, c.shape[1]))


@kernel
def lstm_unit_forward(
    c_old: np.ndarray,
    gates: np.ndarray,
    keep: np.ndarray,
    activations: np.ndarray,
    c: np.ndarray,
    h: np.ndarray,
) -> None:
    """Set cell c and output h (N, D) from the old cell and the gates' inputs (N, 4·D).

    The gates are input, forget, output and cell input, in this order; ``keep`` (N) is 0 where a
    sequence starts and 1 where it goes on.  ``activations`` (N, 4·D) is for `lstm_unit_backward`
    and may be ``gates``.
    """
    parallel_for(_forward, len(c), c_old, gates, keep, activations, c, h, grain=_grain(c))


@kernel
def lstm_unit_backward(
    c_old: np.ndarray,
    activations: np.ndarray,
    c: np.ndarray,
    dc: np.ndarray,
    dh: np.ndarray,
    dc_old: np.ndarray,
    dgates: np.ndarray,
) -> None:
    """Set the gradients of the old cell and of the gates' inputs; dc_old may be dc."""
    args = c_old, activations, c, dc, dh, dc_old, dgates
    parallel_for(_backward, len(c), *args, grain=_grain(c))
