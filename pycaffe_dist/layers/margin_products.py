"""Inner products with a margin on the label's angle: MarginInnerProduct, LargeMarginInnerProduct.

For a sample x and the weights w of its label, y = |x||w| psi(angle) takes the place of
|x||w| cos(angle), where psi = (-1)^k cos(m angle) - 2k decreases from 1 at 0 to 1 - 2m at pi.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.device import xp
from pycaffe_dist.kernels.reduction import SQUARE, reduce_rows
from pycaffe_dist.kernels.scatter import gather, scatter_add
from pycaffe_dist.layers.base import Arity, register
from pycaffe_dist.layers.checking import describe, require_no_gradient
from pycaffe_dist.layers.counting import Counting
from pycaffe_dist.layers.inner_product import Product, make_unit_length
from pycaffe_dist.layers.loss import LabelLayout, checked_labels
from pycaffe_dist.schema import caffe_pb2

# The least length that is divided by: no number comes from a vector of zeros.
_SHORTEST = 1e-12


def _psi(factor: int, cosine: Any) -> tuple[Any, Any]:
    """Return psi of the angle times ``factor`` (2, 3 or 4), and its derivative by the cosine."""
    sign, square = np.sign(cosine), cosine * cosine
    if factor == 2:
        return 2 * sign * square - 1, 4 * sign * cosine
    if factor == 3:
        inner = np.sign(np.absolute(cosine) - 0.5)
        value = inner * cosine * (4 * square - 3) + sign * (1 + inner) - 2
        return value, inner * (12 * square - 3)
    inner = sign * np.sign(2 * square - 1)
    value = inner * (8 * square * (square - 1) + 1) + 2 * sign + inner - 3
    return value, inner * 16 * cosine * (2 * square - 1)


class MarginProduct(Counting, Product):
    """The base of products x·Wᵀ whose label's element is (|x||w| psi + lambda x·w) / (1 + lambda).

    lambda is max(lambda_min, base·(1 + gamma·iteration)^-power); an optional second top gets it.
    """

    bottoms = Arity(2, 2)
    tops = Arity(1, 2)
    # Added to |x||w| before a division, and to |w|.
    eps: ClassVar[float]

    def margin_options(self) -> Any:
        """Return the options of the margin."""
        raise NotImplementedError

    def read_options(self) -> caffe_pb2.InnerProductParameter:
        """Return the options of the product."""
        margin = self.margin_options()
        return caffe_pb2.InnerProductParameter(
            num_output=margin.num_output,
            axis=margin.axis,
            weight_filler=margin.weight_filler,
            bias_term=False,
        )

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        self._margin = self.margin_options()
        self.iteration = self._margin.iteration
        self._factor = 1 + self._margin.type

    def allow_force_backward(self, bottom_index: int) -> bool:
        """Labels have no gradient."""
        return bottom_index == 0

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        if bottom[1].count != self._samples:
            raise self.error(
                f"needs one label per sample: {self._samples}, found bottom "
                f"{describe(self, bottom, 1)}"
            )
        self._layout = LabelLayout(self, [top[0], bottom[1]], top[0].ndim - 1)
        if len(top) > 1:
            top[1].reshape(1)

    def _count(self, top: list[Blob]) -> None:
        """Count this pass, and set lambda."""
        self.iteration += 1
        margin = self._margin
        with np.errstate(all="ignore"):
            decay = np.power(1 + margin.gamma * self.iteration, -margin.power)
        self._lambda = max(margin.base * float(decay), margin.lambda_min)
        if len(top) > 1:
            top[1].data.fill(self._lambda)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._count(top)
        super().forward(bottom, top)
        if self._factor == 1:
            return
        x, y = self._matrix(bottom[0].data, self._inputs), self._scores(top[0].data)
        labels, _ = checked_labels(self, [top[0], bottom[1]], self._layout, None)
        self._at = xp().arange(self._samples), labels.reshape(-1)
        dtype = self.context.parameter_dtype
        self._label_weights = xp().empty((self._samples, self._inputs), dtype)
        gather(self.blobs[0].data, self._at[1], self._label_weights)
        self._lengths = _lengths(x, dtype), _lengths(self._label_weights, dtype)
        product = self._lengths[0] * self._lengths[1] + self.eps
        plain = y[self._at].astype(dtype)
        self._cosine = plain / np.maximum(product, _SHORTEST)
        value, _ = _psi(self._factor, self._cosine)
        y[self._at] = (product * value + self._lambda * plain) / (1 + self._lambda)

    def _scores(self, array: Any) -> Any:
        return self._matrix(array, self.options.num_output)

    def _shares(self) -> tuple[Any, Any]:
        """Return the gradient of |x||w| psi at the labels as factors of w and of x/|x|·|w|."""
        value, slope = _psi(self._factor, self._cosine)
        return slope, value - self._cosine * slope

    def _mixed(self, top: list[Blob], slope: Any) -> tuple[Any, Any]:
        """Return dy with the factors of w for lambda and ``slope``, and dy / (1 + lambda)."""
        dy = self._scores(top[0].diff).copy()
        own = dy[self._at].astype(slope.dtype) / (1 + self._lambda)
        dy[self._at] = own * (slope + self._lambda)
        return dy, own


@register("MarginInnerProduct")
class MarginInnerProduct(MarginProduct):
    """x·wᵀ/|w| with a margin: for the label |x| psi(m·angle) in place of |x| cos(angle).

    m is 1 to 4 (SINGLE to QUADRUPLE); lambda x·w is mixed in, see the fields.  Forward divides the
    weights by their length.  The bottoms are features and labels; a second top gets lambda.  As in
    wy1iu/sphereface, the weights' gradient is that of the product without a margin, and the
    features' gradient of the label's psi, of w and x, has its two factors scaled to length 1.
    (Liu et al., 2017.)
    """

    eps = 0.0
    changes_weights = True

    def margin_options(self) -> Any:
        """Return the options of the margin."""
        return self.param.margin_inner_product_param

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        make_unit_length(self.blobs[0].data, _SHORTEST**2)
        super().forward(bottom, top)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        require_no_gradient(self, propagate_down, 1)
        has_margin = propagate_down[0] and self._factor > 1
        super().backward(top, [propagate_down[0] and not has_margin], bottom)
        if has_margin:
            slope, along = self._shares()
            along /= np.maximum(self._lengths[0], _SHORTEST)
            both = np.maximum(np.hypot(slope, along), _SHORTEST)
            dy, own = self._mixed(top, slope / both)
            x, dx = (self._matrix(a, self._inputs) for a in (bottom[0].data, bottom[0].diff))
            self._plan.backward_data(dy, self.blobs[0].data, dx)
            dx += (own * along / both)[:, None] * x


@register("LargeMarginInnerProduct")
class LargeMarginInnerProduct(MarginProduct):
    """x·wᵀ with a margin: for the label |x||w| psi(m·angle) in place of |x||w| cos(angle).

    m is 1 to 4 (SINGLE to QUADRUPLE); lambda x·w is mixed in, see the fields.  The bottoms are
    features and labels; a second top gets lambda.  Follows wy1iu/LargeMargin_Softmax_Loss.  (Liu et
    al., 2016.)
    """

    eps = 1e-9

    def margin_options(self) -> Any:
        """Return the options of the margin."""
        return self.param.largemargin_inner_product_param

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        require_no_gradient(self, propagate_down, 1)
        if self._factor == 1:
            super().backward(top, propagate_down[:1], bottom)
            return
        slope, along = self._shares()
        dy, own = self._mixed(top, slope)
        of_x, of_w = self._lengths[0], self._lengths[1] + self.eps
        x, weights = self._matrix(bottom[0].data, self._inputs), self.blobs[0]
        if self.param_propagate_down[0]:
            self._plan.backward_weights(x, dy, weights.diff, 0 not in self.overwritten)
            rows = (own * along * of_x / of_w)[:, None] * self._label_weights
            scatter_add(rows, self._at[1], weights.diff)
        if propagate_down[0]:
            dx = self._matrix(bottom[0].diff, self._inputs)
            self._plan.backward_data(dy, weights.data, dx)
            dx += (own * along * of_w / np.maximum(of_x, _SHORTEST))[:, None] * x

    def gradient_factors(self, index: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Return None: the labels' part of the weights' gradient has no factors."""
        return None

    def factor_rows(self, index: int) -> int:
        """Return 0."""
        return 0


def _lengths(rows: Any, dtype: np.dtype) -> Any:
    """Return the length of each row."""
    squares = xp().empty(len(rows), dtype)
    reduce_rows(rows, SQUARE, 1.0, squares)
    return np.sqrt(squares)
