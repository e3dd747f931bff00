"""Losses, softmax and layers with labels."""

from layer_cases import case, constant, integers, marks, normal, positive

SCORES, LABELS = normal(4, 5), integers(5, 4)
MAPS, MAP_LABELS = normal(2, 5, 3, 4), integers(5, 2, 1, 3, 4)


def softmax_loss(options="", **rest):
    return case("SoftmaxWithLoss", options, x=MAPS, t=MAP_LABELS, grows=(0, 3), **rest)


def normalized(kind, mode, **rest):
    return case(kind, f"loss_param {{ ignore_label: 1 normalization: {mode} }}", **rest)


CLASS_WEIGHTS = "class_weighting: [0.5, 2, 1, 3, 0.25]"
MODES = ("FULL", "VALID", "BATCH_SIZE", "NONE")
GAIN = normal(1, 1, 5, 5)

CASES = [
    case("Softmax", x=SCORES),
    case("Softmax", x=MAPS, grows=(0, 3)),
    case("Softmax", "softmax_param { axis: 0 }", x=normal(3, 4), grows=(1,)),
    case("SoftmaxWithLoss", x=SCORES, t=LABELS),
    case("SoftmaxWithLoss", "loss_weight: 0.3 loss_weight: 0", x=SCORES, t=LABELS, tops=2),
    softmax_loss(),
    softmax_loss("softmax_param { axis: -3 }"),
    softmax_loss("loss_param { normalize: true ignore_label: 2 }"),
    softmax_loss("loss_param { normalize: false }"),
    softmax_loss("loss_param { normalization: PRE_FIXED pre_fixed_normalizer: 3.5 }"),
    softmax_loss(f"loss_param {{ weight_by_label_freqs: true ignore_label: 3 {CLASS_WEIGHTS} }}"),
    case(
        "SoftmaxWithLoss",
        f"loss_param {{ weight_by_label_freqs: true {CLASS_WEIGHTS} }}",
        x=SCORES,
        t=LABELS,
    ),
    *(normalized("SoftmaxWithLoss", mode, x=MAPS, t=MAP_LABELS) for mode in MODES),
    case("EuclideanLoss", x=normal(3, 4, 2), t=normal(3, 8)),
    case("EuclideanLoss", x=normal(3, 4, 2), t=normal(3, 4, 2), tops=0),
    case("L1Loss", x=normal(3, 4, 2), t=normal(3, 8)),
    case("L1Loss", "loss_weight: 3", x=normal(3, 4, 2), t=normal(3, 4, 2)),
    case("SigmoidCrossEntropyBalanceLoss", x=normal(4, 5), t=marks(4, 5), grows=(0, 1)),
    case("SigmoidCrossEntropyBalanceLoss", "loss_weight: 2", x=MAPS, t=marks(2, 5, 3, 4)),
    *(
        case(
            "CenterLoss",
            f"loss_weight: {weight} center_loss_param {{ num_output: 5 }}",
            x=features,
            t=LABELS,
            no_derivatives=(0,),
        )
        for weight, features in ((1, SCORES), (0.3, normal(4, 2, 3)))
    ),
    case("SigmoidCrossEntropyLoss", "loss_weight: 2", x=normal(4, 5), t=marks(4, 5)),
    case("SigmoidCrossEntropyLoss", x=normal(4, 5), t=marks(4, 5), w=positive(4, 5)),
    *(
        normalized("SigmoidCrossEntropyLoss", mode, x=normal(4, 5), t=integers(3, 4, 5))
        for mode in MODES
    ),
    # Caffe's gradient has a small constant in a denominator.
    case(
        "ContrastiveLoss",
        "contrastive_loss_param { margin: 3 }",
        a=normal(6, 4),
        b=normal(6, 4),
        s=constant(0, 1, 0, 0, 1, 0),
        tolerance=1e-3,
    ),
    case(
        "ContrastiveLoss",
        "contrastive_loss_param { margin: 9 legacy_version: true }",
        a=normal(4, 4, 1, 1),
        b=normal(4, 4, 1, 1),
        s=constant(0, 1, 0, 1),
    ),
    case("HingeLoss", x=SCORES, t=LABELS),
    case("HingeLoss", "hinge_loss_param { norm: L2 }", x=SCORES, t=LABELS),
    case("MultinomialLogisticLoss", x=positive(4, 5), t=LABELS),
    case("InfogainLoss", x=SCORES, t=LABELS, h=GAIN, fixed=("h",)),
    case(
        "InfogainLoss",
        "loss_param { ignore_label: 2 } loss_weight: 0.5 loss_weight: 0",
        x=MAPS,
        t=MAP_LABELS,
        h=GAIN,
        fixed=("h",),
        tops=2,
    ),
    case("Accuracy", "accuracy_param { top_k: 2 ignore_label: 1 }", x=SCORES, t=LABELS, tops=2),
    case("EltwiseAccuracy", "eltwise_accuracy_param { ignore_label: 1 }", x=MAPS, t=MAP_LABELS),
    case("EltwiseAccuracy", "eltwise_accuracy_param { top_k: 2 }", x=MAPS, t=MAP_LABELS),
    case("SegAccuracy", x=MAPS, t=MAP_LABELS),
    case(
        "SegAccuracy",
        "seg_accuracy_param { ignore_label: 0 ignore_label: 2 }",
        x=MAPS,
        t=MAP_LABELS,
    ),
    case("ArgMax", "argmax_param { top_k: 2 out_max_val: true }", x=SCORES),
    case("ArgMax", "argmax_param { axis: -1 }", x=MAPS),
]
