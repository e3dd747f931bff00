"""Pooling of boxes, losses of boxes, and layers that choose boxes."""

from layer_cases import case, constant, integers, marks, normal, positive

# On a map of 9 × 11 cells of 16 pixels: inside, on the border, outside, reversed, tiny.
BOXES = constant(
    [0, 20.3, 18.2, 100.1, 90.4],
    [1, 0, 0, 175, 143],
    [0, -30.6, 50.2, 60.9, 250.7],
    [1, 120.1, 100.3, 80.2, 40.9],
    [0, 33, 47, 34, 48],
)
MAP = normal(2, 4, 9, 11)
FULL_BOXES = constant([0, 20, 18, 100, 90], [1, 0, 0, 175, 143], [0, 30, 50, 60, 250])
# Of 4 × 6 cells: for others ROIWarping's gradient is no derivative.
EVEN_BOXES = constant([1, 16, 30, 80, 128], [0, 60, 20, 124, 110])
SCALED = "pooled_h: 3 pooled_w: 2 spatial_scale: 0.0625"
A, B = normal(5, 4, 2, 3), normal(5, 4, 2, 3)
WEIGHT = "loss_weight: 1.5"


def ohem_loss(mode, **rest):
    return case("SmoothL1LossOHEM", f"{WEIGHT} loss_param {{ normalization: {mode} }}", **rest)


CASES = [
    case("ROIPooling", f"roi_pooling_param {{ {SCALED} }}", x=MAP, b=BOXES),
    case("ROIPooling", f"roi_pooling_param {{ {SCALED} }}", x=MAP, b=BOXES, fixed=("x",)),
    case(
        "PSROIPooling",
        "psroi_pooling_param { spatial_scale: 0.0625 output_dim: 3 group_size: 2 }",
        x=normal(2, 12, 9, 11),
        b=BOXES,
    ),
    case("ROIAlign", f"roi_pooling_param {{ {SCALED} pad_ratio: 0.2 }}", x=MAP, b=BOXES),
    case("ROIWarping", f"roi_warping_param {{ {SCALED} }}", x=MAP, b=EVEN_BOXES),
    case(
        "MaskResize", "mask_resize_param { output_height: 2 output_width: 5 }", m=normal(3, 2, 5, 8)
    ),
    case("MaskPooling", x=normal(3, 2, 4, 5), m=positive(3, 1, 4, 5), grows=(0, 2)),
    case("SmoothL1Loss", WEIGHT, a=A, b=B),
    case("SmoothL1Loss", f"{WEIGHT} smooth_l1_loss_param {{ sigma: 3 }}", a=A, b=B),
    case("SmoothL1Loss", a=A, b=B, w=marks(5, 4, 2, 3)),
    case(
        "SmoothL1Loss",
        f"{WEIGHT} smooth_l1_loss_param {{ sigma: 2 }}",
        a=A,
        b=B,
        v=positive(5, 4, 2, 3),
        w=positive(5, 4, 2, 3),
    ),
    *(ohem_loss(mode, a=A, b=B) for mode in ("FULL", "VALID", "BATCH_SIZE", "NONE")),
    ohem_loss("PRE_FIXED pre_fixed_normalizer: 7.5", a=A, b=B, w=marks(5, 4, 2, 3)),
    case(
        "SmoothL1LossOHEM", "loss_weight: 1 loss_weight: 0", a=A, b=B, w=marks(5, 4, 2, 3), tops=2
    ),
    case(
        "SoftmaxWithLossOHEM",
        "loss_weight: 1 loss_weight: 0 loss_weight: 0 loss_param { ignore_label: 1 }",
        x=normal(2, 5, 3, 4),
        t=integers(5, 2, 1, 3, 4),
        tops=3,
        grows=(0, 3),
    ),
    case(
        "BoxAnnotatorOHEM",
        "box_annotator_ohem_param { roi_per_img: 2 }",
        b=BOXES,
        l=positive(5),
        t=integers(5, 5),
        w=positive(5, 8),
        tops=2,
    ),
    case(
        "Proposal",
        "proposal_param { ratio: [0.5, 2] scale: 3 min_size: 8 }",
        s=normal(2, 4, 5, 6),
        d=normal(2, 8, 5, 6),
        i=constant([70, 90, 1.5], [80, 60, 0.5]),
        tops=2,
    ),
    case(
        "ProposalTarget",
        "proposal_target_param { cls_num: 3 batch_size: 4 }",
        b=BOXES,
        g=constant([0, 22, 20, 95, 90, 1, 0], [1, 10, 5, 160, 140, 2, 0]),
        tops=7,
    ),
    case("DecodeBBox", "bbox_reg_param { cls_aware: false }", m=positive(3, 8), b=FULL_BOXES),
    case(
        "BboxAccuracy",
        m=normal(3, 12),
        b=FULL_BOXES,
        o=constant(
            *([label, 10, 12, 60, 80, overlap] for label, overlap in ((1, 0.6), (0, 0.0), (2, 1)))
        ),
        tops=2,
    ),
    case(
        "BoxOutput",
        "box_output_param { field_w: 30 field_h: 20 downsample_rate: 8 }",
        x=normal(2, 6, 5, 6),
        tops=2,
        grows=(0, 3),
    ),
    case(
        "BoxGroupOutput",
        "box_group_output_param { box_group_param { field_w: 30 field_h: 20 stride: 8 } }",
        p=normal(2, 2, 5, 6),
        m=normal(2, 4, 5, 6),
        tops=2,
    ),
]
