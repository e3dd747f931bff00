"""What losses are divided by: this batch's number of labels, or the mean of all ranks' numbers."""

from __future__ import annotations

import numpy as np
import pytest
from layer_harness import LayerHarness
from test_multibox_loss import BOTTOMS, random_values

from pycaffe_dist.device import HOST

IGNORING = "loss_param { ignore_label: 2 normalization: VALID }"
RNG = np.random.default_rng(0)
SCORES = {"x": RNG.standard_normal((5, 3))}
GAIN = {"gain": RNG.random((1, 1, 3, 3)) + 0.1}
# Three labels count, and six targets.
LABELS = {"t": np.array([2.0, 0, 1, 2, 0])}
TARGETS = {"t": np.array([[0.0, 1, 2], [2, 2, 0], [1, 1, 2], [2, 2, 2], [2, 2, 0]])}
CASES = {
    "SoftmaxWithLoss": ("", SCORES | LABELS, 3),
    "SoftmaxWithLossOHEM": ("", SCORES | LABELS, 3),
    "InfogainLoss": ("", SCORES | LABELS | GAIN, 3),
    "SigmoidCrossEntropyLoss": ("", SCORES | TARGETS, 6),
    "MultiBoxLoss": (
        "multibox_loss_param { num_classes: 4 mining_type: NONE }",
        {name: random_values(2)[name] for name in BOTTOMS},
        None,
    ),
}


def run(name, loss_param, mean=None, device=HOST):
    """Return a loss, its gradient, and the numbers of which the layer asked for the mean."""
    options, bottoms, _ = CASES[name]
    asked = []

    def answer(value):
        asked.append(value)
        return mean

    words = " ".join(f'bottom: "{bottom}"' for bottom in bottoms)
    text = f'type: "{name}" {words} top: "y" {options} {loss_param}'
    harness = LayerHarness(text, bottoms, device=device)
    with harness.layer.context.rank_mean.over(None if mean is None else answer):
        (loss,) = harness.forward()
    harness.backward([index < 1 for index in range(len(bottoms))])
    assert bool(asked) <= harness.layer.uses_rank_mean
    return float(loss), harness.bottom[0].diff.copy(), asked


def check(name, device=HOST):
    """Assert that a loss is divided by this rank's number if alone, else by the mean."""
    loss_param = "" if name == "MultiBoxLoss" else IGNORING
    alone, slope, asked = run(name, loss_param, device=device)
    assert not asked
    _, _, (count,) = run(name, loss_param, 1.0, device)
    assert count == (CASES[name][2] or count) > 1
    # Also means below 1: of a rank without any label, and one with a single one.
    for mean, divisor in ((count, count), (2.5, 2.5), (0.5, 0.5), (0, 1)):
        loss, gradient, asked = run(name, loss_param, mean, device)
        assert asked == [count]
        assert loss == pytest.approx(alone * count / divisor)
        np.testing.assert_allclose(gradient, slope * count / divisor, rtol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_several_ranks_divide_by_the_mean_of_their_numbers(name):
    check(name)


KNOWN = [f"normalization: {mode} ignore_label: 2" for mode in ("FULL", "BATCH_SIZE", "NONE")]


@pytest.mark.parametrize(
    ("name", "options"),
    [(name, options) for name in CASES for options in KNOWN]
    + [(name, "normalization: VALID") for name in CASES if name != "MultiBoxLoss"],
)
def test_nothing_is_asked_where_the_number_is_known(name, options):
    several, _, asked = run(name, f"loss_param {{ {options} }}", 99.0)
    alone, _, _ = run(name, f"loss_param {{ {options} }}")
    assert several == alone and not asked
