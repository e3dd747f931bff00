"""Recurrent layers, RNN and LSTM: sequences of T steps for N independent streams."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.device import to_numpy, xp
from pycaffe_dist.kernels.bias_add import bias_gradient
from pycaffe_dist.kernels.exponential import tanh
from pycaffe_dist.kernels.gemm import FixedProduct, gemm
from pycaffe_dist.kernels.inner_product import InnerProduct
from pycaffe_dist.kernels.lstm import lstm_unit_backward, lstm_unit_forward
from pycaffe_dist.layers.base import Arity, Layer, Need, register
from pycaffe_dist.layers.checking import describe, mismatch, require_axes, require_no_gradient
from pycaffe_dist.layers.parameters import make_parameters


class Recurrent(Layer):
    """The base of RNN and LSTM.

    Bottoms: x (T, N, …); cont (T, N), 0 where a sequence starts and 1 where it continues;
    optionally a static input (N, …); with expose_hidden the first states.  Tops: the output (T, N,
    D) and, with expose_hidden, the last states.  States are (1, N, D).  Without expose_hidden a
    batch starts from the last states of the previous batch.

    Unlike Caffe's, exposed states have gradients.  Memory is linear in T.  The input's products
    with its weights are one product over all steps, and so are the gradients of the weights.
    """

    # A batch may start from the last states of the previous one.
    shares_data = False
    # Per hidden unit: rows of the weights, and states (h, and for LSTM c).
    gates = 1
    states = 1
    # The place of the bias among the parameters.
    bias = 1

    @property
    def bottoms(self) -> Arity:  # type: ignore[override]
        """x, cont, perhaps a static input, and the exposed states."""
        return Arity(2 + self._exposed(), 3 + self._exposed())

    @property
    def tops(self) -> Arity:  # type: ignore[override]
        """The output and the exposed states."""
        return Arity(1 + self._exposed(), 1 + self._exposed())

    def _exposed(self) -> int:
        return self.states if self.param.recurrent_param.expose_hidden else 0

    def allow_force_backward(self, bottom_index: int) -> bool:
        """The sequence marks have no gradient."""
        return bottom_index != 1

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.recurrent_param
        if param.num_output == 0:
            raise self.error("needs num_output of at least 1")
        if bottom[0].ndim < 2:
            raise self.error(
                f"needs (steps, streams, …) as its input, found bottom {describe(self, bottom, 0)}"
            )
        self._hidden = hidden = param.num_output
        self._inputs = bottom[0].count_of(2)
        self._static = len(bottom) > 2 + self._exposed()
        rows, weight, bias = self.gates * hidden, param.weight_filler, param.bias_filler
        specs = [((rows, self._inputs), weight), ((rows,), bias)]
        if self._static:
            specs.append(((rows, bottom[2].count_of(1)), weight))
        self._hidden_weights = len(specs)
        specs.append(((rows, hidden), weight))
        make_parameters(self, *specs, *self._output_parameters())
        self._last: list[np.ndarray] = []

    def _output_parameters(self) -> list:
        return []

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        if bottom[0].ndim < 2 or bottom[0].count_of(2) != self._inputs:
            raise self.error(
                f"has weights for {self._inputs} inputs, found bottom {describe(self, bottom, 0)}"
            )
        require_axes(self, bottom, 1, 2)
        steps, streams = bottom[0].shape[:2]
        if not steps:
            raise self.error(f"needs a time step, found bottom {describe(self, bottom, 0)}")
        if bottom[1].shape != (steps, streams):
            raise mismatch(self, bottom, 0, 1, "need the same steps and streams")
        if self._static and bottom[2].shape[:1] != (streams,):
            raise mismatch(self, bottom, 0, 2, "need the same streams")
        state = (1, streams, self._hidden)
        for index in range(2 + self._static, len(bottom)):
            if bottom[index].shape != state:
                raise self.error(
                    f"needs a first state of {state}, found bottom {describe(self, bottom, index)}"
                )
        top[0].reshape(steps, streams, self._hidden)
        for blob in top[1:]:
            blob.reshape(*state)
        if not self._last or self._last[0].shape != state[1:]:
            self._last = [xp().zeros(state[1:], self.context.dtype) for _ in range(self.states)]
        self._make_scratch(steps, streams)

    def _make_scratch(self, steps: int, streams: int) -> None:
        rows = self.gates * self._hidden
        shape = steps, streams, self._hidden
        # The gates' inputs, then their activations; the diff has their gradients.
        self._gates = self.new_blob(steps, streams, rows)
        # The states before each step, with h = 0 where a sequence starts.
        self._before = self.new_blob(*shape)
        dtype = self.context.dtype
        self._input_plan = InnerProduct(steps * streams, rows, self._inputs, dtype=dtype)
        self._step_plan = FixedProduct(streams, rows, self._hidden, dtype)
        self._step_back_plan = FixedProduct(streams, self._hidden, rows, dtype)

    def reset(self) -> None:
        """Forget the last states: the next batch starts from zero."""
        for state in self._last:
            state.fill(0)

    def state(self) -> dict[str, Any]:
        """Return the last states, the start of the next batch, encoded as text."""
        last = [to_numpy(state) for state in self._last]
        return {"last": [base64.b64encode(state.tobytes()).decode() for state in last]}

    def set_state(self, state: dict[str, Any]) -> None:
        """Start the next batch with these states, unless the number of streams has changed."""
        last = [
            np.frombuffer(base64.b64decode(text), mine.dtype)
            for text, mine in zip(state["last"], self._last)
        ]
        if [values.size for values in last] == [mine.size for mine in self._last]:
            for mine, values in zip(self._last, last):
                mine[...] = xp().asarray(values.reshape(mine.shape))

    def _first_states(self, bottom: list[Blob]) -> list[np.ndarray]:
        if not self._exposed():
            return [state.copy() for state in self._last]
        return [blob.data[0] for blob in bottom[2 + self._static :]]

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        gates = self._gates.data
        flat = gates.reshape(-1, gates.shape[2])
        x = bottom[0].data.reshape(len(flat), -1)
        self._input_plan.forward(x, self.blobs[0].data, self.blobs[self.bias].data, flat)
        if self._static:
            fixed = np.empty_like(gates[0])
            gemm(self._static_input(bottom), self._weights(2), fixed, trans_b=True)
            gates += fixed
        self._states = self._first_states(bottom)
        self._step_plan.hold(self._weights(self._hidden_weights), transposed=True)
        for step in range(len(gates)):
            np.multiply(self._states[0], bottom[1].data[step][:, None], out=self._before.data[step])
            self._step_plan.run(self._before.data[step], gates[step], add=True)
            self._states = self._step_forward(step, bottom, top)
        self._finish_forward(top)
        for index, state in enumerate(self._states):
            self._last[index][...] = state
            if self._exposed():
                top[1 + index].data[0] = state

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        require_no_gradient(self, propagate_down, 1)
        dgates = self._gates.diff
        self._step_back_plan.hold(self._weights(self._hidden_weights))
        dstates = [np.zeros_like(state) for state in self._last]
        for index, blob in enumerate(top[1:]):
            dstates[index][...] = blob.diff[0]
        doutputs = self._start_backward(top)
        for step in reversed(range(len(dgates))):
            dstates[0] += doutputs[step]
            self._step_backward(step, top, dstates)
            self._step_back_plan.run(dgates[step], dstates[0])
            dstates[0] *= bottom[1].data[step][:, None]
        self._gradients_of_parameters(bottom)
        self._gradients_of_bottoms(propagate_down, bottom, dstates)

    def _gradients_of_parameters(self, bottom: list[Blob]) -> None:
        dgates = self._gates.diff
        flat = dgates.reshape(-1, dgates.shape[2])
        wanted, hidden = self.param_propagate_down, self._hidden_weights
        if wanted[0]:
            x = bottom[0].data.reshape(len(flat), -1)
            self._input_plan.backward_weights(x, flat, self.blobs[0].diff)
        if wanted[self.bias]:
            bias_gradient(flat, self.blobs[self.bias].diff)
        if self._static and wanted[2]:
            total = dgates.sum(axis=0)
            gemm(total, self._static_input(bottom), self.blobs[2].diff, trans_a=True, beta=1.0)
        if wanted[hidden]:
            before = self._before.data.reshape(len(flat), -1)
            gemm(flat, before, self.blobs[hidden].diff, trans_a=True, beta=1.0)

    def _gradients_of_bottoms(
        self, propagate_down: list[bool], bottom: list[Blob], dstates: list[np.ndarray]
    ) -> None:
        dgates = self._gates.diff
        flat = dgates.reshape(-1, dgates.shape[2])
        if propagate_down[0]:
            dx = bottom[0].diff.reshape(len(flat), -1)
            self._input_plan.backward_data(flat, self.blobs[0].data, dx)
        if self._static and propagate_down[2]:
            dx = bottom[2].diff.reshape(bottom[2].shape[0], -1)
            gemm(dgates.sum(axis=0), self._weights(2), dx)
        for index, dstate in enumerate(dstates[: self._exposed()], 2 + self._static):
            if propagate_down[index]:
                bottom[index].diff[0] = dstate

    def _weights(self, index: int) -> np.ndarray:
        """Return a matrix of parameters in the data's dtype, which may be narrower."""
        return xp().asarray(self.blobs[index].data, self.context.dtype)

    def _static_input(self, bottom: list[Blob]) -> np.ndarray:
        return bottom[2].data.reshape(bottom[2].shape[0], -1)

    def _step_forward(self, step: int, bottom: list[Blob], top: list[Blob]) -> list[np.ndarray]:
        """Activate the step's gates; return the states after it."""
        raise NotImplementedError

    def _finish_forward(self, top: list[Blob]) -> None:
        """Compute everything that needs no recurrence."""

    def _start_backward(self, top: list[Blob]) -> np.ndarray:
        """Return the gradients of h at all steps, without the parts from later steps."""
        raise NotImplementedError

    def _step_backward(self, step: int, top: list[Blob], dstates: list[np.ndarray]) -> None:
        """Set the step's gate gradients from its states' gradients; propagate these a step back.

        The caller then replaces the gradient of h by the gates' contribution.
        """
        raise NotImplementedError


@register("LSTM")
class LSTM(Recurrent):
    """Long short-term memory; the parameters are W_xc, b_c, (W_xc_static,) W_hc.

    Gates are input, forget, output and cell input.  (Hochreiter and Schmidhuber, 1997; Donahue et
    al., 2014.)
    """

    gates = 4
    states = 2

    def _make_scratch(self, steps: int, streams: int) -> None:
        super()._make_scratch(steps, streams)
        # Cells before the first and after each step.
        self._cells = self.new_blob(steps + 1, streams, self._hidden)

    def _step_forward(self, step: int, bottom: list[Blob], top: list[Blob]) -> list[np.ndarray]:
        cells, gates = self._cells.data, self._gates.data[step]
        if step == 0:
            cells[0] = self._states[1]
        keep, h = bottom[1].data[step], top[0].data[step]
        lstm_unit_forward(cells[step], gates, keep, gates, cells[step + 1], h)
        return [h, cells[step + 1]]

    def _start_backward(self, top: list[Blob]) -> np.ndarray:
        return top[0].diff

    def _step_backward(self, step: int, top: list[Blob], dstates: list[np.ndarray]) -> None:
        cells, gates = self._cells.data, self._gates
        dh, dc = dstates
        lstm_unit_backward(
            cells[step], gates.data[step], cells[step + 1], dc, dh, dc, gates.diff[step]
        )


@register("RNN")
class RNN(Recurrent):
    """h = tanh(W_hh·h + W_xh·x + b_h), output tanh(W_ho·h + b_o).

    The parameters are W_xh, b_h, (W_xh_static,) W_hh, W_ho, b_o.
    """

    backward_needs_top = Need.VALUE

    def _output_parameters(self) -> list:
        param, hidden = self.param.recurrent_param, self._hidden
        return [((hidden, hidden), param.weight_filler), ((hidden,), param.bias_filler)]

    def _make_scratch(self, steps: int, streams: int) -> None:
        super()._make_scratch(steps, streams)
        size = self._hidden
        self._output_plan = InnerProduct(steps * streams, size, size, dtype=self.context.dtype)

    def _step_forward(self, step: int, bottom: list[Blob], top: list[Blob]) -> list[np.ndarray]:
        h = self._gates.data[step]
        tanh(h, h)
        return [h]

    def _finish_forward(self, top: list[Blob]) -> None:
        h, y = (array.reshape(-1, self._hidden) for array in (self._gates.data, top[0].data))
        self._output_plan.forward(h, self.blobs[-2].data, self.blobs[-1].data, y)
        tanh(y, y)

    def _start_backward(self, top: list[Blob]) -> np.ndarray:
        h = self._gates.data.reshape(-1, self._hidden)
        doutput = (top[0].diff * (1 - top[0].data ** 2)).reshape(h.shape)
        if self.param_propagate_down[-2]:
            self._output_plan.backward_weights(h, doutput, self.blobs[-2].diff)
        if self.param_propagate_down[-1]:
            bias_gradient(doutput, self.blobs[-1].diff)
        dh = np.empty_like(h)
        self._output_plan.backward_data(doutput, self.blobs[-2].data, dh)
        return dh.reshape(self._gates.shape)

    def _step_backward(self, step: int, top: list[Blob], dstates: list[np.ndarray]) -> None:
        h = self._gates.data[step]
        np.multiply(dstates[0], 1 - h * h, out=self._gates.diff[step])
