"""InnerDistance: distances of samples to centres."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.device import xp
from pycaffe_dist.kernels.inner_product import InnerProduct
from pycaffe_dist.kernels.pairwise import distances, magnitudes_gradient
from pycaffe_dist.kernels.scatter import gather, scatter_add
from pycaffe_dist.layers.base import Arity, Layer, register
from pycaffe_dist.layers.checking import axis_of, checked_indices, describe, require_no_gradient
from pycaffe_dist.layers.inner_product import make_unit_length
from pycaffe_dist.layers.parameters import make_parameters


@register("InnerDistance")
class InnerDistance(Layer):
    """The squared (L2) or absolute (L1) distances of each sample to num_output centres, summed.

    The centres are a parameter (num_output, features), or the second bottom (outputs, features).
    normalize divides the parameter's rows by their length before every forward pass, and the
    gradient takes no notice.  With update_center_only the third bottom has labels, and a sample
    moves the centre of its label only.  Follows happynear/caffe-windows.  (Wang et al., 2017.)
    """

    bottoms = Arity(1, 3)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._options = param = self.param.inner_distance_param
        if param.distance_type not in ("L1", "L2"):
            raise self.error(f"needs distance_type L1 or L2, found '{param.distance_type}'")
        self._magnitudes = param.distance_type == "L1"
        if param.update_center_only != (len(bottom) == 3):
            raise self.error(
                "needs update_center_only and three bottoms (features, centres, labels), or neither"
            )
        self._axis = axis_of(self, bottom, param.axis)
        self._inputs = bottom[0].count_of(self._axis)
        if len(bottom) > 1:
            return
        if param.num_output == 0:
            raise self.error("needs num_output of at least 1")
        self.changes_weights = param.normalize
        make_parameters(self, ((param.num_output, self._inputs), param.weight_filler))

    def allow_force_backward(self, bottom_index: int) -> bool:
        """Labels have no gradient."""
        return bottom_index < 2

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        for index, blob in enumerate(bottom[:2]):
            features = blob.count_of(1 if index else self._axis)
            if features != self._inputs:
                raise self.error(
                    f"compares vectors of {self._inputs} features, found bottom "
                    f"{describe(self, bottom, index)}"
                )
        self._samples = bottom[0].count_of(0, self._axis)
        centres = bottom[1].shape[0] if len(bottom) > 1 else self._options.num_output
        top[0].reshape(*bottom[0].shape[: self._axis], centres)
        self._plan = InnerProduct(self._samples, centres, self._inputs, dtype=self.context.dtype)
        if len(bottom) > 2 and bottom[2].count != self._samples:
            raise self.error(
                f"needs one label per sample: {self._samples}, found bottom "
                f"{describe(self, bottom, 2)}"
            )

    def _rows(self, array: Any) -> Any:
        return array.reshape(-1, self._inputs)

    def _centres(self, bottom: list[Blob]) -> Blob:
        return bottom[1] if len(bottom) > 1 else self.blobs[0]

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        centres = self._rows(self._centres(bottom).data)
        if self.changes_weights:
            make_unit_length(centres)
        y = top[0].data.reshape(self._samples, len(centres))
        distances(self._rows(bottom[0].data), centres, self._magnitudes, y)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        require_no_gradient(self, propagate_down, 2)
        x, blob = self._rows(bottom[0].data), self._centres(bottom)
        centres = self._rows(blob.data)
        dy = top[0].diff.reshape(self._samples, len(centres))
        if len(bottom) > 1 and propagate_down[1]:
            blob.diff.fill(0)
        if propagate_down[1] if len(bottom) > 1 else self.param_propagate_down[0]:
            change = self._rows(blob.diff)
            if self._options.update_center_only:
                self._move_own(x, centres, dy, bottom, change)
            elif self._magnitudes:
                magnitudes_gradient(centres, x, dy, True, change)
            else:
                pull = xp().zeros(centres.shape, centres.dtype)
                self._plan.backward_weights(x, dy, pull)
                change += 2 * (dy.sum(axis=0)[:, None] * centres - pull)
        if propagate_down[0]:
            dx = self._rows(bottom[0].diff)
            if self._magnitudes:
                dx.fill(0)
                magnitudes_gradient(x, centres, dy, False, dx)
            else:
                self._plan.backward_data(dy, centres, dx)
                np.subtract(dy.sum(axis=1, keepdims=True) * x, dx, out=dx)
                dx *= 2

    def _move_own(self, x: Any, centres: Any, dy: Any, bottom: list[Blob], change: Any) -> None:
        """Add the gradient of each sample's own centre to ``change``."""

        def error(index: int, value: float) -> Exception:
            return self.error(
                f"label {value:g} of sample {index} in bottom {describe(self, bottom, 2)} is none "
                f"of the {len(centres)} centres (0 to {len(centres) - 1})"
            )

        labels = checked_indices(bottom[2].data.reshape(-1), len(centres), False, error)
        rows = xp().empty(x.shape, centres.dtype)
        gather(centres, labels, rows)
        rows -= x
        rows = np.sign(rows) if self._magnitudes else 2 * rows
        own = dy[xp().arange(len(x)), labels]
        scatter_add(rows * own[:, None], labels, change)
