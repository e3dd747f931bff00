"""Prototxts: what is accepted, how mistakes are reported, and how messages are printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pycaffe_dist.errors import PrototxtError
from pycaffe_dist.schema import caffe_pb2, text

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


def _net(prototxt: str) -> caffe_pb2.NetParameter:
    return text.parse(prototxt, caffe_pb2.NetParameter(), "train.prototxt")


def test_everything_that_caffes_parser_accepts():
    net = _net(
        r"""# a comment with a "quote
        name: 'a' "b"  # strings side by side
        layer: < name: "x", type: 'y'; top: ["p", "q"] >
        layer { name:"z"
          lrn_param{alpha:1e-3f beta:.75 k:1.f local_size:0x5}
          convolution_param { kernel_size:[3,5] bias_term:0 pad:010 dilation:2,dilation:1; }
          pooling_param { pool: AVE } include: { phase:TEST min_level: -1 }
          dropout_param { dropout_ratio: inf } propagate_down: t propagate_down: False
          python_param { param_str: "{\"a\": 1}\n\x41\101" } loss_weight: -1. }"""
    )
    assert net.name == "ab"
    assert list(net.layer[0].top) == ["p", "q"]
    layer = net.layer[1]
    assert (layer.lrn_param.beta, layer.lrn_param.k, layer.lrn_param.local_size) == (0.75, 1, 5)
    assert layer.lrn_param.alpha == pytest.approx(1e-3)
    convolution = layer.convolution_param
    assert (list(convolution.kernel_size), list(convolution.pad)) == ([3, 5], [8])
    assert (convolution.bias_term, list(convolution.dilation)) == (False, [2, 1])
    assert layer.pooling_param.pool == caffe_pb2.PoolingParameter.AVE
    assert (layer.include[0].phase, layer.include[0].min_level) == (caffe_pb2.TEST, -1)
    assert layer.dropout_param.dropout_ratio == float("inf")
    assert list(layer.propagate_down) == [True, False]
    assert layer.python_param.param_str == '{"a": 1}\nAA'
    assert list(layer.loss_weight) == [-1]


MISTAKES = [
    (
        'name: "x"\nlayer {\n  convolution_param {\n    num_ouput: 3\n  }\n}',
        "4:5: layer.convolution_param has no field 'num_ouput'; did you mean 'num_output'?",
    ),
    (
        'layer {\n  name: "a"\nlayer {\n  name: "b"\n}\n',
        "3:1: layer has no field 'layer', but the net has: "
        "is a '}' missing for the brace opened in line 1?",
    ),
    (
        "layer {\n  convolution_param {\n  num_output: 3\n}\n",
        "1:7: the brace that opens layer is never closed",
    ),
    ('layer { name: "a" } }', "1:21: '}' closes nothing"),
    ('layer { name: "a" >', "1:19: expected the name of a field of layer, found '>'"),
    (
        "layer { pooling_param { pool: MAXX } }",
        "1:31: layer.pooling_param.pool takes one of MAX, AVE, STOCHASTIC, found 'MAXX'; "
        "did you mean 'MAX'?",
    ),
    (
        'layer { pooling_param { pool: "MAX" } }',
        "1:31: layer.pooling_param.pool takes one of MAX, AVE, STOCHASTIC, found '\"MAX\"', "
        "which is written without quotes",
    ),
    (
        "layer { convolution_param { num_output: -3 } }",
        "1:41: layer.convolution_param.num_output takes a whole number from 0 to 4294967295, "
        "found '-3'",
    ),
    (
        "layer { convolution_param { bias_term: maybe } }",
        "1:40: layer.convolution_param.bias_term takes true or false, found 'maybe'",
    ),
    ("layer { name: conv1 }", "1:15: layer.name takes a string in quotes, found 'conv1'"),
    ('layer { name: "a }\n}', "1:15: the string '\"a }' has no closing quote in its line"),
    ("layer { loss_weight: 1.2.3 }", "1:22: layer.loss_weight takes a number, found '1.2.3'"),
    ('layer { name: "a" name: "b" }', "1:25: layer.name is given twice"),
    (
        "layer { convolution_param { num_output 3 } }",
        "1:40: expected ':' and a value after layer.convolution_param.num_output, found '3'",
    ),
    (
        "layer { convolution_param: 3 }",
        "1:28: expected '{' after layer.convolution_param, found '3'",
    ),
    ("layer", "1:6: expected '{' after layer, found the end of the file"),
    ("layer: [ { } ", "1:14: expected ',', found the end of the file"),
    ("lr: 0.1", "1:1: the net has no field 'lr'"),
    (
        "base_lr: 0.1",
        "1:1: the net has no field 'base_lr': this looks like the prototxt of a solver",
    ),
    (
        'layer { }\nlayer { name: "c"\n clip_param { min: 0 } }',
        "2: layer[1].clip_param.max is required and missing",
    ),
    (
        'layer { data_param { source: "a\\000b" } }',
        " layer.data_param.source holds a zero byte",
    ),
    ('layer { top: "a" top: "b\\x00" }', " layer.top holds a zero byte"),
]


@pytest.mark.parametrize(("prototxt", "message"), MISTAKES, ids=[m[1][:50] for m in MISTAKES])
def test_mistakes_are_explained(prototxt, message):
    with pytest.raises(PrototxtError) as caught:
        _net(prototxt)
    assert str(caught.value) == f"train.prototxt:{message}"


def test_error_of_a_solver():
    with pytest.raises(
        PrototxtError, match=r"the solver has no field 'layer': this looks like the"
    ):
        text.parse("layer { }", caffe_pb2.SolverParameter())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n# nothing\n", "is empty but for comments"),
        (b"\x0a\x05LeNet\x12\x00", "is a binary file, expected a prototxt"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git-lfs's pointer"),
    ],
)
def test_files_that_are_no_prototxts(tmp_path, content, message):
    path = tmp_path / "net.prototxt"
    path.write_bytes(content)
    with pytest.raises(PrototxtError, match=f"net.prototxt: .*{message}"):
        text.read_net(path)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(PrototxtError, match=r"gone.prototxt: no such file"):
        text.read_net(tmp_path / "gone.prototxt")
    with pytest.raises(PrototxtError, match="is a folder"):
        text.read_solver(str(tmp_path))


def test_comments_in_other_encodings_byte_order_mark_and_crlf(tmp_path):
    path = tmp_path / "net.prototxt"
    path.write_bytes(b'\xef\xbb\xbf# \xb2\xe2\xca\xd4\r\nname: "n\xc3\xa9"\r\nlayer { }\r\n')
    net, places = text.read_net_with_places(path)
    assert net.name == "né"
    assert places.layer(0) == f"{path}:3"


def test_places_of_layers(tmp_path):
    path = tmp_path / "net.prototxt"
    path.write_text(
        '# layer { in a comment }\nname: "layer { in a string }"\nstate { stage: "layer" }\n'
        'layer { name: "a" }\nlayer\n{\n  name: "b"\n}\nlayer: [{ name: "c" },\n { name: "d" }]\n'
        'layer < name: "a" >\n'
    )
    net, places = text.read_net_with_places(path)
    assert [places.layer(i) for i in range(len(net.layer))] == [
        f"{path}:{line}" for line in (4, 5, 9, 10, 11)
    ]
    assert places.layer("b") == f"{path}:5"
    assert places.layer("a") == f"{path}:4"
    assert places.layer("x") == places.layer(9) == str(path)


@pytest.mark.parametrize(
    ("name", "message"),
    [("net", caffe_pb2.NetParameter), ("solver", caffe_pb2.SolverParameter)],
)
def test_printing_as_in_caffes_log(name, message):
    logged = (GOLDEN / "schema" / f"{name}_in_log.prototxt").read_text()
    assert text.to_text(text.parse(logged, message())) == logged


def test_printing_of_floats_and_strings():
    solver = caffe_pb2.SolverParameter(
        base_lr=1e6, gamma=123456.7, power=0.1, momentum=1e-5, weight_decay=-2, stepsize=1000000,
        clip_gradients=float("inf"), lr_policy="a: 1.0", random_seed=1 << 40,
    )  # fmt: skip
    assert text.to_text(solver).splitlines() == [
        "base_lr: 1e+06", 'lr_policy: "a: 1.0"', "gamma: 123456.7", "power: 0.1", "momentum: 1e-05",
        "weight_decay: -2", "stepsize: 1000000", "random_seed: 1099511627776",
        "clip_gradients: inf",
    ]  # fmt: skip
    again = text.parse(text.to_text(solver), caffe_pb2.SolverParameter())
    assert again == solver
