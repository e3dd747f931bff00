"""Lstm, a fork's layer of long short-term memory."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.layers.base import Arity, register
from pycaffe_dist.layers.checking import describe
from pycaffe_dist.layers.parameters import make_parameters
from pycaffe_dist.layers.recurrent import LSTM


@register("Lstm")
class Lstm(LSTM):
    """LSTM with other parameters, as in tianzhi0549/CTPN (from junhyukoh/caffe-lstm).

    Bottoms: x (T, N, …) and perhaps cont, T·N numbers, 0 where a sequence starts and 1 where it
    continues; without cont each batch starts sequences.  Top: (T, N, num_output).  The parameters
    are W_x, W_h, b.  ``clipping_threshold`` limits the gradients of the gates' inputs, which are no
    derivatives where it does.  Unlike the fork's, the gradient of W_h is right with cont too.
    """

    bias = 2

    @property
    def bottoms(self) -> Arity:  # type: ignore[override]
        """x, and perhaps cont."""
        return Arity(1, 2)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.lstm_param
        if param.num_output == 0:
            raise self.error("needs num_output of at least 1")
        if bottom[0].ndim < 2:
            raise self.error(
                f"needs (steps, streams, …) as its input, found bottom {describe(self, bottom, 0)}"
            )
        self._hidden, self._inputs = param.num_output, bottom[0].count_of(2)
        self._static, self._hidden_weights = False, 1
        rows = self.gates * self._hidden
        make_parameters(
            self,
            ((rows, self._inputs), param.weight_filler),
            ((rows, self._hidden), param.weight_filler),
            ((rows,), param.bias_filler),
        )
        self._last = []
        self._marks = self.new_blob()

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        steps, streams = bottom[0].shape[:2] if bottom[0].ndim > 1 else (0, 0)
        if len(bottom) > 1 and bottom[1].count != steps * streams:
            raise self.error(
                f"needs a mark for each of {steps} steps and {streams} streams, found bottom "
                f"{describe(self, bottom, 1)}"
            )
        self._marks.reshape(steps, streams)
        super().reshape([bottom[0], self._marks], top)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        marks = self._marks.data
        if len(bottom) > 1:
            np.copyto(marks, bottom[1].data.reshape(marks.shape))
        else:
            marks.fill(1)
            marks[0] = 0
        super().forward([bottom[0], self._marks], top)

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        super().backward(top, propagate_down, [bottom[0], self._marks])

    def _step_backward(self, step: int, top: list[Blob], dstates: list[np.ndarray]) -> None:
        super()._step_backward(step, top, dstates)
        limit = self.param.lstm_param.clipping_threshold
        if limit > 0:
            dgates = self._gates.diff[step]
            np.clip(dgates, -limit, limit, out=dgates)
