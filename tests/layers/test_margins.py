"""Layers of face recognition: values of plain formulas, schedules, wrong input."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from layer_harness import LayerHarness
from passes import run

from pycaffe_dist.errors import LayerError

KINDS = ("SINGLE", "DOUBLE", "TRIPLE", "QUADRUPLE")
LABELS = np.array([1.0, 0, 2, 1, 3, 2, 0])
FIELDS = {
    "MarginInnerProduct": "margin_inner_product_param",
    "LargeMarginInnerProduct": "largemargin_inner_product_param",
}


def psi(factor, angle):
    """Return (-1)^k cos(factor·angle) - 2k, with k the number of whole pi in factor·angle."""
    k = min(int(factor * angle / math.pi), factor - 1)
    return (-1) ** k * math.cos(factor * angle) - 2 * k


def features_and_weights(seed=4):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((7, 5)), rng.standard_normal((4, 5))


def margin_layer(kind, options, x, weights=None, labels=LABELS, tops=("y", "lambda")):
    names = " ".join(f'top: "{top}"' for top in tops)
    field = f"{FIELDS[kind]} {{ num_output: 4 {options} }}"
    text = f'type: "{kind}" bottom: "x" bottom: "t" {names} {field}'
    parameters = () if weights is None else (weights,)
    return LayerHarness(text, {"x": x, "t": labels}, parameters=parameters)


def expected_top(kind, factor, weight, x, weights):
    lengths = np.linalg.norm(weights, axis=1)
    if kind == "MarginInnerProduct":
        weights, lengths = weights / lengths[:, None], np.ones(len(weights))
    top = x @ weights.T
    for row, label in enumerate(LABELS.astype(int)):
        size = np.linalg.norm(x[row]) * lengths[label]
        angle = math.acos(top[row, label] / size)
        margin = size * psi(factor, angle)
        top[row, label] = (margin + weight * top[row, label]) / (1 + weight)
    return top


@pytest.mark.parametrize("kind", FIELDS)
@pytest.mark.parametrize("factor", [1, 2, 3, 4])
def test_the_label_has_a_margin_on_its_angle(kind, factor):
    x, weights = features_and_weights()
    options = f"type: {KINDS[factor - 1]} base: 8 gamma: 0.5 power: 2 iteration: 3"
    harness = margin_layer(kind, options, x, weights)
    found, weight = harness.forward()
    assert weight == pytest.approx([8 * (1 + 0.5 * 4) ** -2.0])
    np.testing.assert_allclose(found, expected_top(kind, factor, 8 / 9, x, weights), rtol=1e-6)


def sphere_gradients(factor, weight, x, weights, dy):
    """Return the gradients that sphereface defines, for weights of length 1, one at a time."""
    dx = np.zeros_like(x)
    for i, label in enumerate(LABELS.astype(int)):
        size = np.linalg.norm(x[i])
        for j, w in enumerate(weights):
            if j != label:
                dx[i] += dy[i, j] * w
                continue
            c = float(x[i] @ w) / size
            step = 1e-6
            above, below = (psi(factor, math.acos(c + s)) for s in (step, -step))
            of_w = (above - below) / (2 * step)
            of_x = (psi(factor, math.acos(c)) - c * of_w) / size
            length = math.hypot(of_w, of_x)
            own = (of_w * w + of_x * x[i]) / length
            dx[i] += dy[i, j] * (own + weight * w) / (1 + weight)
    return dx, dy.T @ x


@pytest.mark.parametrize("factor", [2, 3, 4])
def test_sphereface_scales_the_gradient_of_the_margin_to_length_1(factor):
    x, weights = features_and_weights()
    weights /= np.linalg.norm(weights, axis=1, keepdims=True)
    harness = margin_layer("MarginInnerProduct", f"type: {KINDS[factor - 1]} base: 2", x, weights)
    _, (dx,), (dw,) = run(harness)
    expected = sphere_gradients(factor, 2, x, weights, harness.top[0].diff)
    np.testing.assert_allclose(dx, expected[0], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(dw, expected[1], rtol=1e-6, atol=1e-8)


def test_features_of_zeros_give_no_nan():
    _, weights = features_and_weights()
    for kind in FIELDS:
        harness = margin_layer(kind, "type: QUADRUPLE", np.zeros((7, 5)), weights)
        (top, _), (dx,), (dw,) = run(harness)
        np.testing.assert_allclose(top, 0, atol=1e-8)
        assert np.isfinite(dx).all()
        assert np.isfinite(dw).all()


def add_layer(options, phase="TRAIN", tops='top: "y" top: "bias"'):
    text = f'type: "LabelSpecificAdd" bottom: "x" bottom: "t" {tops} '
    bottoms = {"x": np.linspace(-1, 1, 8).reshape(2, 4), "t": np.array([3.0, 0])}
    return LayerHarness(f"{text} label_specific_add_param {{ {options} }}", bottoms, phase=phase)


def test_a_bias_falls_with_the_iterations_to_its_least_value():
    harness = add_layer("bias_base: 0 bias_gamma: -0.1 bias_min: -0.25 iteration: 1")
    biases = [float(harness.forward()[1][0]) for _ in range(4)]
    np.testing.assert_allclose(biases, [-0.1, -0.2, -0.25, -0.25], rtol=1e-6)


def test_a_bias_is_added_to_labels_above_its_negative_in_training_only():
    expected = np.linspace(-1, 1, 8).reshape(2, 4)
    test, bias = add_layer("bias: -0.1", phase="TEST").forward()
    np.testing.assert_array_equal(test, expected)
    assert not bias
    expected[1, 0] -= 0.1  # 1/7; the other label's score, -1/7, is below 0.1
    np.testing.assert_allclose(add_layer("bias: -0.1").forward()[0], expected, rtol=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda: add_layer("bias_base: 0 bias_gamma: -0.1 bias_min: -1"),
        lambda: margin_layer(
            "MarginInnerProduct", "type: DOUBLE base: 8 gamma: 1", *features_and_weights()
        ),
    ],
)
def test_the_count_of_iterations_goes_on_from_a_snapshot(make):
    first = make()
    for _ in range(3):
        first.forward()
    state = first.layer.state()
    expected = first.forward()[1]
    for states in ([state], [state, state]):
        second = make()
        second.layer.restore(states)
        np.testing.assert_array_equal(second.forward()[1], expected)
    fourth_rank = make()
    shard = replace(fourth_rank.layer.context.shard, rank=3, size=4)
    fourth_rank.layer.context = replace(fourth_rank.layer.context, shard=shard)
    fourth_rank.layer.restore([state, state])
    np.testing.assert_array_equal(fourth_rank.forward()[1], expected)


DISTANCES = np.array([[0.3, 1.4, 0.9], [2.5, 0.2, 0.6], [0.4, 0.7, 1.8], [0.5, 0.05, 0.9]])
OWN = np.array([0.0, 0, 2, 1])


def loss_layer(kind, field, options):
    text = (
        f'type: "{kind}" bottom: "x" bottom: "t" top: "loss" top: "means" loss_weight: 2 '
        f"loss_weight: 0 {field} {{ {options} }}"
    )
    harness = LayerHarness(text, {"x": DISTANCES, "t": OWN})
    harness.counted = 1
    return harness


def contrastive(options=""):
    return loss_layer("GeneralContrastiveLoss", "general_contrastive_loss_param", options)


def triplet(options=""):
    return loss_layer("GeneralTripletLoss", "general_triplet_loss_param", options)


def test_a_contrastive_loss_and_its_mean_distances():
    (loss, means), (dx,), _ = run(contrastive("negative_margin: 0.8"))
    # Positive: 0.3, 2.5, 1.8, 0.05. Negatives below 0.8: 0.2 0.6, 0.4 0.7, 0.5.
    assert loss == pytest.approx((4.65 + 0.6 + 0.2 + 0.4 + 0.1 + 0.3) / 4)
    np.testing.assert_allclose(means, [4.65 / 4, 1.6 / 4 / 2])
    expected = [[1, 0, 0], [1, -1, -1], [-1, -1, 1], [-1, 1, 0]]
    np.testing.assert_allclose(dx, np.array(expected) / 2)


def test_the_outliers_of_a_contrastive_loss_have_no_gradient():
    (loss, _), (dx,), _ = run(contrastive("positive_outlier_thresh: 1.7 negative_weight: 0"))
    assert loss == pytest.approx((0.3 + 1.7 + 1.7 + 0.05) / 4)
    np.testing.assert_allclose(dx[[0, 1, 2, 3], [0, 0, 2, 1]], [0.5, 0, 0, 0.5])


def test_a_contrastive_loss_of_the_hardest_parts_only():
    options = "max_negative_only: true max_positive_only: true negative_margin: 1"
    (loss, _), (dx,), _ = run(contrastive(options))
    # The search of a row begins at column 0: in rows 0 and 1 that is the label's, whose part is 0.3
    # and 2.5, more than the negatives'.
    assert loss == pytest.approx((0.05 + 0.6 + 0.5) / 4)
    np.testing.assert_allclose(dx, np.array([[0, 0, 0], [0, 0, 0], [-1, 0, 0], [-1, 1, 0]]) / 2)


def test_far_positives_leave_out_the_negatives():
    options = "positive_first: true positive_upper_bound: 1 positive_outlier_thresh: 1.5"
    (loss, _), (dx,), _ = run(contrastive(options))
    assert loss == pytest.approx((0.3 + 0.1 + 1.5 + 1.5 + 0.05 + 0.5 + 0.1) / 4)
    np.testing.assert_allclose(dx, np.array([[1, 0, -1], [1, 0, 0], [0, 0, 1], [-1, 1, -1]]) / 2)


def test_the_gradients_of_negatives_are_normalized():
    (_, _), (dx,), _ = run(contrastive("negative_margin: 0.8 normalize_negative: 0.5"))
    share = 5 / 0.5 / 4
    np.testing.assert_allclose(dx[2], np.array([-1 / share, -1 / share, 1]) / 2)


def test_a_triplet_loss_and_its_mean_distances():
    (loss, means), (dx,), _ = run(triplet("margin: 0.2"))
    # Row 1: 2.7 - 0.2 and 2.7 - 0.6; row 2: 2 - 0.4 and 2 - 0.7.
    assert loss == pytest.approx((2.5 + 2.1 + 1.6 + 1.3) / 4)
    np.testing.assert_allclose(means, [4.65 / 4, (2.3 + 0.8 + 1.1 + 1.4) / 8])
    expected = [[1, 0, 0], [1, -1, -1], [-1, -1, 1], [0, 1, 0]]
    np.testing.assert_allclose(dx, np.array(expected) / 2)
    _, (dx,), _ = run(triplet("margin: 0.2 hardest_only: true add_center_loss: false"))
    np.testing.assert_allclose(dx, np.array([[0, 0, 0], [1, -1, 0], [-1, 0, 1], [0, 0, 0]]) / 2)
    options = (
        "positive_first: true positive_upper_bound: 2 positive_weight: 3 add_center_loss: false"
    )
    (loss, _), (dx,), _ = run(triplet(options))
    assert loss == pytest.approx((1.6 + 1.3) / 4)
    np.testing.assert_allclose(dx, np.array([[0, 0, 0], [3, 0, 0], [-1, -1, 3], [0, 0, 0]]) / 2)


def test_a_sample_moves_the_centre_of_its_label():
    x, centres = features_and_weights()
    text = 'type: "InnerDistance" bottom: "x" bottom: "w" bottom: "t" top: "y" '
    options = "inner_distance_param { update_center_only: true }"
    harness = LayerHarness(text + options, {"x": x, "w": centres, "t": LABELS})
    (y,), (_, dw), _ = run(harness)
    np.testing.assert_allclose(y, ((x[:, None] - centres) ** 2).sum(axis=2))
    expected = np.zeros_like(centres)
    for row, label in enumerate(LABELS.astype(int)):
        expected[label] += 2 * harness.top[0].diff[row, label] * (centres[label] - x[row])
    np.testing.assert_allclose(dw, expected)


@pytest.mark.parametrize("kind", ["InnerProduct", "InnerDistance"])
def test_weights_are_made_as_long_as_1(kind):
    field = {"InnerProduct": "inner_product_param", "InnerDistance": "inner_distance_param"}[kind]
    x, weights = features_and_weights()
    text = f'type: "{kind}" bottom: "x" top: "y" {field} {{ num_output: 4 normalize: true }}'
    bias = (np.zeros(4),) if kind == "InnerProduct" else ()
    harness = LayerHarness(text, {"x": x}, parameters=(weights, *bias))
    (y,) = harness.forward()
    np.testing.assert_allclose(np.linalg.norm(harness.layer.blobs[0].data, axis=1), 1, rtol=1e-5)
    unit = weights / np.linalg.norm(weights, axis=1, keepdims=True)
    distances = ((x[:, None] - unit) ** 2).sum(axis=2)
    np.testing.assert_allclose(y, x @ unit.T if bias else distances, rtol=1e-5, atol=1e-5)


def test_noise_has_the_asked_for_mean_and_deviation():
    x = np.full((50, 40, 50), 2.0)
    for options, deviation in (("gaussian_std: 0.25", 0.5), ("uniform_range: 3", 3**0.5)):
        text = f'type: "Noise" bottom: "x" top: "y" noise_param {{ {options} bias: 1 }}'
        (y,) = LayerHarness(text, {"x": x}).forward()
        assert y.mean() == pytest.approx(3, abs=0.02)
        assert y.std() == pytest.approx(deviation, rel=0.01)


def test_selu_dropout_keeps_mean_and_variance():
    x = np.random.default_rng(3).standard_normal((200, 500))
    text = 'type: "SeLuDropout" bottom: "x" top: "y" selu_dropout_param { dropout_ratio: 0.2 }'
    (y,) = LayerHarness(text, {"x": x}).forward()
    assert y.mean() == pytest.approx(0, abs=0.02)
    assert y.var() == pytest.approx(1, abs=0.02)
    dropped = -1.75809934 * 0.8 / math.sqrt(0.8 * (1 + 0.2 * 1.75809934**2))
    assert np.isclose(y, dropped).mean() == pytest.approx(0.2, abs=0.01)


def test_softmax_with_dist_gives_each_position_its_loss():
    x = np.random.default_rng(3).standard_normal((2, 3, 4))
    labels = np.array([[0.0, 2, 1, 1], [2, 0, 0, 1]])
    text = 'type: "SoftmaxWithDist" bottom: "x" bottom: "t" top: "y" top: "p"'
    found, probability = LayerHarness(text, {"x": x, "t": labels}).forward()
    expected = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(probability, expected)
    own = np.take_along_axis(expected, labels.astype(int)[:, None], 1)[:, 0]
    np.testing.assert_allclose(found[:, 0, 0], -np.log(own) / 4)


def test_a_dice_loss_of_two_samples():
    x, y = np.array([[1.0, 0, 2], [0.5, 0.5, 0]]), np.array([[1.0, 1, 1], [0, 0, 0]])
    harness = LayerHarness(
        'type: "DiceCoefLoss" bottom: "x" bottom: "y" top: "l"', {"x": x, "y": y}
    )
    (loss,), (dx, _), _ = run(harness)
    quotients = np.array([7 / 9, 1 / 1.5])
    assert loss == pytest.approx(1 - quotients.mean())
    np.testing.assert_allclose(dx, 2 * (quotients[:, None] * x - y) / [[9], [1.5]])


WRONG = [
    ("MarginInnerProduct", (7, 5), (7,), "", "needs num_output of at least 1"),
    (
        "MarginInnerProduct",
        (7, 5),
        (6,),
        "margin_inner_product_param { num_output: 4 }",
        r"needs one label per sample: 7, found bottom 't' \(6,\)",
    ),
    ("LabelSpecificAdd", (7, 5), (6,), "", "as many labels are needed"),
    ("GeneralTripletLoss", (7, 1), (7,), "", "needs distances to 2 classes or more"),
    ("GeneralContrastiveLoss", (7, 5), (8,), "", "need the same first dimension"),
    (
        "InnerDistance",
        (7, 5),
        (4, 6),
        "",
        r"compares vectors of 5 features, found bottom 't' \(4, 6",
    ),
    (
        "InnerDistance",
        (7, 5),
        (4, 5),
        "inner_distance_param { update_center_only: true }",
        "needs update_center_only and three bottoms",
    ),
    (
        "InnerDistance",
        (7, 5),
        (4, 5),
        'inner_distance_param { distance_type: "L3" }',
        "needs distance_type L1 or L2, found 'L3'",
    ),
    ("ChannelScale", (2, 3, 4), (2, 3), "", "need one factor for all channels of a position"),
    ("Select", (7, 5), (6,), "", "each sample needs one index"),
    ("DiceCoefLoss", (7, 5), (7, 4), "", "need the same number of elements"),
    ("SoftmaxWithDist", (7, 5), (6,), "", "as many labels are needed"),
]


@pytest.mark.parametrize(("kind", "x", "t", "options", "message"), WRONG)
def test_wrong_shapes_and_fields_are_refused(kind, x, t, options, message):
    text = f'type: "{kind}" bottom: "x" bottom: "t" top: "y" {options}'
    with pytest.raises(LayerError, match=message):
        LayerHarness(text, {"x": np.zeros(x), "t": np.zeros(t)})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ('type: "Noise" top: "y"', "needs gaussian_std or uniform_range"),
        (
            'type: "SeLuDropout" top: "y" selu_dropout_param { dropout_ratio: 1 }',
            "needs 0 < dropout_ratio < 1",
        ),
        ('type: "Normalize" top: "y" norm_param {} normalize_param {}', "mixes two forks"),
        ('type: "Normalize" top: "y" top: "z" norm_param {}', "has one top with norm_param"),
        (
            'type: "Normalize" top: "y" normalize_param { normalize_type: "Softmax" }',
            "needs normalize_type L1 or L2, found 'Softmax'",
        ),
        (
            'type: "InnerProduct" top: "y" '
            "inner_product_param { num_output: 2 normalize: true transpose: true }",
            "cannot normalize transposed weights",
        ),
    ],
)
def test_contradictions_are_refused(options, message):
    with pytest.raises(LayerError, match=message):
        LayerHarness(f'bottom: "x" {options}', {"x": np.ones((3, 4))})


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("MarginInnerProduct", "margin_inner_product_param { num_output: 3 type: DOUBLE }", "3 cl"),
        ("LabelSpecificAdd", "label_specific_add_param { bias: 1 }", "3 classes"),
        ("LabelSpecificRescale", "", "3 classes"),
        ("GeneralTripletLoss", "", "3 classes"),
        ("GeneralContrastiveLoss", "", "3 classes"),
        ("SoftmaxWithDist", "", "3 classes"),
        ("Select", "", "indices of bottoms from 0 to 0"),
    ],
)
@pytest.mark.parametrize("label", [-1.0, 3.0, math.nan])
def test_labels_out_of_range_are_refused(kind, options, message, label):
    text = f'type: "{kind}" bottom: "x" bottom: "t" top: "y" {options}'
    harness = LayerHarness(text, {"x": np.ones((2, 3)), "t": np.zeros(2)})
    with pytest.raises(LayerError, match=rf"found {label:g} for|label {label:g} of") as caught:
        harness.forward({"t": np.array([0, label])})
    assert message in str(caught.value)
