"""The layers' golden files, and comparisons with them.

golden/layers has BVLC Caffe's results on the CPU, golden/forks the results of its forks.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from google.protobuf import text_format
from layer_harness import LayerHarness

from pycaffe_dist.device import HOST
from pycaffe_dist.layers import layer_class
from pycaffe_dist.schema import caffe_pb2

_GOLDEN = Path(__file__).parents[1] / "golden"
CASES = sorted((_GOLDEN / "layers").glob("*.npz")) + sorted((_GOLDEN / "forks").glob("*.npz"))


def load(path):
    """Return the case's arrays, the layers that it has bottoms for, and whether Caffe ran backward.

    Caffe ran it if it had to, or if a loss was asked for gradients.
    """
    with np.load(path) as archive:
        arrays = dict(archive)
    net = text_format.Parse(str(arrays["prototxt"]), caffe_pb2.NetParameter())
    *before, last = net.layer
    layers = [
        layer
        for layer in before
        if layer.bottom and all(f"blob/{name}" in arrays for name in layer.bottom)
    ]
    asked = layer_class(last.type).is_loss and True in last.propagate_down
    return arrays, [*layers, last], net.force_backward or asked


def check(path, device=HOST, dtype=np.float32, rtol=1e-4, atol=1e-5):
    """Run a case's layers on ``device``, the last one first, and compare results with the file."""

    def assert_close(found, expected, what):
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol, err_msg=what)

    arrays, layers, backward_ran = load(path)
    diffs = {key[8:]: arrays[key] for key in arrays if key.startswith("topdiff/")}
    for message in reversed(layers):
        harness = _harness(message, arrays, dtype, device)
        for name, value in zip(message.top, harness.forward()):
            assert value.shape == arrays[f"blob/{name}"].shape
            assert_close(value, arrays[f"blob/{name}"], f"top {name}")
        if harness.layer.has_backward and backward_ran:
            _check_backward(message, harness, arrays, diffs, assert_close)
        for index, blob in enumerate(harness.layer.blobs):
            if f"param_after/{message.name}/{index}" in arrays:
                expected = arrays[f"param_after/{message.name}/{index}"]
                assert_close(blob.data, expected, f"parameter {index} after the pass")


def _harness(message, arrays, dtype, device):
    prefix = f"param/{message.name}/"
    return LayerHarness(
        text_format.MessageToString(message),
        {name: arrays[f"blob/{name}"] for name in message.bottom},
        phase=str(arrays["phase"]),
        dtype=dtype,
        parameters=[arrays[key] for key in sorted(arrays) if key.startswith(prefix)],
        device=device,
    )


def _check_backward(message, harness, arrays, diffs, assert_close):
    """Compare the gradients that the file has; note all bottoms' in ``diffs``."""
    for name, blob in zip(message.top, harness.top):
        if name in diffs:
            blob.diff[...] = diffs[name]
    propagated = harness.backward(list(message.propagate_down) or None)
    for name, blob, done in zip(message.bottom, harness.bottom, propagated):
        if done:
            diffs[name] = blob.diff
            if f"bottomdiff/{name}" in arrays:
                assert_close(blob.diff, arrays[f"bottomdiff/{name}"], f"diff of {name}")
    for index, blob in enumerate(harness.layer.blobs):
        expected = arrays[f"paramdiff/{message.name}/{index}"]
        assert_close(blob.diff, expected, f"diff of parameter {index}")
