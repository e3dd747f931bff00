"""Layers that make prior boxes, choose detections and rate them."""

import numpy as np
from layer_cases import case, normal

MAP, IMAGE = normal(2, 3, 3, 4), normal(2, 3, 24, 32)
SIZES = "min_size: 6.5 max_size: 11.5 aspect_ratio: 2 aspect_ratio: 3"
PRIORS, CLASSES = 20, 3


def priors(rng):
    centers, sizes = rng.uniform(0.2, 0.8, (PRIORS, 2)), rng.uniform(0.1, 0.4, (PRIORS, 2))
    boxes = np.concatenate([centers - sizes / 2, centers + sizes / 2], axis=1)
    return np.stack([boxes.ravel(), np.tile([0.1, 0.1, 0.2, 0.2], PRIORS)])[None]


def scores(rng):
    return rng.uniform(0, 1, (2, PRIORS * CLASSES))


def output(options, shared=True, nms="nms_threshold: 0.45", **stage):
    options = f"num_classes: {CLASSES} nms_param {{ {nms} }} {options}"
    return case(
        "DetectionOutput",
        f"detection_output_param {{ {options} }}",
        loc=normal(2, PRIORS * 4 * (1 if shared else CLASSES)),
        conf=scores,
        prior=priors,
        fixed=("prior",),
        **stage,
    )


CHANCES, MOVES = lambda rng: rng.uniform(0, 1, (2, PRIORS * 2)), normal(2, PRIORS * 4)


def found(rng):
    """Detections near the boxes of `boxes`: image, class, score, corners."""
    rows = boxes(rng)[0, 0].repeat(2, axis=0)
    near = rows[:, 3:7] + rng.normal(0, 0.02, (len(rows), 4))
    return np.column_stack((rows[:, :2], rng.uniform(0, 1, len(rows)), near))[None, None]


def boxes(rng):
    """The boxes of two images: image, class, instance, corners, difficult."""
    rng = np.random.default_rng(5)
    rows = []
    for image, label, difficult in ((0, 1, 0), (0, 2, 0), (0, 2, 1), (1, 3, 0), (1, 1, 1)):
        x, y = rng.uniform(0.1, 0.6, 2)
        rows.append([image, label, 0, x, y, x + 0.25, y + 0.3, difficult])
    return np.array(rows)[None, None]


def evaluate(options=""):
    options = f"detection_evaluate_param {{ num_classes: 4 {options} }}"
    return case("DetectionEvaluate", options, det=found, gt=boxes, grows=(2,))


def scenes(rng):
    """Labels of two images with five objects at most."""
    rows = np.zeros((2, 1, 6, 16))
    rows[:, 0, 0, :2] = [[4, 16], [5, 16]]
    rows[:, 0, 1:, :2] = rng.uniform(-4, 40, (2, 5, 2))
    rows[:, 0, 1:, 2:4] = rng.uniform(3, 25, (2, 5, 2))
    rows[:, 0, 1:, 5] = rng.integers(1, 4, (2, 5))
    return rows


def detectnet(options, augmentation="", phase="TRAIN"):
    groundtruth = f"image_size_x: 44 image_size_y: 32 {options}"
    return case(
        "DetectNetTransformation",
        f"detectnet_groundtruth_param {{ {groundtruth} }} transform_param {{ mean_value: 127 }} "
        f"detectnet_augmentation_param {{ {augmentation} }}",
        x=lambda rng: rng.uniform(0, 255, (2, 3, 30, 41)),
        label=scenes,
        tops=2,
        phase=phase,
        tolerance=1e-4,
    )


ALWAYS = " ".join(
    f"{name}_prob: 1" for name in ("crop", "scale", "flip", "rotation", "hue_rotation")
)
CASES = [
    detectnet("stride: 4", phase="TEST"),
    detectnet("stride: 8 gridbox_type: GRIDBOX_MIN min_cvg_len: 6 obj_norm: true", "shift_x: 5"),
    detectnet(
        "crop_bboxes: false object_class { src: 3 dst: 0 } object_class { src: 1 dst: 2 }",
        f"{ALWAYS} desaturation_prob: 1 max_rotate_degree: 20 shift_x: 9 shift_y: 4",
    ),
    case("PriorBox", f"prior_box_param {{ {SIZES} }}", f=MAP, img=IMAGE, grows=(0, 2, 3)),
    case(
        "PriorBox",
        f"prior_box_param {{ {SIZES} flip: false clip: true step_h: 8 step_w: 9 offset: 0.2 "
        "variance: 0.1 variance: 0.1 variance: 0.2 variance: 0.3 }",
        f=MAP,
        img=IMAGE,
    ),
    case("PriorBox", "prior_box_param { min_size: 4 img_h: 20 img_w: 30 }", f=MAP, grows=(0, 2)),
    case("PriorBox", f"prior_box_param {{ {SIZES} denser_prior_boxes: true }}", f=MAP, img=IMAGE),
    case(
        "PriorBox",
        "prior_box_param { fixed_size: [9, 4] density: [3, 1] aspect_ratio: 2 }",
        f=MAP,
        img=IMAGE,
        grows=(0, 2, 3),
    ),
    case(
        "PriorBoxClustered",
        "prior_box_param { width: [5, 7.5] height: [8.5, 3] clip: true }",
        f=MAP,
        img=IMAGE,
        grows=(0, 2, 3),
    ),
    output(""),
    output("code_type: CENTER_SIZE keep_top_k: 5 confidence_threshold: 0.2"),
    output("code_type: CORNER_SIZE share_location: false keep_top_k: 0", shared=False),
    output("variance_encoded_in_target: true background_label_id: -1"),
    output("code_type: CENTER_SIZE", nms="nms_threshold: 0.7 eta: 0.9 top_k: 7"),
    output("confidence_threshold: 1"),
    output("code_type: CENTER_SIZE objectness_score: 0.5", chances=CHANCES),
    output("code_type: CENTER_SIZE keep_top_k: 5", chances=CHANCES, moves=MOVES),
    evaluate(),
    evaluate("evaluate_difficult_gt: false overlap_threshold: 0.8"),
    evaluate("background_label_id: 9"),
]
