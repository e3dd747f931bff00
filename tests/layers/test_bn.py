"""BN's two forms, its statistics, and BatchNorm's own scale and bias."""

from __future__ import annotations

import numpy as np
import pytest
from layer_harness import LayerHarness

from pycaffe_dist.blob import Blob
from pycaffe_dist.errors import LayerError
from pycaffe_dist.layers import LayerContext, layer_class
from pycaffe_dist.net.weights import same_shape
from pycaffe_dist.schema import caffe_pb2

X = np.random.default_rng(0).standard_normal((4, 3, 5, 2))
AXES = (0, 2, 3)


def build(options="", kind="BN", tops=1, phase="TRAIN", parameters=()):
    outs = "".join(f' top: "y{index}"' for index in range(tops))
    text = f'type: "{kind}" bottom: "x"{outs} {options}'
    return LayerHarness(text, {"x": X}, phase=phase, parameters=parameters)


def blobs(options, tops=1):
    return len(build(options, tops=tops).layer.blobs)


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ("", 4),
        ("bn_param { slope_filler { value: 1 } }", 4),
        ("bn_param { frozen: false }", 4),
        ("bn_param { engine: CAFFE }", 4),
        ("bn_param { scale_filler { value: 1 } shift_filler { value: 0.001 } }", 2),
        ("bn_param { bn_mode: LEARN }", 2),
        ("param { lr_mult: 1 } param { lr_mult: 1 }", 2),
        ("param { lr_mult: 1 } param {} param { lr_mult: 0 } param { lr_mult: 0 }", 4),
    ],
)
def test_the_fields_tell_the_form(options, count):
    assert blobs(options) == count


def test_tops_for_the_statistics_mean_the_form_that_has_them():
    assert blobs("", tops=3) == 2


@pytest.mark.parametrize("count", [2, 4])
def test_the_blobs_of_a_model_tell_the_form(count):
    param = caffe_pb2.LayerParameter(name="l", type="BN", bottom=["x"], top=["y"])
    layer = layer_class("BN")(param, LayerContext())
    layer.blobs = given = [Blob((1, 3, 1, 1)) for _ in range(count)]
    layer.setup([Blob(X.shape)], [Blob(())])
    assert layer.blobs == given


@pytest.mark.parametrize(
    ("options", "tops", "message"),
    [
        (
            "bn_param { slope_filler {} shift_filler {} }",
            1,
            "shift_filler of alexgkendall/caffe-segnet and slope_filler of hszhao/PSPNet",
        ),
        ("bn_param { eps: 1e-3 }", 2, "one top in the form with slope and bias"),
        ("bn_param { bn_mode: INFERENCE }", 2, "no statistics for tops 1 and 2"),
    ],
)
def test_forms_do_not_mix(options, tops, message):
    with pytest.raises(LayerError, match=message):
        build(options, tops=tops)


def test_running_statistics_are_means_and_are_not_learnt():
    harness = build("bn_param { momentum: 0.75 } param { lr_mult: 1 } param {} param {} param {}")
    layer = harness.layer
    harness.forward()
    harness.forward({"x": 2 * X + 1})
    mean = 0.75 * 0.25 * X.mean(AXES) + 0.25 * (2 * X + 1).mean(AXES)
    variance = 0.75 * 0.25 * X.var(AXES) + 0.25 * (2 * X + 1).var(AXES)
    np.testing.assert_allclose(layer.blobs[2].data.ravel(), mean, rtol=1e-6)
    np.testing.assert_allclose(layer.blobs[3].data.ravel(), variance, rtol=1e-6)
    assert layer.statistics_blobs() == layer.blobs[2:]
    assert [spec.lr_mult for spec in layer.param.param] == [1, 1, 0, 0]


def test_frozen_learns_nothing_and_starts_with_a_variance_of_one():
    layer = build("bn_param { frozen: true }").layer
    assert [spec.lr_mult for spec in layer.param.param] == [0] * 4
    assert [blob.data.mean() for blob in layer.blobs] == [0, 0, 0, 1]


def test_batch_norms_scale_and_bias_follow_its_statistics():
    options = "batch_norm_param { scale_filler { value: 2 } bias_filler { value: 3 } }"
    harness = build(options, "BatchNorm")
    layer = harness.layer
    assert [blob.shape for blob in layer.blobs] == [(3,), (3,), (1,), (3,), (3,)]
    assert layer.statistics_blobs() == layer.blobs[:3]
    assert [spec.lr_mult for spec in layer.param.param] == [0, 0, 0]
    y = harness.forward()[0]
    np.testing.assert_allclose(y.mean(AXES), 3, rtol=1e-6)
    np.testing.assert_allclose(y.std(AXES), 2, rtol=1e-4)


def test_batch_norm_reads_a_model_of_means_with_a_weight_of_one():
    mean, variance, factor, bias = np.random.default_rng(1).uniform(0.5, 2, (4, 3))
    parameters = mean, variance, [1], factor, bias
    options = "batch_norm_param { scale_bias: true }"
    y = build(options, "BatchNorm", phase="TEST", parameters=parameters).forward()[0]
    shape = (1, 3, 1, 1)
    expected = (X - mean.reshape(shape)) / np.sqrt(variance.reshape(shape) + 1e-5)
    expected = expected * factor.reshape(shape) + bias.reshape(shape)
    np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_parameters_without_trailing_ones_fit():
    assert same_shape((1, 7), (1, 7, 1, 1))
    assert not same_shape((7, 1), (1, 7, 1, 1))
    assert not same_shape((2, 7), (2, 7, 1, 1))
