"""One time step of long short-term memory, after the products with the weights."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.kernels.exponential import exponential, hyperbolic_tangent
from pycaffe_dist.threads import parallel_for

ELEMENTS_PER_CHUNK = 1 << 9


# Loops over one array or a few are vectorised; a loop over all gates would not be.


@jit
def _squash(values):
    """values = 1 / (1 + e^-values)."""
    one = values.dtype.type(1)
    for i in range(values.size):
        values[i] = one / (one + exponential(-values[i]))


@jit
def _flatten(values):
    """values = tanh(values)."""
    for i in range(values.size):
        values[i] = hyperbolic_tangent(values[i])


@jit
def _forward(begin, end, c_old, gates, keep, activations, c, h):
    hidden = c.shape[1]
    for n in range(begin, end):
        active, cell, old, out = activations[n], c[n], c_old[n], h[n]
        for d in range(active.size):
            active[d] = gates[n, d]
        _squash(active[: 3 * hidden])
        _flatten(active[3 * hidden :])
        i, f = active[:hidden], active[hidden : 2 * hidden]
        o, g = active[2 * hidden : 3 * hidden], active[3 * hidden :]
        for d in range(hidden):
            cell[d] = i[d] * g[d]
        if keep[n] == 0:
            # A state that is not kept may be NaN.
            f[:] = 0
        else:
            for d in range(hidden):
                f[d] *= keep[n]
            for d in range(hidden):
                cell[d] += f[d] * old[d]
        for d in range(hidden):
            out[d] = cell[d]
        _flatten(out)
        for d in range(hidden):
            out[d] *= o[d]


@jit
def _backward(begin, end, c_old, activations, c, dc, dh, dc_old, dgates):
    hidden = c.shape[1]
    one = c.dtype.type(1)
    flat = np.empty(hidden, c.dtype)
    for n in range(begin, end):
        for d in range(hidden):
            flat[d] = c[n, d]
        _flatten(flat)
        for d in range(hidden):
            i, f = activations[n, d], activations[n, hidden + d]
            o, g = activations[n, 2 * hidden + d], activations[n, 3 * hidden + d]
            squashed = flat[d]
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
