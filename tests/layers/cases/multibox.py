"""MultiBoxLoss with each of its options."""

import numpy as np
from layer_cases import case, normal

IMAGES, CLASSES = 3, 4
# The second image has no box; the rows are in no order; one is empty, and one difficult.
ROWS = [
    (2, 1, 0, 0.1, 0.1, 0.4, 0.45, 0),
    (0, 3, 0, 0.5, 0.05, 0.95, 0.5, 0),
    (-1, -1, -1, -1, -1, -1, -1, -1),
    (2, 2, 0, 0.05, 0.2, 0.4, 0.5, 1),
    (0, 1, 1, 0.3, 0.4, 0.8, 0.95, 0),
    (2, 3, 1, 0.55, 0.5, 1, 1, 0),
]


def prior_boxes(variance=(0.1, 0.1, 0.2, 0.2)):
    """Boxes of two shapes in 3 x 3 cells, some of them beyond the border, and their variances."""
    centers = np.stack(np.meshgrid([0.15, 0.5, 0.85], [0.2, 0.5, 0.8]), -1).reshape(-1, 1, 2)
    halves = np.array([[0.2, 0.2], [0.28, 0.15]])
    boxes = np.concatenate([centers - halves, centers + halves], -1).reshape(-1, 4)
    return np.stack([boxes.ravel(), np.tile(variance, len(boxes))])[None]


PRIORS = prior_boxes().size // 8
# What a first stage says: probabilities of nothing and something, and of offsets.
CHANCES = {"chances": lambda rng: rng.uniform(0, 1, (IMAGES, PRIORS * 2))}
STAGE = {**CHANCES, "moves": lambda rng: rng.normal(0, 0.5, (IMAGES, PRIORS * 4))}


def multibox(options="", classes=CLASSES, shared=True, variance=(0.1, 0.1, 0.2, 0.2), **rest):
    """A case; ``options`` are those of multibox_loss_param, after num_classes."""
    shared = shared and "share_location: false" not in options
    more, stage = rest.pop("more", ""), rest.pop("stage", {})
    return case(
        "MultiBoxLoss",
        f"multibox_loss_param {{ num_classes: {classes} {options} }} {more}",
        loc=normal(IMAGES, PRIORS * 4 * (1 if shared else classes)),
        conf=normal(IMAGES, PRIORS * classes),
        prior=lambda rng: prior_boxes(variance),
        label=lambda rng: np.array(ROWS, float)[None, None],
        fixed=("prior", "label"),
        **stage,
        **rest,
    )


CASES = [
    multibox("code_type: CENTER_SIZE"),
    multibox("code_type: CORNER_SIZE loc_loss_type: L2 neg_pos_ratio: 1.5", more="loss_weight: 3"),
    multibox("match_type: BIPARTITE use_difficult_gt: false neg_overlap: 0.2"),
    multibox("code_type: CENTER_SIZE use_prior_for_matching: false overlap_threshold: 0.3"),
    multibox("bp_inside: true overlap_threshold: 0.3"),
    multibox("bp_inside: true use_prior_for_matching: false code_type: CORNER_SIZE"),
    multibox("ignore_cross_boundary_bbox: true", more="loss_param { normalization: BATCH_SIZE }"),
    multibox("mining_type: NONE loc_weight: 0.3", more="loss_param { normalization: FULL }"),
    multibox("do_neg_mining: false", more="loss_param { normalization: NONE }"),
    multibox("mining_type: HARD_EXAMPLE sample_size: 5 code_type: CENTER_SIZE"),
    multibox("mining_type: HARD_EXAMPLE sample_size: 6 nms_param { nms_threshold: 0.4 top_k: 12 }"),
    multibox("use_prior_for_nms: true nms_param { nms_threshold: 0.3 top_k: -1 }"),
    multibox("nms_param { nms_threshold: 0.4 }"),  # without top_k nothing is mined
    multibox("conf_loss_type: LOGISTIC"),
    multibox("conf_loss_type: LOGISTIC mining_type: NONE"),
    multibox("conf_loss_type: LOGISTIC mining_type: NONE background_label_id: 4", classes=5),
    multibox("map_object_to_agnostic: true mining_type: HARD_EXAMPLE sample_size: 7", classes=2),
    # Without background: -1 as a number without a sign.
    multibox(
        "conf_loss_type: LOGISTIC map_object_to_agnostic: true background_label_id: 4294967295",
        classes=1,
    ),
    multibox("share_location: false mining_type: NONE code_type: CENTER_SIZE"),
    multibox("share_location: false mining_type: NONE use_prior_for_matching: false"),
    # The gradient lacks the factor 1 / variance, so that it is the derivative if that is 1.
    multibox("encode_variance_in_target: true code_type: CENTER_SIZE", variance=(1, 1, 1, 1)),
    # Without a gradient of the scores their loss does not count either.
    multibox(
        more="propagate_down: true propagate_down: false propagate_down: false "
        "propagate_down: false",
    ),
    multibox("code_type: CENTER_SIZE objectness_score: 0.4", stage=CHANCES),
    multibox("code_type: CENTER_SIZE objectness_score: 0.4", stage=STAGE),
    multibox("use_prior_for_matching: false bp_inside: true", stage=STAGE),
    multibox("bp_inside: true mining_type: HARD_EXAMPLE sample_size: 6", stage=STAGE),
    multibox("conf_loss_type: LOGISTIC mining_type: NONE", stage=STAGE),
]
