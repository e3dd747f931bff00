"""ProposalTarget, DecodeBBox and BboxAccuracy against their formulas, box by box."""

from __future__ import annotations

import numpy as np
import pytest
from layer_harness import LayerHarness

from pycaffe_dist.errors import LayerError

MOVES = "bbox_mean: [0.1, -0.1, 0.05, 0] bbox_std: [0.1, 0.2, 0.3, 0.4]"
MEAN, STD = np.array([0.1, -0.1, 0.05, 0]), np.array([0.1, 0.2, 0.3, 0.4])
SIZES = "num_img_per_batch: 2 img_width: 200 img_height: 150"


def build(type, options, tops=1, phase="TRAIN", **values):
    names = " ".join(f'bottom: "{name}"' for name in values)
    outs = " ".join(f'top: "y{index}"' for index in range(tops))
    text = f'type: "{type}" {names} {outs} {options}'
    return LayerHarness(text, values, phase=phase)


def target(values, options, tops=7, classes=4, aware="true"):
    text = f"proposal_target_param {{ {SIZES} cls_num: {classes} {options} }}"
    text += f" bbox_reg_param {{ {MOVES} cls_aware: {aware} }}"
    return build("ProposalTarget", text, tops, **values)


def boxes_in(image, count, seed):
    rng = np.random.default_rng(seed)
    corner = rng.uniform(0, [150, 100], (count, 2))
    far = corner + rng.uniform(10, 50, (count, 2))
    return np.hstack([np.full((count, 1), image), corner, far])


def scene(near=6, count=25):
    """Return boxes and objects of two images; some boxes lie near an object."""
    objects = np.vstack([boxes_in(0, 3, 1), boxes_in(1, 2, 2), boxes_in(-1, 1, 3)])
    labels = np.array([[1, 0], [3, 0], [2, 1], [2, 0], [3, 0], [1, 0]])
    rng = np.random.default_rng(4)
    close = np.repeat(objects[:5], near, axis=0)
    close[:, 1:] += rng.uniform(-6, 6, close[:, 1:].shape)
    boxes = np.vstack([boxes_in(0, count, 5), close, boxes_in(1, count, 6)])
    return {"b": boxes, "g": np.hstack([objects, labels])}


def overlap(a, b):
    size = [(c[2] - c[0] + 1, c[3] - c[1] + 1) for c in (a, b)]
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    if min(*size[0], *size[1]) <= 0 or width < 0 or height < 0:
        return 0.0
    shared = (width + 1) * (height + 1)
    return shared / (size[0][0] * size[0][1] + size[1][0] * size[1][1] - shared)


def decode(box, move):
    width, height = box[2] - box[0] + 1, box[3] - box[1] + 1
    x = box[0] + width / 2 + move[0] * width - width * np.exp(move[2]) / 2
    y = box[1] + height / 2 + move[1] * height - height * np.exp(move[3]) / 2
    return [x, y, x + width * np.exp(move[2]) - 1, y + height * np.exp(move[3]) - 1]


def best_match(box, objects):
    found = [(overlap(box[1:], o[1:5]), -i) for i, o in enumerate(objects) if o[0] == box[0]]
    largest, index = max(found, default=(0.0, 1))
    return largest, -index


def check_rows(values, found, classes=4, aware=True, low=0.0, high=10.0):
    """Check what ProposalTarget says of each chosen box; return labels and overlaps."""
    rois, labels, targets, inside, outside, matched = (f.reshape(len(f), -1) for f in found[:6])
    objects = values["g"][values["g"][:, 0] != -1]
    for k in range(len(rois)):
        largest, index = best_match(rois[k], objects)
        label = int(labels[k, 0])
        expected = np.zeros((classes, 4)), np.zeros((classes, 4)), np.zeros(6)
        if label:
            own = objects[index]
            assert label == own[5] and not own[6]
            place = label if aware else 1
            move = targets[k].reshape(classes, 4)[place] * STD + MEAN
            np.testing.assert_allclose(decode(rois[k, 1:], move), own[1:5])
            expected[0][place] = (move - MEAN) / STD
            expected[1][place] = low <= largest <= high
            expected[2][:] = label, *own[1:5], largest
        np.testing.assert_allclose(targets[k], expected[0].ravel())
        np.testing.assert_array_equal(inside[k], expected[1].ravel())
        np.testing.assert_array_equal(outside[k], expected[1].ravel())
        np.testing.assert_allclose(matched[k], expected[2])
    pairs = [best_match(roi, objects) for roi in rois]
    return labels[:, 0], np.array([pair[0] for pair in pairs])


@pytest.mark.parametrize("aware", [True, False])
@pytest.mark.parametrize("append", [True, False])
def test_all_boxes_are_taken_with_batch_size_minus_one(aware, append):
    values = scene()
    options = f"batch_size: -1 append_gtbox: {str(append).lower()} bbox_thr_lw: 0.6"
    found = target(values, options, aware=str(aware).lower()).forward()
    labels, overlaps = check_rows(values, found, 4 if aware else 2, aware, low=0.6)
    assert (overlaps[labels > 0] >= 0.5).all()
    assert ((overlaps[labels == 0] >= 0.1) & (overlaps[labels == 0] < 0.5)).all()
    candidates = values["b"]
    objects = values["g"][:5]
    if append:
        candidates = np.vstack([candidates, objects[:, :5]])
    pairs = [best_match(box, objects) for box in candidates]
    chosen = [0.1 <= v < 0.5 or (v >= 0.5 and not objects[i][6]) for v, i in pairs]
    rows = {tuple(row) for row in np.round(candidates[chosen], 9)}
    assert {tuple(row) for row in np.round(found[0][:, :, 0, 0], 9)} == rows
    assert len(labels) == sum(chosen) and 4 < (labels > 0).sum() < len(labels)


def test_a_batch_has_its_share_of_objects_and_random_boxes():
    values = scene()
    options = "batch_size: 16 fg_fraction: 0.25"
    harness, chosen = target(values, options), []
    for _ in range(2):
        harness.layer.forward(harness.bottom, harness.top)
        found = [blob.data.copy() for blob in harness.top]
        labels, _ = check_rows(values, found)
        assert len(labels) == 16 and (labels > 0).sum() == 4 and (labels[:4] > 0).all()
        chosen.append(found[0])
    assert not np.array_equal(*chosen)


@pytest.mark.parametrize("pick", [True, False])
def test_a_batch_is_filled_with_other_boxes(pick):
    values = scene(near=1)
    options = f"batch_size: 40 bg_thr_lw: 0.3 pickup_discard: {str(pick).lower()}"
    found = target(values, options).forward()
    labels, overlaps = check_rows(values, found)
    background = overlaps[labels == 0]
    assert (len(labels) == 40) == pick and (background < 0.3).any() == pick


@pytest.mark.parametrize("weighted", [True, False])
def test_weights_of_samples(weighted):
    values = scene()
    options = f"batch_size: 20 fg_fraction: 0.3 iou_weighted: {str(weighted).lower()}"
    found = target(values, options).forward()
    labels, overlaps = check_rows(values, found)
    weights, front = found[6].ravel(), labels > 0
    assert weights.sum() == pytest.approx(20) and weights[front].sum() == pytest.approx(6)
    share = overlaps[front] if weighted else np.ones(front.sum())
    np.testing.assert_allclose(weights[front], 6 * share / share.sum())
    np.testing.assert_allclose(weights[~front], 14 / (~front).sum())
    alone = target({**values, "g": values["g"][5:]}, options).forward()
    np.testing.assert_array_equal(alone[6].ravel(), 1)


def test_a_box_is_made_up_if_there_is_none():
    values = {"b": boxes_in(0, 1, 1), "g": np.hstack([boxes_in(0, 1, 1), [[2, 1]]])}
    found = target(values, "batch_size: 4 pickup_discard: false").forward()
    (image, x1, y1, x2, y2), label = found[0].ravel(), found[1].ravel()
    assert image in (0, 1) and label == [0] and found[2].shape == (1, 16, 1, 1)
    assert x2 - x1 >= 31 and y2 - y1 >= 31 and not found[5].any()
    small = SIZES.replace("200", "20")
    with pytest.raises(LayerError, match=r"img_width and img_height above 32 .* found 20 and 150"):
        text = f"proposal_target_param {{ {small} cls_num: 4 pickup_discard: false }}"
        build("ProposalTarget", text, 6, **values).forward()


@pytest.mark.parametrize(
    ("options", "classes", "change", "message"),
    [
        ("batch_size: 0", 4, {}, "batch_size of at least 1, or -1, found 0"),
        ("fg_thr: 0.4", 4, {}, "not below bg_thr_hg, found 0.4 and 0.5"),
        ("", 1, {}, "cls_num of at least 2"),
        ("", 4, {"g": np.zeros((3, 6))}, r"label, ignored, found bottom 'g' \(3, 6\)"),
        ("", 4, {"b": np.full((2, 5), 2.0)}, r"images from 0 to 1 .* found \[2.0, .* 'b' \(2, 5\)"),
        ("", 4, {"b": np.full((2, 5), np.nan)}, "needs finite corners"),
        ("", 3, {}, r"label 3 of an object is no class \(1 to 2\)"),
    ],
)
def test_misuse_of_proposal_target_is_explained(options, classes, change, message):
    with pytest.raises(LayerError, match=message):
        target({**scene(), **change}, options, classes=classes).forward()


def decoding(phase, overlaps=None, threshold=0.95):
    rng = np.random.default_rng(8)
    values = {"m": rng.normal(0, 2, (30, 8)), "b": boxes_in(1, 30, 9)}
    values["m"][4, 6] = -30  # no width is left
    if overlaps is not None:
        values["o"] = np.hstack([np.ones((30, 5)), overlaps[:, None]])
    options = f"bbox_reg_param {{ {MOVES} }} decode_bbox_param {{ gt_iou_thr: {threshold} }}"
    expected = [decode(b[1:], m[4:] * STD + MEAN) for m, b in zip(values["m"], values["b"])]
    return build("DecodeBBox", options, phase=phase, **values), np.array(expected)


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_decoded_boxes(phase):
    harness, expected = decoding(phase)
    found = harness.forward()[0]
    kept = np.arange(30) != 4 if phase == "TRAIN" else np.ones(30, bool)
    assert found.shape == (kept.sum(), 5, 1, 1) and (found[:, 0] == 1).all()
    np.testing.assert_allclose(found[:, 1:, 0, 0], expected[kept], rtol=1e-5)


def test_decoding_leaves_out_objects_themselves():
    overlaps = np.linspace(0.5, 1, 30)
    harness, expected = decoding("TRAIN", overlaps, 0.8)
    kept = (overlaps < np.float32(0.8)) & (np.arange(30) != 4)
    np.testing.assert_allclose(harness.forward()[0][:, 1:, 0, 0], expected[kept], rtol=1e-5)
    harness, _ = decoding("TRAIN", np.ones(30))
    with pytest.raises(LayerError, match="leaves out all of its 30 boxes"):
        harness.forward()
    with pytest.raises(LayerError, match="in the TRAIN phase only"):
        decoding("TEST", overlaps)


@pytest.mark.parametrize("aware", [True, False])
def test_accuracy_is_the_mean_overlap_with_objects(aware):
    values = scene()
    options = "batch_size: -1"
    chosen = target(values, options, aware=str(aware).lower()).forward()
    rng = np.random.default_rng(10)
    moves = rng.normal(0, 0.5, (len(chosen[0]), 16 if aware else 8))
    boxes, objects = chosen[0][:, :, 0, 0], chosen[5][:, :, 0, 0]
    option = f"bbox_reg_param {{ {MOVES} cls_aware: {str(aware).lower()} }}"
    inputs = {"m": moves, "b": boxes, "o": objects}
    found = build("BboxAccuracy", option, 2, **inputs).forward()
    after, before = [], []
    for move, box, own in zip(moves, boxes, objects):
        if own[0] > 0 and own[5] <= 0.975:
            place = int(own[0]) if aware else 1
            moved = decode(box[1:], move.reshape(-1, 4)[place] * STD + MEAN)
            after.append(overlap(moved, own[1:5]))
            before.append(overlap(box[1:], own[1:5]))
    assert len(after) > 10 and 0 < np.mean(after) < np.mean(before)
    np.testing.assert_allclose(
        [top.item() for top in found], [np.mean(after), np.mean(before)], 1e-5
    )
    objects[:, 0] = 0
    found = build("BboxAccuracy", option, 2, **{**inputs, "o": objects}).forward()
    assert [top.item() for top in found] == [-1, -1]


@pytest.mark.parametrize(
    ("type", "options", "shapes", "message"),
    [
        ("DecodeBBox", "bbox_mean: 1", [(3, 8), (3, 5)], "bbox_mean and bbox_std 4 times each"),
        ("DecodeBBox", "", [(3, 4), (3, 5)], r"8 numbers per box, found bottom 'a' \(3, 4\)"),
        ("DecodeBBox", "", [(3, 8), (3, 4)], r"rows of image.*'b' \(3, 4\)"),
        ("DecodeBBox", "", [(2, 8), (3, 5)], "need the same first dimension"),
        ("BboxAccuracy", "", [(3, 9), (3, 5), (3, 6)], "8 numbers per box, found bottom 'a'"),
        ("BboxAccuracy", "", [(3, 8), (3, 5), (3, 5)], "6 numbers per box, found bottom 'c'"),
    ],
)
def test_misuse_is_explained(type, options, shapes, message):
    values = {name: np.zeros(shape) for name, shape in zip("abc", shapes)}
    with pytest.raises(LayerError, match=message):
        build(type, f"bbox_reg_param {{ {options} }}", **values)


def test_an_object_of_no_class_is_named():
    values = {"m": np.zeros((1, 8)), "b": np.zeros((1, 5)), "o": np.full((1, 6), 0.5)}
    values["o"][0, 0] = 2
    with pytest.raises(LayerError, match=r"label 2 in bottom 'o' .* 2 classes of bottom 'm'"):
        build("BboxAccuracy", "", **values).forward()
