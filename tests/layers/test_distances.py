"""Distances of colours: further tops and wrong inputs."""

from __future__ import annotations

import numpy as np
import pytest
from layer_harness import LayerHarness

from pycaffe_dist.errors import LayerError

X = np.random.default_rng(1).standard_normal((2, 3, 4, 5))


def build(type, options="", tops=1, **values):
    names = " ".join(f'bottom: "{name}"' for name in values)
    outs = " ".join(f'top: "y{index}"' for index in range(tops))
    return LayerHarness(f'type: "{type}" {names} {outs} {options}', values)


def test_means_and_deviations_are_tops():
    fields = "output_mean: true output_variance: true eps: 0.5"
    y, mean, deviation = build("MVNO", f"mvno_param {{ {fields} }}", 3, x=X).forward()
    np.testing.assert_allclose(mean, X.mean(axis=(2, 3)))
    np.testing.assert_allclose(deviation, X.std(axis=(2, 3)) + 0.5)
    shift = X - mean[:, :, None, None]
    np.testing.assert_allclose(y, shift / deviation[:, :, None, None])
    fields = "output_variance: true across_channels: true sub_mean: false normalize_variance: false"
    y, length = build("MVNO", f"mvno_param {{ {fields} }}", 2, x=X).forward()
    np.testing.assert_array_equal(y, X)
    np.testing.assert_allclose(length, np.linalg.norm(X.reshape(2, -1), axis=1)[:, None])


def test_values_for_channels():
    y = np.arange(6.0).reshape(2, 3)
    (found,) = build("Chnwise", "chnwise_param { coeff: [2, -1] }", x=X, y=y).forward()
    np.testing.assert_allclose(found, 2 * X - y[:, :, None, None])


@pytest.mark.parametrize(
    ("type", "options", "values", "message"),
    [
        ("MVNO", "mvno_param { output_mean: true }", {"x": X}, "a top each .* found 1 tops"),
        ("Chnwise", "", {"x": X, "y": X}, "one value for each channel of bottom 'x'"),
        ("Chnwise", "chnwise_param { operation: MAX }", {"x": X, "y": X}, "SUM only"),
        ("Chnwise", "chnwise_param { coeff: 1 }", {"x": X, "y": X}, "each of 2 bottoms, found 1"),
        ("EuclideanDist", "", {"x": X, "y": X[:, 1:]}, "need as many values per sample"),
    ],
)
def test_wrong_inputs(type, options, values, message):
    with pytest.raises(LayerError, match=message):
        build(type, options, **values)
