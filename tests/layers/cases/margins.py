"""Margins, distances to class centres, and other layers of face recognition."""

from layer_cases import case, constant, integers, normal, positive

FEATURES, SCORES, LABELS = normal(5, 6), normal(5, 4), integers(4, 5)
DISTANCES = positive(5, 4)
MAP, FACTORS = normal(2, 3, 4, 5), positive(2, 1, 4, 5)
CENTRES = normal(4, 6)


def margin(kind, field, options, **rest):
    text = f"{field} {{ num_output: 4 base: 0.5 {options} }}"
    return case(kind, text, x=FEATURES, t=LABELS, tops=2, **rest)


def large(options, **rest):
    return margin("LargeMarginInnerProduct", "largemargin_inner_product_param", options, **rest)


def contrastive(options, **rest):
    text = f"loss_weight: 0.5 loss_weight: 0 general_contrastive_loss_param {{ {options} }}"
    return case("GeneralContrastiveLoss", text, x=DISTANCES, t=LABELS, tops=2, counted=1, **rest)


def triplet(options, **rest):
    return case("GeneralTripletLoss", f"general_triplet_loss_param {{ {options} }}", **rest)


CASES = [
    *(
        large(f"type: {kind}", tolerance=1e-5)
        for kind in ("SINGLE", "DOUBLE", "TRIPLE", "QUADRUPLE")
    ),
    *(
        margin(
            "MarginInnerProduct",
            "margin_inner_product_param",
            f"type: {kind}",
            no_derivatives=(0,),
            no_bottom_derivatives=kind != "SINGLE",
            statistics=True,
        )
        for kind in ("SINGLE", "DOUBLE", "TRIPLE", "QUADRUPLE")
    ),
    case(
        "InnerProduct",
        "inner_product_param { num_output: 3 normalize: true }",
        x=FEATURES,
        no_derivatives=(0,),
        statistics=True,
    ),
    case("InnerDistance", "inner_distance_param { num_output: 4 }", x=normal(11, 2, 3)),
    case("InnerDistance", "inner_distance_param { num_output: 4 axis: 2 }", x=normal(5, 2, 3)),
    case(
        "InnerDistance",
        'inner_distance_param { num_output: 4 distance_type: "L1" }',
        x=FEATURES,
        tolerance=1e-4,
    ),
    case(
        "InnerDistance",
        "inner_distance_param { num_output: 4 normalize: true }",
        x=FEATURES,
        no_derivatives=(0,),
        statistics=True,
    ),
    case("InnerDistance", x=FEATURES, w=CENTRES, fixed=("w",)),
    case(
        "InnerDistance",
        "inner_distance_param { update_center_only: true }",
        x=FEATURES,
        w=CENTRES,
        t=LABELS,
        fixed=("w",),
        no_bottom_derivatives=True,
    ),
    case("LabelSpecificAdd", "label_specific_add_param { bias: -0.3 }", x=SCORES, t=LABELS),
    case(
        "LabelSpecificAdd",
        "label_specific_add_param { bias_base: 0.4 bias_max: 0.4 }",
        x=SCORES,
        t=LABELS,
        tops=2,
    ),
    case("LabelSpecificAdd", x=SCORES, t=LABELS, phase="TEST"),
    case(
        "LabelSpecificRescale",
        "label_specific_rescale_param { positive_weight: 2 negative_weight: 0.5 }",
        x=SCORES,
        t=LABELS,
    ),
    case("LabelSpecificRescale", x=SCORES, t=LABELS, phase="TEST"),
    case("ChannelScale", x=MAP, s=FACTORS, grows=(0, 3)),
    case("ChannelScale", x=SCORES, s=positive(5)),
    contrastive(""),
    contrastive("exp_negative_weight: true negative_weight: 2"),
    contrastive("max_negative_only: true max_positive_only: true positive_margin: 0.2"),
    contrastive("positive_weight: 3 positive_outlier_thresh: 9"),
    contrastive("positive_first: true normalize_negative: 0.1", no_bottom_derivatives=True),
    # With one negative distance for each positive one, the gradient is the derivative.
    triplet("margin: 9 add_center_loss: false", x=positive(5, 2), t=integers(2, 5)),
    triplet("margin: 9 hardest_only: true", x=DISTANCES, t=LABELS),
    triplet("positive_first: true", x=DISTANCES, t=LABELS, no_bottom_derivatives=True),
    case("Normalize", "normalize_param { bp_norm: true }", x=MAP, tops=2, grows=(0, 1)),
    case("Normalize", 'normalize_param { normalize_type: "L1" bp_norm: true }', x=MAP, tops=2),
    case("Normalize", "normalize_param {}", x=FEATURES),
    case("Normalize", "normalize_param { fix_gradient: true }", x=MAP, no_bottom_derivatives=True),
    # The gradient takes the deviation of the noise for a constant.
    case("Noise", "noise_param { gaussian_std: 1e-5 bias: 0.5 }", x=MAP, tolerance=1e-3),
    case("Noise", "noise_param { uniform_range: 0.5 bias: 0.5 }", x=MAP),
    case("Noise", "noise_param { uniform_range: 0.5 }", x=MAP, phase="TEST"),
    case("SoftmaxWithDist", x=SCORES, t=LABELS),
    case("SoftmaxWithDist", x=MAP, t=integers(3, 2, 1, 4, 5), grows=(0, 3)),
    case("Select", x=SCORES, y=normal(5, 2, 2), i=constant(0, 1, 1, 0, 1)),
    # The gradient is that of the sum over the batch, here of one sample.
    case("DiceCoefLoss", x=positive(1, 3, 4), y=positive(1, 12)),
    case("SeLu", x=MAP),
    case("SeLuDropout", x=MAP),
    case("SeLuDropout", x=MAP, phase="TEST"),
    case("Accuracy", "accuracy_param { min_is_better: true }", x=DISTANCES, t=LABELS),
]
