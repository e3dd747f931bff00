"""CenterLoss and SigmoidCrossEntropyBalanceLoss against their formulas, and their errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from layer_harness import LayerHarness

from pycaffe_dist.errors import LayerError


def centre_loss(x, labels, centres, weight=0.5):
    text = (
        f'type: "CenterLoss" bottom: "x" bottom: "t" top: "y" loss_weight: {weight} '
        f"center_loss_param {{ num_output: {len(centres)} }}"
    )
    harness = LayerHarness(text, {"x": x, "t": labels}, parameters=[centres])
    (loss,) = harness.forward()
    harness.backward()
    return float(loss), harness.bottom[0].diff, harness.layer.blobs[0].diff


def test_center_loss_is_its_formula():
    rng = np.random.default_rng(3)
    x, centres = rng.standard_normal((7, 3)), rng.standard_normal((4, 3))
    labels = np.array([2, 0, 2, 2, 3, 0, 2], float)
    loss, dx, step = centre_loss(x, labels, centres)
    expected_loss, expected_dx, expected_step = 0.0, np.zeros((7, 3)), np.zeros((4, 3))
    for k in range(4):
        own = [i for i in range(7) if labels[i] == k]
        for i in own:
            expected_loss += ((x[i] - centres[k]) ** 2).sum() / 14
            expected_dx[i] = 0.5 * (x[i] - centres[k]) / 7
            expected_step[k] += (centres[k] - x[i]) / (1 + len(own))
    assert loss == pytest.approx(expected_loss)
    np.testing.assert_allclose(dx, expected_dx)
    np.testing.assert_allclose(step, expected_step)


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_step_of_a_centre_on_several_ranks(ranks):
    """Ranks count their own samples; the mean of their steps is shorter than that of one rank."""
    rng = np.random.default_rng(4)
    x, centres = rng.standard_normal((24, 3)), rng.standard_normal((3, 3))
    labels = np.arange(24) % 3.0
    _, dx, whole = centre_loss(x, labels, centres)
    parts = [centre_loss(*p, centres) for p in zip(np.split(x, ranks), np.split(labels, ranks))]
    np.testing.assert_allclose(np.concatenate([part[1] for part in parts]) / ranks, dx)
    n = 8  # samples of each class
    mean = sum(part[2] for part in parts) / ranks
    np.testing.assert_allclose(mean, whole * (1 + n) / (ranks + n))


def test_center_loss_weighs_nothing_without_loss_weight():
    text = 'type: "CenterLoss" bottom: "x" bottom: "t" top: "y" center_loss_param { num_output: 2 }'
    harness = LayerHarness(text, {"x": np.ones((2, 3)), "t": np.zeros(2)})
    assert harness.layer.loss_weights == [0]


@pytest.mark.parametrize(
    ("x", "t", "options", "message"),
    [
        ((2, 3), [0, 3], "num_output: 3", "label 3 of sample 1 in bottom 't'.* 3 classes"),
        ((2, 3), [0, -1], "num_output: 3", "label -1 of sample 1"),
        ((2, 3), [0, np.nan], "num_output: 3", "label nan of sample 1"),
        ((2, 3), [0, 1], "", "num_output of at least 1"),
        ((2, 3), [0, 1, 1], "num_output: 3", "same first dimension"),
        ((2, 3), [[0, 1], [1, 1]], "num_output: 3", r"one label per sample: 2, found .* \(2, 2\)"),
        ((2, 3, 4), [0, 1], "num_output: 3 axis: 2", "has centres of 4 features"),
        ((2, 3, 4), [0, 1], "num_output: 3 axis: 5", "axis 5 is out of range"),
    ],
)
def test_wrong_center_losses(x, t, options, message):
    text = f'type: "CenterLoss" bottom: "x" bottom: "t" top: "y" center_loss_param {{ {options} }}'
    with pytest.raises(LayerError, match=message):
        LayerHarness(text, {"x": np.ones(x), "t": np.array(t, float)}).forward()


def test_the_balanced_loss_is_its_formula():
    rng = np.random.default_rng(5)
    x, target = 3 * rng.standard_normal((3, 1, 4, 5)), np.zeros((3, 1, 4, 5))
    target[0].flat[[2, 9, 11]], target[1].flat[7], target[1].flat[[8, 9]] = 1, 1, 255
    text = 'type: "SigmoidCrossEntropyBalanceLoss" bottom: "x" bottom: "t" top: "y" loss_weight: 2'
    harness = LayerHarness(text, {"x": x, "t": target})
    (loss,) = harness.forward()
    harness.backward()
    expected, gradient = 0.0, np.zeros((3, 20))
    for n in range(3):
        ones, zeros = (int((target[n] == value).sum()) for value in (1, 0))
        for i, (score, t) in enumerate(zip(x[n].flat, target[n].flat)):
            p = 1 / (1 + math.exp(-score))
            if t == 1:
                share, element = zeros / (ones + zeros), -math.log(p)
            elif t == 0:
                share, element = ones / (ones + zeros), -math.log(1 - p)
            else:
                share, element = 1, 0
            expected += share * element / 3
            gradient[n, i] = 2 * share * (p - t) / 3
    assert float(loss) == pytest.approx(expected)
    np.testing.assert_allclose(harness.bottom[0].diff.reshape(3, 20), gradient)


def test_the_balanced_loss_of_a_sample_without_ones_and_zeros_is_zero():
    text = 'type: "SigmoidCrossEntropyBalanceLoss" bottom: "x" bottom: "t" top: "y"'
    harness = LayerHarness(text, {"x": np.ones((1, 3)), "t": np.full((1, 3), 255.0)})
    assert harness.forward()[0] == 0


def test_weights_of_a_sigmoid_cross_entropy():
    rng = np.random.default_rng(4)
    x, t, w = rng.standard_normal((3, 2)), rng.integers(0, 2, (3, 2)), rng.random((3, 2))
    w[1] = 0
    text = 'type: "SigmoidCrossEntropyLoss" bottom: "x" bottom: "t" bottom: "w" top: "y"'
    harness = LayerHarness(text, {"x": x, "t": t, "w": w})
    p = 1 / (1 + np.exp(-x))
    losses = -np.log(np.where(t, p, 1 - p))
    np.testing.assert_allclose(harness.forward()[0], (losses * w).sum() / w.sum())
    harness.backward([True, False, False])
    np.testing.assert_allclose(harness.bottom[0].diff, (p - t) * w / w.sum())
    harness.fill({"w": np.zeros((3, 2))})
    assert harness.forward()[0] == 0
    harness.backward([True, False, False])
    assert not harness.bottom[0].diff.any()
    with pytest.raises(LayerError, match="takes no loss_param with weights"):
        LayerHarness(text + " loss_param { normalize: true }", {"x": x, "t": t, "w": w})
