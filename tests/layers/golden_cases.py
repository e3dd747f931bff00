"""The layers' golden files, and comparisons with them.

golden/layers has BVLC Caffe's results on the CPU, golden/forks the results of its forks.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from google.protobuf import text_format
from layer_harness import LayerHarness

from pycaffe_dist.device import HOST
from pycaffe_dist.schema import caffe_pb2

_GOLDEN = Path(__file__).parents[1] / "golden"
CASES = sorted((_GOLDEN / "layers").glob("*.npz")) + sorted((_GOLDEN / "forks").glob("*.npz"))


def load(path):
    """Return the case's arrays, the layer under test (the last) and whether Caffe ran backward."""
    with np.load(path) as archive:
        arrays = dict(archive)
    net = text_format.Parse(str(arrays["prototxt"]), caffe_pb2.NetParameter())
    scaled = give_scaled_gradients(net, arrays)
    ran = net.force_backward or scaled or net.layer[-1].type == "InfogainLoss"
    return arrays, net.layer[-1], ran


def give_scaled_gradients(net, arrays):
    """Find the gradients of the last layer's bottoms that are tops of a Scale by one number.

    Such a Scale makes Caffe run backward where it would stop on ``force_backward``.  Return whether
    there is one.
    """
    scales = [s for s in net.layer if s.type == "Scale" and s.top[0] in net.layer[-1].bottom]
    for scale in scales:
        factor = arrays[f"param/{scale.name}/0"]
        arrays[f"bottomdiff/{scale.top[0]}"] = arrays[f"bottomdiff/{scale.bottom[0]}"] / factor
    return bool(scales)


def check(path, device=HOST, dtype=np.float32, rtol=1e-4, atol=1e-5):
    """Run a case's layer on ``device`` and compare all results with the file."""

    def assert_close(found, expected, what):
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol, err_msg=what)

    arrays, message, backward_ran = load(path)
    bottoms = {name: arrays[f"blob/{name}"] for name in message.bottom}
    parameters = [arrays[key] for key in sorted(arrays) if key.startswith(f"param/{message.name}/")]
    harness = LayerHarness(
        text_format.MessageToString(message),
        bottoms,
        phase=str(arrays["phase"]),
        dtype=dtype,
        parameters=parameters,
        device=device,
    )
    layer = harness.layer
    for name, value in zip(message.top, harness.forward()):
        assert value.shape == arrays[f"blob/{name}"].shape
        assert_close(value, arrays[f"blob/{name}"], f"top {name}")
    for name, blob in zip(message.top, harness.top):
        if f"topdiff/{name}" in arrays:
            blob.diff[...] = arrays[f"topdiff/{name}"]
    if layer.has_backward and backward_ran:
        wanted = list(message.propagate_down) or None
        propagated = harness.backward(wanted)
        for name, blob, done in zip(message.bottom, harness.bottom, propagated):
            if done:
                assert_close(blob.diff, bottom_diff(arrays, name), f"diff of {name}")
        for index, blob in enumerate(layer.blobs):
            expected = arrays[f"paramdiff/{message.name}/{index}"]
            assert_close(blob.diff, expected, f"diff of parameter {index}")
    for index, blob in enumerate(layer.blobs):
        if f"param_after/{message.name}/{index}" in arrays:
            expected = arrays[f"param_after/{message.name}/{index}"]
            assert_close(blob.data, expected, f"parameter {index} after the pass")


def bottom_diff(arrays, name):
    """Return the gradient of a blob, also of one that a linear Power made from one of the file."""
    if f"bottomdiff/{name}" in arrays:
        return arrays[f"bottomdiff/{name}"]
    net = text_format.Parse(str(arrays["prototxt"]), caffe_pb2.NetParameter())
    (maker,) = (layer for layer in net.layer if name in layer.top)
    assert maker.type == "Power" and maker.power_param.power == 1
    return arrays[f"bottomdiff/{maker.bottom[0]}"] / maker.power_param.scale
