"""The exponential function and its kin, in forms that the compiler vectorises."""

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from pycaffe_dist.kernels import kernel
from pycaffe_dist.kernels.compiling import jit
from pycaffe_dist.threads import parallel_for

ELEMENTS_PER_CHUNK = 1 << 14

LOG2_E = np.float32(1 / math.log(2))
# ln 2 in two parts; multiples of the first by whole numbers below 2^9 are exact.
LN2_HIGH = np.float32(355 / 512)
LN2_LOW = np.float32(math.log(2) - 355 / 512)
# Beyond these the result is 0 or infinite in any case.
LEAST, MOST = np.float32(-105), np.float32(90)
# 1/k! for k from 7 down to 2: enough for arguments up to ln(2)/2.
TERMS = tuple(np.float32(1 / math.factorial(k)) for k in range(7, 1, -1))
C7, C6, C5, C4, C3, C2 = TERMS
ONE, HALF = np.float32(1), np.float32(0.5)
# A polynomial in x², fitted to (tanh(x)/x - 1)/x² for arguments up to TANH_LIMIT.
TANH_TERMS = tuple(
    map(np.float32, (-0.0056474591, 0.0205886532, -0.0537245683, 0.1333126426, -0.3333327472))
)
T4, T3, T2, T1, T0 = TANH_TERMS
TANH_LIMIT = np.float32(0.6)


@intrinsic
def _from_bits(typing_context, bits):
    def generate(context, builder, signature, values):
        return builder.bitcast(values[0], ir.FloatType())

    return types.float32(types.int32), generate


@jit
def _exponential_float32(x):
    """e^x to about one unit in the last place; without branches."""
    limited = min(max(x, LEAST), MOST)
    power = np.floor(limited * LOG2_E + HALF)
    r = (limited - power * LN2_HIGH) - power * LN2_LOW
    value = C7
    for term in (C6, C5, C4, C3, C2, ONE, ONE):
        value = value * r + term
    # In two steps, because 2^power itself may be no normal number.
    whole = np.int32(power)
    first = whole >> np.int32(1)
    second = whole - first
    value *= _from_bits(np.int32((first + np.int32(127)) << np.int32(23)))
    value *= _from_bits(np.int32((second + np.int32(127)) << np.int32(23)))
    return x if x != x else value


def exponential(x: float) -> float:
    """Return e^x of x's type, in compiled code that was not given ``fast=True``."""
    return math.exp(x)


@overload(exponential)
def _compiled_exponential(x):
    if x == types.float32:
        return lambda x: _exponential_float32(x)
    return lambda x: math.exp(x)


@jit
def _tanh_float32(x):
    # The second form would lose the last places of small values.
    square = x * x
    small = T4
    for term in (T3, T2, T1, T0):
        small = small * square + term
    small = x + x * (square * small)
    size = abs(x)
    power = _exponential_float32(np.float32(-2) * size)
    sign = ONE if x > 0 else -ONE
    large = sign * ((ONE - power) / (ONE + power))
    return small if size < TANH_LIMIT else large


def hyperbolic_tangent(x: float) -> float:
    """Return tanh x of x's type, in compiled code that was not given ``fast=True``."""
    return math.tanh(x)


@overload(hyperbolic_tangent)
def _compiled_tangent(x):
    if x == types.float32:
        return lambda x: _tanh_float32(x)
    return lambda x: math.tanh(x)


@jit
def _tanh(begin, end, x, y):
    x, y = x[begin:end], y[begin:end]
    for i in range(x.size):
        y[i] = hyperbolic_tangent(x[i])


def _each(loop, x: np.ndarray, y: np.ndarray) -> None:
    parallel_for(loop, x.size, x.reshape(-1), y.reshape(-1), grain=ELEMENTS_PER_CHUNK)


@kernel
def tanh(x: np.ndarray, y: np.ndarray) -> None:
    """Set y to tanh x; y may be x."""
    _each(_tanh, x, y)


@jit
def _sigmoid(begin, end, x, y):
    x, y = x[begin:end], y[begin:end]
    one = x.dtype.type(1)
    for i in range(x.size):
        y[i] = one / (one + exponential(-x[i]))


@kernel
def sigmoid(x: np.ndarray, y: np.ndarray) -> None:
    """Set y to 1 / (1 + e^-x); y may be x."""
    _each(_sigmoid, x, y)


@jit
def _mish_ratio(x, one):
    """Return e = e^-|x|, and p, q with tanh(log(1 + e^x)) = p / (p + q)."""
    e = exponential(-abs(x))
    top = one + e + e if x > 0 else e * e + e + e
    rest = e * e if x > 0 else one
    return e, top, rest + rest


@jit
def _mish(begin, end, x, y):
    x, y = x[begin:end], y[begin:end]
    one = x.dtype.type(1)
    for i in range(x.size):
        _, p, q = _mish_ratio(x[i], one)
        y[i] = x[i] * (p / (p + q))


@jit
def _mish_gradient(begin, end, x, dy, dx):
    x, dy, dx = x[begin:end], dy[begin:end], dx[begin:end]
    one = x.dtype.type(1)
    for i in range(x.size):
        e, p, q = _mish_ratio(x[i], one)
        logistic = (one if x[i] > 0 else e) / (one + e)
        tangent, rest = p / (p + q), q / (p + q)
        # 1 - tanh² is (1 - tanh)·(1 + tanh), without cancellation.
        dx[i] = dy[i] * (tangent + x[i] * rest * (one + tangent) * logistic)


@kernel
def mish(x: np.ndarray, y: np.ndarray) -> None:
    """Set y to x·tanh(log(1 + e^x)); y may be x."""
    _each(_mish, x, y)


@kernel
def mish_gradient(x: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
    """Set dx for `mish`; dx may be dy."""
    flat = x.reshape(-1), dy.reshape(-1), dx.reshape(-1)
    parallel_for(_mish_gradient, x.size, *flat, grain=ELEMENTS_PER_CHUNK)
