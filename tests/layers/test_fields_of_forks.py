"""Losses and accuracies of fields cell by cell, chosen boxes, and wrong inputs."""

from __future__ import annotations

import numpy as np
import pytest
from layer_harness import LayerHarness

from pycaffe_dist.errors import LayerError

MEAN, STD = np.array([0.1, 0.0, 0.05, 0.0]), np.array([0.5, 0.4, 0.6, 0.7])
MOMENTS = f"bbox_reg_param {{ bbox_mean: {MEAN.tolist()} bbox_std: {STD.tolist()} }}"
FIELD = "cls_num: 3 field_w: 20 field_h: 16 downsample_rate: 8"
GROUP = "cls_num: 3 field_w: [20, 30] field_h: [16, 20] stride: 8"


def build(type, message, options, tops=1, moments=MOMENTS, **values):
    names = " ".join(f'bottom: "{name}"' for name in values)
    outs = " ".join(f'top: "y{index}"' for index in range(tops))
    text = f'type: "{type}" {names} {outs} {message} {{ {options} }} {moments}'
    return LayerHarness(text, values)


def values(classes=3, number=2, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.zeros((number, 6, 4, 5))
    labels[:, 0] = np.where(rng.random((number, 4, 5)) < 0.3, rng.integers(1, classes), 0)
    labels[:, 1:3], labels[:, 3:5] = rng.uniform(0, 32, (2, number, 2, 4, 5)) + 4
    labels[:, 5] = rng.uniform(0, 0.8, (number, 4, 5))
    return rng.normal(0, 1, (number, classes + 4, 4, 5)), labels


def loss_of_cells(x, labels, counts, weight, whr, xyr):
    """Return the loss of classes and of moves by the fork's formulas, cell by cell."""
    of_classes = of_moves = cells = objects = 0
    field = np.array([20, 16])
    least = np.array([-1 / xyr] * 2 + [-np.log(whr)] * 2)
    means = np.repeat([MEAN[:2].mean(), MEAN[2:].mean()], 2)
    stds = np.repeat([np.sqrt(STD[:2].prod()), np.sqrt(STD[2:].prod())], 2)
    for n, h, w in zip(*np.nonzero(counts)):
        score, move = x[n, :-4, h, w], x[n, -4:, h, w]
        label = int(labels[n, 0, h, w])
        of_classes -= np.log(np.exp(score[label]) / np.exp(score).sum()) * weight[n, h, w]
        cells += 1
        if not label:
            continue
        centre = (labels[n, 1:3, h, w] - (np.array([w, h]) + 0.5) * 8) / field
        size = np.log(np.maximum(labels[n, 3:5, h, w], 2) / field)
        wanted = (np.concatenate([centre, size]) - MEAN) / STD
        move = np.clip(move, (least - means) / stds, (-least - means) / stds)
        far = np.abs(move - wanted)
        of_moves += np.where(far < 1, far**2 / 2, far - 0.5).sum()
        objects += 4
    return of_classes / cells, of_moves / objects


@pytest.mark.parametrize("balanced", [False, True])
def test_the_loss_cell_by_cell(balanced):
    x, labels = values()
    options = f"{FIELD} sample_mode: 'all' lambda: 0.3 pos_neg_weighted: {str(balanced).lower()}"
    ((total, part),) = (
        top.reshape(-1) for top in build("DetectionLoss", "detection_loss_param", options,
                                         x=x, t=labels).forward()
    )  # fmt: skip
    objects = labels[:, 0] > 0
    counts = objects | (labels[:, 5] < 0.5)
    weight = np.ones(counts.shape)
    if balanced:  # one part of five for objects
        weight[objects] = 0.2 * counts.sum() / objects.sum()
        weight[~objects] = 0.8 * counts.sum() / (counts & ~objects).sum()
    of_classes, of_moves = loss_of_cells(x, labels, counts, weight, 2, 2)
    assert (total, part) == pytest.approx((of_classes + 0.3 * of_moves, 0.3 * of_moves))


def chosen(harness, classes):
    """Return which cells have a gradient of their classes."""
    harness.forward()
    harness.backward()
    return (harness.bottom[0].diff[:, :classes] != 0).any(axis=1)


def test_bootstrap_takes_the_largest_scores_of_each_class():
    x, labels = values()
    options = f"{FIELD} sample_mode: 'bootstrap' bg_multiple: 1"
    found = chosen(build("DetectionLoss", "detection_loss_param", options, x=x, t=labels), 3)
    for n in range(2):
        free = (labels[n, 0] == 0) & (labels[n, 5] < 0.5)
        expected = labels[n, 0] > 0
        for kind in (1, 2):
            most = max(4, int((labels[n, 0] == kind).sum()))
            limit = np.sort(x[n, kind][free])[-most]
            expected |= free & (x[n, kind] >= limit)
        np.testing.assert_array_equal(found[n], expected)


@pytest.mark.parametrize("mode", ["random", "mixture"])
def test_random_cells_are_background_of_little_overlap(mode):
    x, labels = values()
    options = f"{FIELD} sample_mode: '{mode}'"
    found = chosen(build("DetectionLoss", "detection_loss_param", options, x=x, t=labels), 3)
    objects = labels[:, 0] > 0
    assert found[objects].all()
    assert not found[~objects & (labels[:, 5] >= 0.5)].any()
    assert found.sum() > objects.sum()


@pytest.mark.parametrize("mining", ["random", "bootstrap", "mixture"])
def test_groups_take_a_batch_of_cells(mining):
    x, labels = values(number=4)
    options = f"{GROUP} batch_size: 10 bg_multiple: 4 neg_mining_type: '{mining}'"
    scores, moves = x[:, :3], x[:, 3:]
    harness = build(
        "DetectionGroupLoss", "detection_group_loss_param", options, s=scores, m=moves, t=labels
    )
    found = chosen(harness, 3).reshape(2, -1)
    objects = (labels[:, 0] > 0).reshape(2, -1)
    assert (found & objects).sum(axis=1).tolist() == [2, 2]
    assert found.sum(axis=1).tolist() == [10, 10]
    if mining == "bootstrap":
        free = (labels[:, 0] == 0) & (labels[:, 5] < 0.5)
        loss = np.log(np.exp(scores).sum(axis=1)) - scores[:, 0]
        ranks = np.where(free, loss, -np.inf).reshape(2, -1)
        for own, rank, real in zip(found, ranks, objects):
            assert set(np.flatnonzero(own & ~real)) == set(np.argsort(-rank)[:8])


def test_accuracies():
    labels = np.zeros((1, 6, 1, 4))
    labels[0, 0, 0] = 1, 2, 0, 0
    labels[0, 1:5, 0, :2] = np.array([[4, 12], [4, 4], [20, 20], [16, 16]])
    labels[0, 5, 0, 3] = 0.9  # does not count
    x = np.zeros((1, 7, 1, 4))
    x[0, :3, 0] = np.array([[0, 3, 2, 0], [2, 1, 1, 9], [1, 2, 0, 0]])
    x[0, 3:, 0] = (-MEAN / STD)[:, None]
    shares, overlap = build(
        "DetectionAccuracy", "detection_accuracy_param", FIELD, tops=2, x=x, t=labels
    ).forward()
    np.testing.assert_allclose(shares.reshape(-1), [2 / 3, 1 / 2])
    assert float(overlap.reshape(-1)[0]) == pytest.approx(1)
    both, _ = build(
        "DetectionAccuracy", "detection_accuracy_param", f"{FIELD} top_k: 2", 2, x=x, t=labels
    ).forward()
    np.testing.assert_allclose(both.reshape(-1), [1, 1])


def test_without_objects_accuracies_are_minus_one():
    x, labels = values()
    labels[:, 0], labels[:, 5] = 0, 1
    tops = build(
        "DetectionGroupAccuracy", "detection_group_accuracy_param", GROUP.replace("down", ""), 2,
        s=x[:, :3], m=x[:, 3:], t=labels,
    ).forward()  # fmt: skip
    assert [top.reshape(-1).tolist() for top in tops] == [[-1, -1], [-1]]


def test_frcnn_output_keeps_the_best_boxes_of_each_class():
    prob = np.array([[0.1, 0.7, 0.2], [0.1, 0.6, 0.3], [0.2, 0.0, 0.8], [1, 0, 0]])
    rows = np.array([[0, 5, 5, 24, 24], [0, 6, 5, 24, 24], [0, 50, 50, 69, 69], [0, 0, 0, 9, 9]])
    harness = build(
        "FrcnnOutput", "frcnn_output_param", "conf_thr: 0.25 iou_thr: 0.5",
        moments="bbox_reg_param { cls_aware: false }", p=prob, m=np.zeros((4, 8)), b=rows,
        i=np.array([[60.0, 65.0]]),
    )  # fmt: skip
    (found,) = harness.forward()
    np.testing.assert_allclose(
        found.reshape(-1, 7),
        [
            [0, -1, -1, -1, -1, -1, -1],
            [0, 5, 5, 24, 24, 1, 0.7],
            [0, 50, 50, 65, 60, 2, 0.8],
            [0, 6, 5, 24, 24, 2, 0.3],
        ],
        atol=1e-6,
    )


def test_scales():
    rows = np.array([[0, 0, 0, 9, 9], [0, 0, 0, 99, 99], [1, 5, 5, 34, 34]])
    others = np.arange(3.0).reshape(3, 1)

    def kept(options):
        text = f"scale_route_param {{ {options} }}"
        names = 'bottom: "b" bottom: "x" top: "c" top: "y"'
        harness = LayerHarness(f'type: "ScaleRoute" {names} {text}', {"b": rows, "x": others})
        return harness.forward()[1].reshape(-1).tolist()

    assert kept("low_scale: 10 high_scale: 100") == [0, 2]
    assert kept("low_scale: 30") == [1, 2]
    assert kept("high_scale: 9") == [0]
    assert kept("low_scale: 40 high_scale: 60") == [2]


@pytest.mark.parametrize(
    ("options", "change", "message"),
    [
        (f"{FIELD} objectness: true", {}, "cls_num 2 with objectness, found 3"),
        (FIELD.replace("cls_num: 3", "cls_num: 4"), {}, "8 channels, found bottom 'x'"),
        (FIELD.replace("field_w: 20", ""), {}, "field_w and field_h above 0"),
        (FIELD, {"label": 3}, "label 3 in bottom 't' .* none of the 3 classes"),
        (FIELD, {"label": np.nan}, "label nan in bottom 't'"),
    ],
)
def test_wrong_inputs(options, change, message):
    x, labels = values()
    labels[0, 0, 1, 1] = change.get("label", labels[0, 0, 1, 1])
    with pytest.raises(LayerError, match=message):
        build("DetectionLoss", "detection_loss_param", options, x=x, t=labels).forward()


LISTS = [
    (
        "ImageGtData", "image_gt_data_param",
        "batch_size: 2 resize_width: 640 resize_height: 480 crop_width: 448 crop_height: 320 "
        "downsample_rate: [8, 16] output_gt_boxes: true",
        [(2, 3, 320, 448), (2, 6, 40, 56), (2, 6, 20, 28), (1, 7, 1, 1)],
    ),
    (
        "DetectionData", "detection_data_param",
        "batch_size: 1 short_size: 600 long_size: 1000 stride: 16",
        [(1, 3, 1000, 600), (1, 6, 63, 38)],
    ),
    (
        "EvalData", "eval_data_param", "batch_size: 1 short_size: 800 long_size: 1312",
        [(1, 3, 1312, 800), (1, 8, 1, 1), (1, 2, 1, 1)],
    ),
    (
        "IllumImageData", "illum_image_data_param", "batch_size: 8 crop_size: 44 label_dim: 2",
        [(8, 2, 44, 44), (8, 2, 1, 1)],
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("type", "message", "options", "shapes"), LISTS, ids=[t for t, *_ in LISTS]
)
def test_lists_of_boxes_have_shapes_and_no_reader(type, message, options, shapes):
    harness = build(type, message, f"source: 'list' {options}", tops=len(shapes))
    assert [blob.shape for blob in harness.top] == shapes
    with pytest.raises(LayerError, match=r"cannot read 'list': .* has no reader for its lists"):
        harness.forward()
    with pytest.raises(LayerError, match="tops, 7 are given"):
        build(type, message, options, tops=7)
    with pytest.raises(LayerError, match="needs a batch_size, and fields for the size"):
        build(type, message, "batch_size: 1", tops=len(shapes))
