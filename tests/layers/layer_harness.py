"""One layer with its blobs, built from prototxt text, for tests that need no net."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from google.protobuf import text_format

from pycaffe_dist.blob import Blob
from pycaffe_dist.device import HOST, use
from pycaffe_dist.layers import Layer, LayerContext, layer_class
from pycaffe_dist.schema import caffe_pb2


class LayerHarness:
    """A layer of ``text`` (the inside of ``layer { … }``) over ``bottoms`` (name → array).

    The layer runs on ``device``; tests read its blobs on the host.
    """

    def __init__(
        self,
        text,
        bottoms,
        *,
        phase="TRAIN",
        dtype=np.float64,
        seed=1,
        parameters=(),
        device=HOST,
    ):
        self.device = device
        self.counted = None
        with use(device):
            self._build(text, bottoms, phase, dtype, seed, parameters)

    def _build(self, text, bottoms, phase, dtype, seed, parameters):
        message = text_format.Parse(text, caffe_pb2.LayerParameter())
        message.name = message.name or "l"
        context = LayerContext(
            phase=caffe_pb2.Phase.Value(phase), dtype=np.dtype(dtype), seed=seed, where="net:1"
        )
        kind = layer_class(message.type)
        inner = replace(context, dtype=context.parameter_dtype) if kind.host_only else context
        self.layer = kind(message, inner)
        # In a net of 16 bits labels, and the boxes of priors, have 32: see Layer.is_exact.
        exact = {
            name
            for index, name in enumerate(message.bottom)
            if kind.is_loss and not self.layer.allow_force_backward(index)
        }
        self.blobs = {
            name: Blob(np.shape(value), context.parameter_dtype if name in exact else dtype)
            for name, value in bottoms.items()
        }
        self.fill(bottoms)
        self.bottom = [self.blobs[name] for name in message.bottom]
        for index, name in enumerate(message.top):
            exact = self.layer.is_exact(index)
            self.blobs.setdefault(name, Blob((), context.parameter_dtype if exact else dtype))
        self.top = [self.blobs[name] for name in message.top]
        if self.layer.is_loss and not self.top:
            self.top = [Blob((), context.parameter_dtype)]
        self.layer.loss_weights = self.layer.first_loss_weights(len(self.top))
        with self._at_work():
            self.layer.setup(self.bottom, self.top)
        self.layer.param_propagate_down = [True] * len(self.layer.blobs)
        with use(HOST):
            for blob, value in zip(self.layer.blobs, parameters):
                blob.data[...] = value
        with self._at_work():
            self.layer.reshape(self.bottom, self.top)

    def _at_work(self):
        return use(HOST if self.layer.host_only else self.device)

    def fill(self, bottoms):
        """Give bottoms new values and shapes."""
        with use(HOST):
            for name, value in bottoms.items():
                self.blobs[name].reshape(*np.shape(value))
                self.blobs[name].data[...] = value

    def forward(self, bottoms=None):
        """Reshape and run forward; return copies of the tops."""
        self.fill(bottoms or {})
        # The same random numbers at every forward.
        state = np.random.default_rng(5).bit_generator.state
        Layer.set_state(self.layer, {"random": dict.fromkeys(self.layer.generators, state)})
        with self._at_work():
            self.layer.reshape(self.bottom, self.top)
            self.layer.forward(self.bottom, self.top)
        if self.device.is_gpu:
            self.device.settle()
        for blob, weight in zip(self.top, self.layer.loss_weights):
            if weight:
                self.weigh(blob, weight)
        return [blob.data.copy() for blob in self.top]

    def weigh(self, blob, weight):
        """Set a loss's diff to its weight; values that do not count get 0."""
        blob.diff.fill(weight)
        blob.diff.reshape(-1)[self.counted or blob.count :] = 0

    def backward(self, propagate_down=None):
        """Run backward to the given bottoms, or all that allow it; return which these are."""
        if propagate_down is None:
            propagate_down = [
                self.layer.allow_force_backward(index) for index in range(len(self.bottom))
            ]
        with self._at_work():
            self.layer.backward(self.top, propagate_down, self.bottom)
        return propagate_down
