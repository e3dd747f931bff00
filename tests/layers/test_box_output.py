"""BoxOutput and BoxGroupOutput against their formulas, cell by cell, and wrong inputs."""

from __future__ import annotations

import numpy as np
import pytest
from layer_harness import LayerHarness

from pycaffe_dist.errors import LayerError

MEAN, STD = np.array([0.1, -0.1, 0.05, 0]), np.array([0.5, 0.4, 0.3, 0.6])
MOVES = f"bbox_reg_param {{ bbox_mean: {MEAN.tolist()} bbox_std: {STD.tolist()} }}"
LIMITS = "fg_thr: 0.2 iou_thr: 0.4 field_whr: 2 field_xyr: 3 min_size: 14"
FIELDS = "field_w: [20, 30] field_h: [40, 20] downsample_rate: [8, 16]"
GROUPS = (
    "box_group_param { field_w: [20, 30] field_h: [40, 20] stride: 8 } "
    "box_group_param { field_w: 60 field_h: 50 stride: 16 }"
)


def build(type, message, options, tops=2, **values):
    names = " ".join(f'bottom: "{name}"' for name in values)
    outs = " ".join(f'top: "y{index}"' for index in range(tops))
    text = f'type: "{type}" {names} {outs} {message} {{ {options} }} {MOVES}'
    return LayerHarness(text, values)


def field_box(move, field, stride, h, w):
    """Return left, top, width and height of a cell's box."""
    move = move * STD + MEAN
    shift = np.clip(move[:2], -1 / 3, 1 / 3) * field
    size = field * np.exp(np.clip(move[2:], -np.log(2), np.log(2)))
    return *(np.array([w + 0.5, h + 0.5]) * stride + shift - size / 2), *size


def overlap(a, b):
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0) * max(height, 0)
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


def best(candidates, before=10**9, after=10**9):
    """Return rows of the boxes that stay; candidates are (image, score, edges)."""
    rows = []
    for image in sorted({each[0] for each in candidates}):
        own = sorted((c for c in candidates if c[0] == image), key=lambda c: -c[1])[:before]
        kept = []
        for _, score, edges in own:
            if len(kept) < after and all(overlap(edges, other[1:5]) <= 0.4 for other in kept):
                kept.append((image, *edges, score))
        rows += kept
    return np.array(rows)


def maps():
    rng = np.random.default_rng(3)
    return {"a": rng.normal(0, 1, (2, 7, 5, 6)), "b": rng.normal(0, 1, (2, 7, 3, 3))}


def from_maps(values):
    found = []
    for x, field, stride in zip(values.values(), ((20, 40), (30, 20)), (8, 16)):
        for n, h, w in np.ndindex(len(x), *x.shape[2:]):
            left, top, width, height = field_box(x[n, 3:, h, w], np.array(field), stride, h, w)
            left, top = max(left, 0), max(top, 0)
            width = min(width, x.shape[3] * stride - left)
            height = min(height, x.shape[2] * stride - top)
            score = x[n, 1:3, h, w].max() - x[n, 0, h, w]
            if score >= 0.2 and width >= 14 and height >= 14:
                found.append((n, score, (left, top, left + width, top + height)))
    return found


def groups():
    rng = np.random.default_rng(4)
    shapes = {"p": (4, 3, 4, 5), "a": (4, 4, 4, 5), "q": (2, 3, 2, 3), "b": (2, 4, 2, 3)}
    return {
        name: rng.random(shape) if name in "pq" else rng.normal(0, 1, shape)
        for name, shape in shapes.items()
    }


def from_groups(values):
    found = []
    for p, a, fields, stride in (("p", "a", ((20, 40), (30, 20)), 8), ("q", "b", ((60, 50),), 16)):
        moves = values[a]
        for i, h, w in np.ndindex(len(moves), *moves.shape[2:]):
            n, k = divmod(i, len(fields))
            left, top, width, height = field_box(
                moves[i, :, h, w], np.array(fields[k]), stride, h, w
            )
            right = min(left + width - 1, moves.shape[3] * stride)
            bottom = min(top + height - 1, moves.shape[2] * stride)
            left, top, score = max(left, 0), max(top, 0), 1 - values[p][i, 0, h, w]
            if score >= 0.2 and right - left + 1 >= 14 and bottom - top + 1 >= 14:
                found.append((n, score, (left, top, right + 1, bottom + 1)))
    return found


KINDS = {
    "BoxOutput": ("box_output_param", FIELDS, maps, from_maps, 0),
    "BoxGroupOutput": ("box_group_output_param", GROUPS, groups, from_groups, 1),
}


@pytest.mark.parametrize("type", KINDS)
@pytest.mark.parametrize(
    ("options", "most"),
    [("", {}), ("max_nms_num: 9 max_post_nms_num: 4", {"before": 9, "after": 4})],
)
def test_boxes_equal_the_formulas(type, options, most):
    message, fields, make, reference, border = KINDS[type]
    values = make()
    boxes, scored = build(type, message, f"{LIMITS} {fields} {options}", **values).forward()
    expected = best(reference(values), **most)
    expected[:, 3:5] -= border
    assert len(expected) > 6 and scored.shape == (len(expected), 6, 1, 1)
    np.testing.assert_allclose(scored[:, :, 0, 0], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(boxes, scored[:, :5])


@pytest.mark.parametrize("type", KINDS)
def test_without_any_box_there_is_one_row(type):
    message, fields, make, _, _ = KINDS[type]
    harness = build(type, message, f"fg_thr: 100 {fields}", **make())
    boxes, scored = harness.forward()
    np.testing.assert_array_equal(boxes.ravel(), [0, 1, 1, 10, 10])
    assert scored.shape == (1, 6, 1, 1) and not scored.any()


@pytest.mark.parametrize(
    ("type", "options", "change", "message"),
    [
        ("BoxOutput", "field_w: 3", {}, "once for each bottom, found 0, 1, 0"),
        ("BoxOutput", f"{FIELDS} nms_type: 'IOMU'", {}, "nms_type IOU only, found IOMU"),
        ("BoxOutput", f"{FIELDS} field_whr: 0.5", {}, "field_whr of at least 1 .* found 0.5 and 2"),
        (
            "BoxOutput",
            FIELDS,
            {"b": np.zeros((1, 7, 3, 3))},
            r"one batch size .* 'b' \(1, 7, 3, 3\)",
        ),
        ("BoxOutput", FIELDS, {"b": np.full((2, 7, 3, 3), np.nan)}, "finite numbers, .* 'b'"),
        ("BoxGroupOutput", "", {}, "each pair of bottoms, found 0 for 4 bottoms"),
        (
            "BoxGroupOutput",
            "box_group_param {} box_group_param {}",
            {},
            "equally often, and stride",
        ),
        ("BoxGroupOutput", GROUPS, {"b": np.zeros((3, 4, 2, 3))}, r"2 images · 1 fields, .* 'b'"),
    ],
)
def test_misuse_is_explained(type, options, change, message):
    name, _, make, _, _ = KINDS[type]
    with pytest.raises(LayerError, match=message):
        build(type, name, options, **{**make(), **change}).forward()
