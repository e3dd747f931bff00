"""LSTMUnit: one time step of an LSTM without its weights."""

from __future__ import annotations

from typing import Any

from pycaffe_dist.blob import Blob
from pycaffe_dist.kernels.lstm import lstm_unit_backward, lstm_unit_forward
from pycaffe_dist.layers.base import Arity, Layer, Need, register
from pycaffe_dist.layers.checking import mismatch, require_axes, require_no_gradient


@register("LSTMUnit")
class LSTMUnit(Layer):
    """Cell (1, N, D) and output of one step from the old cell, the gates' inputs (1, N, 4·D), and
    whether each of N sequences continues (1, N).

    The gates are input, forget, output and cell input.  (Hochreiter and Schmidhuber, 1997.)
    """

    bottoms = Arity(3, 3)
    tops = Arity(2, 2)
    backward_needs_top = Need.VALUE

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._activations = self.new_blob()

    def allow_force_backward(self, bottom_index: int) -> bool:
        """The sequence marks have no gradient."""
        return bottom_index != 2

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        for index, axes in enumerate((3, 3, 2)):
            require_axes(self, bottom, index, axes)
            if bottom[index].shape[:2] != (1, bottom[0].shape[1]):
                raise mismatch(self, bottom, 0, index, "need one time step of the same sequences")
        hidden = bottom[0].shape[2]
        if bottom[1].shape[2] != 4 * hidden:
            raise mismatch(self, bottom, 0, 1, f"do not fit: 4·{hidden} gates are needed")
        for blob in top:
            blob.reshape_like(bottom[0])
        self._activations.reshape_like(bottom[1])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        arrays = [blob.data[0] for blob in (*bottom, self._activations, *top)]
        lstm_unit_forward(*arrays)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        require_no_gradient(self, propagate_down, 2)
        if not any(propagate_down):
            return
        # A gradient that is not needed goes to a scratch array.
        scratch = self._activations
        dc_old = bottom[0].diff[0] if propagate_down[0] else self.new_blob(*bottom[0].shape).diff[0]
        dgates: Any = (bottom[1] if propagate_down[1] else scratch).diff[0]
        values = bottom[0].data[0], self._activations.data[0], top[0].data[0]
        lstm_unit_backward(*values, top[0].diff[0], top[1].diff[0], dc_old, dgates)
