"""Layers with weights and sequences."""

from layer_cases import case, constant, integers, marks, normal

X, CONT, STATIC, STATE = normal(4, 2, 3), marks(4, 2), normal(2, 4), normal(1, 2, 5)


def recurrent(kind, options="", **rest):
    return case(kind, f"recurrent_param {{ num_output: 5 {options} }}", x=X, c=CONT, **rest)


CASES = [
    case("InnerProduct", "inner_product_param { num_output: 7 }", x=normal(3, 2, 5)),
    case(
        "InnerProduct",
        "connectivity_mode: DISCONNECTED_GRPWISE inner_product_param { num_output: 7 }",
        x=normal(3, 2, 5),
    ),
    case(
        "InnerProduct",
        "inner_product_param { num_output: 7 transpose: true axis: 2 }",
        x=normal(3, 2, 5),
        grows=(0, 1),
    ),
    case("InnerProduct", "inner_product_param { num_output: 2 bias_term: false }", x=normal(3, 4)),
    case("Embed", "embed_param { num_output: 3 input_dim: 6 }", x=integers(6, 4, 2)),
    case(
        "Embed",
        "embed_param { num_output: 3 input_dim: 6 bias_term: false }",
        x=constant(1, 1, 5, 1),
    ),
    case("Parameter", "parameter_param { shape { dim: 2 dim: 3 } }"),
    recurrent("RNN"),
    recurrent("RNN", s=STATIC, grows=()),
    recurrent("RNN", "expose_hidden: true", s=STATIC, h=STATE, tops=2, grows=()),
    recurrent("LSTM"),
    recurrent("LSTM", s=STATIC, grows=()),
    recurrent("LSTM", "expose_hidden: true", h=STATE, k=STATE, tops=3, grows=()),
    case("Lstm", "lstm_param { num_output: 5 }", x=X),
    case("Lstm", "lstm_param { num_output: 5 clipping_threshold: 99 }", x=X, c=CONT),
    case("LSTMUnit", c=STATE, g=normal(1, 2, 20), k=constant([0, 1]), tops=2, grows=(1,)),
]
