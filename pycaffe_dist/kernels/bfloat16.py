"""Products of inference whose factors are rounded to bfloat16, where that is faster.

`hold` takes the weights; forward then takes None in their place.  Sums and biases are float32.
"""

from __future__ import annotations

import functools
import math

from pycaffe_dist.kernels.im2col import ConvolutionGeometry
from pycaffe_dist.kernels.jit.bfloat16 import convolution as convolutions
from pycaffe_dist.kernels.jit.bfloat16.convolution import Convolution
from pycaffe_dist.kernels.jit.bfloat16.inner_product import InnerProduct
from pycaffe_dist.kernels.jit.bfloat16.units import Unit, unit_for
from pycaffe_dist.kernels.jit.codegen.target import Target, target
from pycaffe_dist.log import logger

# Products with more rows are bound by multiplications, not by the memory traffic of the weights.
MOST_ROWS = 4


@functools.lru_cache(maxsize=8)
def _unit(level: Target | None) -> Unit | None:
    unit = unit_for(level) if level is not None else None
    if unit is None or not unit.is_fast:
        logger.warning(
            "this processor has no instructions for products in bfloat16: only InnerProduct layers "
            "of up to %d samples use it, because half the bytes are read",
            MOST_ROWS,
        )
    return unit


def inner_product(m: int, n: int, k: int, transposed: bool) -> InnerProduct | None:
    """Return the plan of an inner product (see `kernels.inner_product`), or None."""
    unit = _unit(target())
    if unit is None or (m > MOST_ROWS and not unit.is_fast):
        return None
    return InnerProduct(unit, m, n, k, transposed)


def convolution(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], geometry: ConvolutionGeometry, adds: bool
) -> Convolution | InnerProduct | None:
    """Return the plan of a convolution (see `kernels.convolution`), or None.

    With ``adds``, forward adds to y.
    """
    if (
        geometry.kernel == x_shape[2:]
        and geometry.group == 1
        and not any(geometry.pad)
        and not adds
    ):
        return inner_product(x_shape[0], w_shape[0], math.prod(w_shape[1:]), False)
    unit = _unit(target())
    if unit is None or not unit.is_fast or not convolutions.suits(w_shape, geometry):
        return None
    return Convolution(unit, x_shape, w_shape, geometry, adds)
