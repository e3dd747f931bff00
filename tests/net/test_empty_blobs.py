"""Nets without samples, as after a Filter that chooses none."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from nets import build, input_layer, ip

from pycaffe_dist.errors import LayerError

sys.path.append(str(Path(__file__).parents[1] / "layers"))

from layer_cases import collect

CASES = [case for case in collect() if case.bottoms and case.type not in ("HDF5Data", "Python")]

# Maps of no image have no box, and a single row of detections or a sequence is no sample.
NEED_SAMPLES = {
    *("BatchReindex", "Bias", "Reshape", "Scale"),
    *("LSTM", "LSTMUnit", "Lstm", "RNN"),
    *("DetectionEvaluate", "PSROIPooling", "ROIAlign", "ROIPooling"),
}


def _net(case):
    values = case.values()
    layers = [input_layer(name, *np.shape(value)) for name, value in values.items()]
    net = build(f"{' '.join(layers)} force_backward: true layer {{ {case.text()} }}")
    for name, value in values.items():
        net.blobs[name].data[...] = value
    return net


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_layer_without_samples_does_nothing_or_gives_a_reason(case):
    net = _net(case)
    net.forward()
    net.backward()
    net.clear_parameter_diffs()
    samples = net.nodes[-1].bottom[0].shape[:1]
    shapes = {name: net.blobs[name].shape for name in net.inputs}
    for name, shape in shapes.items():
        if shape[:1] == samples and shape:
            net.blobs[name].reshape(0, *shape[1:])
    try:
        loss = net.forward()
    except LayerError as error:
        assert "\n" not in str(error)
        assert case.type in NEED_SAMPLES
        return
    net.backward()
    assert loss == 0
    for blob in [*net.blobs.values(), *net.layers[-1].blobs]:
        assert np.isfinite(blob.data).all()
    for blob in net.layers[-1].blobs:
        assert not blob.diff.any()
    # It works again when there are samples.
    for name, value in case.values().items():
        net.blobs[name].reshape(*shapes[name])
        net.blobs[name].data[...] = value
    net.forward()
    net.backward()


FILTERED = f"""
{input_layer("x", 4, 3, 5, 5)} {input_layer("y", 4)} {input_layer("chosen", 4)}
layer {{
  name: "filter" type: "Filter" bottom: "x" bottom: "y" bottom: "chosen" top: "fx" top: "fy"
}}
layer {{ name: "norm" type: "LRN" bottom: "fx" top: "norm" }}
{ip("ip", "norm", 3)}
layer {{ name: "relu" type: "ReLU" bottom: "ip" top: "ip" }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "fy" top: "loss" }}
"""


def test_a_filter_that_chooses_no_sample_leaves_no_loss_and_no_gradient():
    net = build(FILTERED)
    net.blobs["x"].data[...] = 1
    for chosen in (1, 0, 1):
        net.blobs["chosen"].data[...] = chosen
        net.clear_parameter_diffs()
        loss = net.forward()
        net.backward()
        assert net.blobs["ip"].shape == (4 * chosen, 3)
        assert (loss > 0) == bool(chosen)
        assert any(parameter.blob.diff.any() for parameter in net.parameters) == bool(chosen)
        layer = net.layers[net.layer_index("ip")]
        assert [len(factor) for factor in layer.gradient_factors(0)] == [4 * chosen] * 2


def test_parameters_without_elements_are_refused():
    with pytest.raises(LayerError, match=r"parameter 0 would have the shape \(3, 0\)"):
        build(input_layer("x", 4, 0) + ip("ip", "x", 3))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ([1] * 33, "at most 32 axes, found 33"),
        ([2**31 - 1] * 3, "at most 2147483647 elements, found 9.90"),
        ([65536, 32768], "at most 2147483647 elements"),
    ],
)
def test_shapes_have_caffes_limits(shape, message):
    with pytest.raises(LayerError, match=message):
        build(input_layer("x", *shape))
