"""Proposal against the formulas of Faster R-CNN, written with NumPy, and its wrong inputs."""

from __future__ import annotations

import numpy as np
import pytest
from layer_harness import LayerHarness

from pycaffe_dist.errors import LayerError
from pycaffe_dist.kernels.dry_run import Needs, noting
from pycaffe_dist.layers.proposal import make_anchors

OPTIONS = "ratio: [0.5, 1, 2] scale: [2, 5]"
TOPS = ("y", "z")


def inputs(images=1, height=5, width=6, anchors=6, seed=3):
    rng = np.random.default_rng(seed)
    sizes = np.column_stack([rng.integers(60, 80, (images, 2)), rng.uniform(0.5, 2, images)])
    return {
        "s": rng.random((images, 2 * anchors, height, width)),
        "d": rng.normal(0, 0.4, (images, 4 * anchors, height, width)),
        "i": sizes,
    }


def build(values, options=OPTIONS, tops=TOPS, dtype=np.float64):
    names = " ".join(f'bottom: "{name}"' for name in values)
    outs = " ".join(f'top: "{name}"' for name in tops)
    text = f'type: "Proposal" {names} {outs} proposal_param {{ {options} }}'
    return LayerHarness(text, values, dtype=dtype)


def overlap(a, b):
    width = min(a[2], b[2]) - max(a[0], b[0]) + 1
    height = min(a[3], b[3]) - max(a[1], b[1]) + 1
    shared = max(width, 0) * max(height, 0)
    area, other = ((c[2] - c[0] + 1) * (c[3] - c[1] + 1) for c in (a, b))
    return shared / (area + other - shared)


def expected(values, anchors, stride=16, least=16, before=6000, after=300, limit=0.7):
    """Return the rows of all images, and the scores."""
    rows, chances = [], []
    for n, (height, width, *scale) in enumerate(values["i"]):
        candidates = []
        for h, w in np.ndindex(*values["s"].shape[2:]):
            for a, anchor in enumerate(anchors):
                dx, dy, dw, dh = values["d"][n, 4 * a : 4 * a + 4, h, w]
                x1, y1, x2, y2 = anchor + np.array([w, h, w, h]) * stride
                long, high = x2 - x1 + 1, y2 - y1 + 1
                x, y = x1 + long / 2 + dx * long, y1 + high / 2 + dy * high
                long, high = long * np.exp(dw), high * np.exp(dh)
                box = np.array([x - long / 2, y - high / 2, x + long / 2, y + high / 2])
                box = np.clip(box, 0, [width - 1, height - 1] * 2)
                fits = box[2] - box[0] + 1 >= least * scale[-1]
                fits &= box[3] - box[1] + 1 >= least * scale[0]
                candidates.append((values["s"][n, len(anchors) + a, h, w] * fits, box))
        candidates.sort(key=lambda each: -each[0])
        kept = []
        for chance, box in candidates[:before]:
            if len(kept) < after and all(overlap(box, other) <= limit for _, other in kept):
                kept.append((chance, box))
        rows += [[n, *box] for _, box in kept]
        chances += [chance for chance, _ in kept]
    return np.array(rows), np.array(chances)


def test_anchors_are_those_of_faster_r_cnn():
    """The first anchors of the published list for 16 pixels, ratios ½, 1, 2, scales 8, 16, 32."""
    found = make_anchors(16, np.array([0.5, 1, 2]), np.array([8.0, 16, 32]))
    np.testing.assert_array_equal(found[0], [-84, -40, 99, 55])
    np.testing.assert_array_equal(found[4], [-120, -120, 135, 135])
    np.testing.assert_array_equal(found[8], [-168, -344, 183, 359])


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ("", {}),
        ("nms_thresh: 0.3 min_size: 30", {"limit": 0.3, "least": 30}),
        (
            "pre_nms_topn: 40 post_nms_topn: 7 feat_stride: 8",
            {"before": 40, "after": 7, "stride": 8},
        ),
    ],
)
@pytest.mark.parametrize("images", [1, 3])
def test_boxes_equal_the_formulas(images, options, settings):
    values = inputs(images)
    boxes, scores = build(values, f"{OPTIONS} {options}").forward()
    anchors = make_anchors(16, np.array([0.5, 1, 2]), np.array([2.0, 5]))
    rows, chances = expected(values, anchors, **settings)
    assert boxes.shape == rows.shape and len(rows) > 6 * images
    np.testing.assert_allclose(boxes, rows, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(scores, chances)


def test_two_scales_are_those_of_height_and_width():
    values = inputs()
    values["i"] = np.hstack([values["i"][:, :2], [[3.0, 0.2]]])
    boxes, scores = build(values).forward()
    rows, chances = expected(values, make_anchors(16, np.array([0.5, 1, 2]), np.array([2.0, 5])))
    np.testing.assert_allclose(boxes, rows)
    np.testing.assert_allclose(scores, chances)
    assert 0 < np.count_nonzero(scores) < len(scores)


def test_the_number_of_boxes_follows_the_input():
    harness = build(inputs())
    few, many = (len(harness.forward(inputs(n, h))[0]) for n, h in ((1, 2), (2, 7)))
    assert few < many
    assert len(harness.forward(inputs(1, 2))[0]) == few


def test_a_dry_run_finds_the_kernels():
    harness, needs = build(inputs(2)), Needs()
    with noting(needs):
        boxes, _ = harness.forward()
    assert {loop.py_func.__name__ for loop, _ in needs.loops} == {"_propose", "_best"}
    assert boxes.shape == (2, 5)


@pytest.mark.parametrize(
    ("options", "change", "message"),
    [
        ("ratio: 1", {}, "needs ratio and scale, each at least once"),
        ("ratio: 0 scale: 8", {}, "above 0, found .0.0. and .8.0."),
        (f"{OPTIONS} post_nms_topn: 0", {}, "post_nms_topn of at least 1"),
        (f"{OPTIONS} scale: 9", {}, r"2 channels for each of 9 anchors .* 's' \(1, 12, 5, 6\)"),
        (
            OPTIONS,
            {"d": np.zeros((1, 24, 5, 7))},
            r"one map size, found bottom 'd' \(1, 24, 5, 7\)",
        ),
        (OPTIONS, {"i": np.zeros((1, 2))}, r"one or more scales .* 'i' \(1, 2\)"),
        (OPTIONS, {"i": np.zeros((2, 3))}, "need the same first dimension"),
    ],
)
def test_misuse_is_explained(options, change, message):
    with pytest.raises(LayerError, match=message):
        build({**inputs(), **change}, options)


@pytest.mark.parametrize(("name", "value"), [("s", np.nan), ("d", np.inf), ("i", np.nan)])
def test_scores_and_moves_must_be_finite(name, value):
    values = inputs()
    values[name][:, -1] = value
    with pytest.raises(LayerError, match=f"needs finite numbers, .* bottom '{name}'"):
        build(values).forward()


def test_a_box_that_grows_beyond_all_numbers_is_the_whole_image():
    values = inputs()
    values["d"][:, 2:4, 2, 2] = 1e5
    values["s"][:, 6, 2, 2] = 2
    boxes, _ = build(values).forward()
    height, width = values["i"][0, :2]
    np.testing.assert_array_equal(boxes[0], [0, 0, 0, width - 1, height - 1])
