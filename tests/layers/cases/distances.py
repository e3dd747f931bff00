"""Distances of colours."""

from layer_cases import case, normal

MAP = normal(2, 3, 4, 5)

CASES = [
    case("EuclideanDist", x=normal(3, 2, 2), y=normal(3, 4)),
    case("SumLoss", "loss_weight: 0.3", x=normal(3, 4)),
    case("Chnwise", x=MAP, y=normal(2, 3)),
    case("Chnwise", "chnwise_param { coeff: [2, -1] }", x=MAP, y=normal(2, 3)),
    case("MVNO", x=MAP),
    case("MVNO", "mvno_param { across_channels: true sub_mean: false }", x=MAP, grows=(0, 1)),
    case("MVNO", "mvno_param { normalize_variance: false }", x=MAP),
]
