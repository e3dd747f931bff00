"""Losses and accuracies of maps with a field in every cell."""

import numpy as np
from layer_cases import case, constant, normal

MOMENTS = "bbox_reg_param { bbox_mean: [0.1, 0, 0.05, 0] bbox_std: [0.5, 0.4, 0.6, 0.7] }"
WIDE = "field_whr: 1000 field_xyr: 0.01"  # no limits: where moves are limited, see test_fields


def boxes(rng):
    """Boxes of image 0."""
    low, size = rng.uniform(0, 40, (4, 2)), rng.uniform(10, 40, (4, 2))
    return np.column_stack([np.zeros(4), low, low + size])


def chances(rng):
    return rng.dirichlet(np.ones(3), 4)


def labels(number, classes, fields=1):
    """Labels of 4 × 5 cells of 8 pixels: class, centre, size and overlap of objects."""

    def make(rng):
        found = np.zeros((number, 6, 4, 5))
        found[:, 0] = np.where(rng.random((number, 4, 5)) < 0.4, rng.integers(1, classes), 0)
        found[:, 1:3] = rng.uniform(0, 32, (number, 2, 4, 5))
        found[:, 3:5] = rng.uniform(8, 30, (number, 2, 4, 5))
        found[:, 5] = rng.uniform(0, 0.8, (number, 4, 5))
        return found

    return make


def loss(options, classes=3, **rest):
    own = f"cls_num: {classes} field_w: 20 field_h: 16 downsample_rate: 8 {options}"
    return case(
        "DetectionLoss",
        f"detection_loss_param {{ {own} }} {MOMENTS} loss_weight: 0.7",
        x=normal(2, classes + 4, 4, 5),
        t=labels(2, classes),
        counted=1,
        **rest,
    )


def group_loss(options, **rest):
    own = f"cls_num: 3 field_w: [20, 30] field_h: [16, 20] stride: 8 {options}"
    return case(
        "DetectionGroupLoss",
        f"detection_group_loss_param {{ {own} }} {MOMENTS}",
        s=normal(4, 3, 4, 5),
        m=normal(4, 4, 4, 5),
        t=labels(4, 3),
        counted=1,
        **rest,
    )


CASES = [
    loss(f"sample_mode: 'all' {WIDE}"),
    loss(f"sample_mode: 'random' {WIDE} lambda: 2"),
    loss(f"sample_mode: 'all' {WIDE} pos_neg_weighted: true iou_weighted: true"),
    loss(f"sample_mode: 'all' {WIDE} bb_smooth: false objectness: true", classes=2),
    group_loss("bg_multiple: 100"),
    group_loss(f"batch_size: 1000 pos_neg_weighted: true {WIDE}"),
    group_loss("bg_multiple: 100 bbox_loss_type: 'Euclidean_L2' lambda: 0.5"),
    case(
        "DetectionAccuracy",
        "detection_accuracy_param { cls_num: 3 field_w: 20 field_h: 16 downsample_rate: 8 }",
        x=normal(2, 7, 4, 5),
        t=labels(2, 3),
        tops=2,
    ),
    case(
        "DetectionGroupAccuracy",
        "detection_group_accuracy_param { cls_num: 3 field_w: 20 field_h: 16 stride: 8 }",
        s=normal(2, 3, 4, 5),
        m=normal(2, 4, 4, 5),
        t=labels(2, 3),
        tops=2,
    ),
    case(
        "FrcnnOutput",
        "frcnn_output_param { conf_thr: 0.3 max_det_num: 3 } bbox_reg_param { cls_aware: false }",
        p=chances,
        m=normal(4, 8),
        b=boxes,
        i=constant([60, 70]),
        fixed=("i",),
    ),
    case("ScaleRoute", "scale_route_param { low_scale: 25 }", b=boxes, x=normal(4, 2, 3), tops=2),
]
