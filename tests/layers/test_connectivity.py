"""connectivity_mode: which weights get no gradient, so that they stay 0."""

import numpy as np
import pytest
from layer_harness import LayerHarness

MODES = ["CONNECTED", "DISCONNECTED_ELTWISE", "DISCONNECTED_GRPWISE"]
RNG = np.random.default_rng(2)
X, IMAGES = RNG.standard_normal((5, 6)), RNG.standard_normal((2, 6, 5, 5))
CONVOLUTION = "convolution_param { num_output: 6 kernel_size: 2 group: 2 }"
LAYERS = {
    "InnerProduct": ("inner_product_param { num_output: 4 }", X, 1),
    "Convolution": (CONVOLUTION, IMAGES, 2),
    "Deconvolution": (CONVOLUTION, IMAGES, 2),
}


def gradients(kind, mode):
    """The layer, and its weights and their gradient; some weights are 0."""
    options, x, groups = LAYERS[kind]
    text = f'type: "{kind}" bottom: "x" top: "y" connectivity_mode: {mode} {options}'
    harness = LayerHarness(text, {"x": x})
    weights = harness.layer.blobs[0]
    rng = np.random.default_rng(8)
    values = rng.standard_normal(
        (groups, weights.shape[0] // groups, weights.count // weights.shape[0])
    )
    values[0, 1], values[-1, :, 2] = 0, 0  # an output, and an input of a group
    values[0, 0, 1] = 0
    weights.data[...] = values.reshape(weights.shape)
    harness.forward()
    harness.top[0].diff[...] = rng.standard_normal(harness.top[0].shape)
    weights.diff[...] = 0
    harness.backward()
    return harness.layer, values, weights.diff.reshape(values.shape).copy()


@pytest.mark.parametrize("kind", LAYERS)
def test_which_weights_get_no_gradient(kind):
    _, values, all_of_them = gradients(kind, "CONNECTED")
    assert all_of_them.all()
    _, _, elements = gradients(kind, "DISCONNECTED_ELTWISE")
    np.testing.assert_array_equal(elements, np.where(values == 0, 0, all_of_them))
    _, _, lines = gradients(kind, "DISCONNECTED_GRPWISE")
    expected = all_of_them.copy()
    expected[0, 1], expected[-1, :, 2] = 0, 0
    np.testing.assert_array_equal(lines, expected)


@pytest.mark.parametrize("mode", MODES)
def test_factors_are_offered_only_if_all_weights_train(mode):
    layer, _, _ = gradients("InnerProduct", mode)
    assert bool(layer.factor_rows(0)) == (mode == "CONNECTED")
    assert (layer.gradient_factors(0) is not None) == (mode == "CONNECTED")
