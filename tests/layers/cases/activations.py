"""Element-wise layers and dropout."""

from layer_cases import case, normal, positive

X = normal(2, 3, 4, 5)

CASES = [
    case("AbsVal", x=X),
    case("BNLL", x=X),
    case("Clip", "clip_param { min: -0.5 max: 0.8 }", x=X),
    case("Dropout", "dropout_param { dropout_ratio: 0.3 }", x=X),
    case("Dropout", "dropout_param { dropout_ratio: 0.3 }", phase="TEST", x=X),
    case("Dropout", "dropout_param { scale_train: false }", x=X),
    case("Dropout", "dropout_param { dropout_ratio: 0.3 scale_train: false }", phase="TEST", x=X),
    case("ELU", x=X),
    case("ELU", "elu_param { alpha: -0.4 }", x=X),
    case("Exp", "exp_param { base: 2 scale: 0.7 shift: 0.3 }", x=X),
    case("Exp", "exp_param { scale: 0.7 shift: -0.3 }", x=X),
    case("HardSigmoid", x=lambda rng: 3 * rng.standard_normal((2, 3, 4, 5))),
    case("Log", x=positive(2, 3)),
    case("Log", "log_param { base: 10 scale: 0.5 shift: 0.3 }", x=positive(2, 3, 4)),
    case("Mish", x=lambda rng: 3 * rng.standard_normal((2, 3, 4, 5))),
    case("PReLU", x=X, grows=(0, 3)),
    case("PReLU", "prelu_param { channel_shared: true }", x=X, grows=(0, 3)),
    case("PReLU", x=normal(4, 6)),
    case("Power", x=X),
    case("Power", "power_param { power: 2 scale: 0.5 shift: 0.3 }", x=X),
    case("Power", "power_param { power: -0.5 scale: 0.5 shift: 2 }", x=positive(3, 4)),
    case("Power", "power_param { power: 0 scale: 0.5 shift: 2 }", x=X),
    case("Power", "power_param { power: 3 scale: 0 shift: 2 }", x=X),
    case("ReLU", x=X),
    case("ReLU", "relu_param { negative_slope: 0.2 }", x=X),
    case("ReLU", "relu_param { negative_slope: -0.2 }", x=X),
    case("ReLU", x=normal(1, 40000), tolerance=1e-4),
    case("ReLU6", x=lambda rng: 5 * rng.standard_normal((2, 3, 4, 5))),
    case("ReLU6", "relu6_param { negative_slope: 0.2 }", x=lambda rng: 5 * rng.standard_normal(60)),
    case("ReLU6", "relu6_param { negative_slope: -0.2 }", x=X),
    case("Sigmoid", x=X),
    case("Swish", "swish_param { beta: 1.7 }", x=X),
    case("TanH", x=X),
    case("Threshold", "threshold_param { threshold: 0.2 }", x=X),
]
