"""Exports as a whole: axes that vary, folding, preprocessing, float16, errors, comparisons."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from google.protobuf import text_format

import pycaffe_dist as caffe
from pycaffe_dist.cli.main import main
from pycaffe_dist.errors import NetError, SnapshotError, UsageError
from pycaffe_dist.exporting import comparing, export_net, safetensors
from pycaffe_dist.exporting.onnx.exporting import _Making as Making
from pycaffe_dist.exporting.onnx.models import Session
from pycaffe_dist.exporting.options import Options
from pycaffe_dist.net import Net
from pycaffe_dist.schema import caffe_pb2

NET = """
name: "small"
layer { name: "data" type: "Input" top: "data"
  input_param { shape { dim: 3 dim: 2 dim: 9 dim: 8 } } }
layer { name: "conv/1" type: "Convolution" bottom: "data" top: "conv/1"
  convolution_param { num_output: 4 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "norm" type: "BatchNorm" bottom: "conv/1" top: "conv/1" }
layer { name: "scale" type: "Scale" bottom: "conv/1" top: "conv/1"
  scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "conv/1" top: "conv/1" }
layer { name: "pool" type: "Pooling" bottom: "conv/1" top: "pool"
  pooling_param { kernel_size: 3 stride: 2 %s } }
%s
layer { name: "prob" type: "Softmax" bottom: "%s" top: "prob" }
"""
INNER = """layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }"""


def small(pooling="", inner=False, phase=caffe_pb2.TEST):
    """Return a net with random weights and statistics."""
    text = NET % (pooling, INNER if inner else "", "ip" if inner else "pool")
    param = text_format.Parse(text, caffe_pb2.NetParameter())
    param.state.phase = phase
    net = Net(param, seed=1)
    rng = np.random.default_rng(2)
    for name in ("norm", "scale"):
        for blob in net.layers[net.layer_index(name)].blobs:
            blob.data[...] = rng.uniform(0.5, 2, blob.shape)
    return net


@pytest.fixture
def files(tmp_path):
    """The small net as files: prototxt and weights."""
    net = small(inner=True)
    prototxt, weights = tmp_path / "net.prototxt", tmp_path / "net.caffemodel"
    prototxt.write_text(NET % ("", INNER, "ip"))
    net.save_weights(str(weights))
    return str(prototxt), str(weights), tmp_path


@pytest.mark.parametrize(
    "inner, varies", [(False, ["batch", "height", "width"]), (True, ["batch"])]
)
def test_sizes_vary_where_the_net_allows_it(tmp_path, inner, varies):
    net = small("pad: 1 pool: AVE", inner)
    report = export_net(net, str(tmp_path / "net.onnx"), "onnx", Options())
    assert report.varies == varies
    assert report.largest < 1e-5
    session = Session(str(tmp_path / "net.onnx"))
    shape = (7, 2, 9, 8) if inner else (7, 2, 21, 33)
    data = np.random.default_rng(0).standard_normal(shape, np.float32)
    net.blobs["data"].reshape(*shape)
    net.reshape()
    net.blobs["data"].data[...] = data
    net.forward()
    np.testing.assert_allclose(
        session.run({"data": data})["prob"], net.blobs["prob"].data, rtol=1e-4
    )


def test_folding_leaves_the_convolution_alone(tmp_path):
    import onnx

    path = str(tmp_path / "net.onnx")
    report = export_net(small(), path, "onnx", Options(fold=True))
    assert (report.folded, report.largest < 1e-5) == (2, True)
    kinds = [node.op_type for node in onnx.load(path).graph.node]
    assert kinds == ["Conv", "Relu", "MaxPool", "Softmax"]


BEFORE = """
layer { name: "data" type: "Input" top: "data"
  input_param { shape { dim: 2 dim: 4 dim: 6 dim: 5 } } }
layer { name: "norm" type: "BatchNorm" bottom: "data" top: "norm" }
layer { name: "scale" type: "Scale" bottom: "norm" top: "norm" scale_param { bias_term: true } }
layer { name: "last" bottom: "norm" top: "last" %s }
"""


@pytest.mark.parametrize(
    "last, folded",
    [
        ("kernel_size: 3 group: 2 bias_term: false", 2),
        ("kernel_size: 3", 2),
        ("kernel_size: 3 pad: 1", 0),
        ("transpose: true", 2),
        ("bias_term: false", 2),
    ],
)
def test_folding_into_the_product_after_is_exact(tmp_path, last, folded):
    kind = "convolution" if "kernel" in last else "inner_product"
    name = {"convolution": "Convolution", "inner_product": "InnerProduct"}[kind]
    options = f'num_output: 6 {last} weight_filler {{ type: "xavier" }}'
    text = BEFORE % f'type: "{name}" {kind}_param {{ {options} }}'
    param = text_format.Parse(text, caffe_pb2.NetParameter())
    param.state.phase = caffe_pb2.TEST
    net = Net(param, seed=1)
    rng = np.random.default_rng(2)
    for layer in net.layers[1:3]:
        for blob in layer.blobs:
            blob.data[...] = rng.uniform(0.5, 2, blob.shape)
    report = export_net(net, str(tmp_path / "net.onnx"), "onnx", Options(1e-5, fold=True))
    assert report.folded == folded


def test_float16_halves_the_weights(tmp_path):
    import onnx

    path = str(tmp_path / "net.onnx")
    report = export_net(small(inner=True), path, "onnx", Options(float16=True))
    assert 0 < report.largest < 1e-2
    types = {value.data_type for value in onnx.load(path).graph.initializer}
    assert onnx.TensorProto.FLOAT not in types
    assert onnx.load(path).graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT


def test_a_model_takes_plain_pixels(tmp_path):
    source = text_format.Parse(
        'layer { name: "d" type: "Data" top: "data" transform_param { scale: 0.5 '
        "mean_value: 10 mean_value: 20 } }",
        caffe_pb2.NetParameter(),
    )
    net, path = small(inner=True), str(tmp_path / "net.onnx")
    export_net(net, path, "onnx", Options(preprocess=source))
    pixels = np.random.default_rng(0).integers(0, 256, (3, 2, 9, 8)).astype(np.float32)
    net.blobs["data"].data[...] = (pixels - np.reshape([10, 20], (2, 1, 1))) * 0.5
    net.forward()
    found = Session(path).run({"data": pixels})["prob"]
    np.testing.assert_allclose(found, net.blobs["prob"].data, rtol=1e-4)


def test_a_mean_needs_a_data_layer(tmp_path):
    options = Options(preprocess=caffe_pb2.NetParameter())
    with pytest.raises(NetError, match="no data layer with a transform_param"):
        export_net(small(), str(tmp_path / "net.onnx"), "onnx", options)


@pytest.mark.parametrize("to, name", [("onnx", "net.onnx"), ("torch", "net.py")])
def test_all_layers_without_a_form_are_named_and_nothing_is_written(tmp_path, to, name):
    text = (
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }'
        'layer { name: "a" type: "Dropout" bottom: "x" top: "a"'
        " dropout_param { sample_weights_test: true } }"
        'layer { name: "b" type: "Dropout" bottom: "a" top: "b"'
        " dropout_param { sample_weights_test: true } }"
    )
    net = Net(text_format.Parse(text, caffe_pb2.NetParameter()))
    with pytest.raises(NetError, match=r"2 layer\(s\) cannot be expressed") as error:
        export_net(net, str(tmp_path / name), to, Options())
    assert "layer 'a' (Dropout)" in str(error.value) and "layer 'b'" in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_results_beyond_the_tolerance_are_refused(tmp_path):
    with pytest.raises(NetError, match=r"differs in 'prob': relative .* nothing is written"):
        export_net(small(), str(tmp_path / "net.onnx"), "onnx", Options(1e-12, float16=True))
    assert list(tmp_path.iterdir()) == []


def test_sizes_that_the_tolerance_fixes_are_named(tmp_path, monkeypatch):
    plain = Making._differences

    def differ(self, session, shapes):
        found = plain(self, session, shapes)
        other = shapes != self.steps.inputs
        return [replace(each, relative=0.5) if other else each for each in found]

    monkeypatch.setattr(Making, "_differences", differ)
    report = export_net(small(), str(tmp_path / "net.onnx"), "onnx", Options())
    assert report.varies == []
    line = "fixed by the tolerance: batch, height, width: with other sizes 'prob' differs by 0.5"
    assert f"{line}, more than 0.0001" in report.table()


def test_losses_and_labels_are_left_out(tmp_path):
    text = NET % ("", INNER, "ip") + (
        'layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 3 } } }'
        'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }'
    )
    param = text_format.Parse(text, caffe_pb2.NetParameter())
    param.state.phase = caffe_pb2.TEST
    report = export_net(Net(param), str(tmp_path / "net.onnx"), "onnx", Options())
    assert report.left_out == ["loss"]
    assert list(Session(str(tmp_path / "net.onnx")).inputs) == ["data"]


def test_an_unknown_format_and_wrong_names_of_files(tmp_path):
    net = small()
    with pytest.raises(UsageError, match="unknown format 'onyx'; known are onnx, torch, numpy"):
        export_net(net, str(tmp_path / "n"), "onyx", Options())
    with pytest.raises(UsageError, match=r"file like net\.py"):
        export_net(net, str(tmp_path / "net.onnx"), "torch", Options())
    with pytest.raises(UsageError, match=r"file like net\.onnx"):
        export_net(net, str(tmp_path / "net.py"), "onnx", Options())
    with pytest.raises(UsageError, match=r"file like net\.npz"):
        export_net(net, str(tmp_path / "net.onnx"), "numpy", Options())


def test_arrays_and_layers_of_numpy(tmp_path):
    net = small(inner=True)
    export_net(net, str(tmp_path / "net.npz"), "numpy", Options())
    described = json.loads((tmp_path / "net.json").read_text())
    assert [layer["type"] for layer in described["layers"]][:3] == [
        "Input",
        "Convolution",
        "BatchNorm",
    ]
    with np.load(tmp_path / "net.npz") as arrays:
        names = [name for layer in described["layers"] for name in layer["arrays"]]
        assert sorted(arrays.files) == sorted(names)
        weights = net.layers[net.layer_index("ip")].blobs[0].data
        np.testing.assert_array_equal(arrays["ip/0"], weights)


def test_safetensors_are_read_back(tmp_path):
    arrays = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.float32([7])}
    safetensors.write(tmp_path / "x.safetensors", arrays)
    found = safetensors.read(tmp_path / "x.safetensors")
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
    (tmp_path / "x.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    with pytest.raises(SnapshotError, match="as safetensors"):
        safetensors.read(tmp_path / "x.safetensors")


def test_the_commands_export_and_compare(files, capsys):
    prototxt, weights, folder = files
    out = str(folder / "net.onnx")
    assert main(["export", prototxt, weights, out, "--to=onnx"]) == 0
    printed = capsys.readouterr().out
    assert "prob: largest relative difference" in printed and "sizes that may change" in printed
    assert main(["compare", f"{prototxt}+{weights}", out]) == 0
    assert "blobs are the same within 0.0001" in capsys.readouterr().out
    net = small(inner=True)
    net.load_weights(weights)
    net.layers[net.layer_index("ip")].blobs[1].data[...] += 1
    other = str(folder / "other.caffemodel")
    net.save_weights(other)
    net.layers[net.layer_index("norm")].blobs[0].data[...] += 1
    net.save_weights(other)
    assert main(["compare", f"{prototxt}+{other}", out]) == 1
    assert "the first that differs is blob 'conv/1' of layer" in capsys.readouterr().out


def test_given_inputs_are_compared(files):
    prototxt, weights, folder = files
    out = str(folder / "net.onnx")
    assert main(["export", prototxt, weights, out]) == 0
    np.savez(folder / "in.npz", data=np.ones((5, 2, 9, 8)))
    found = comparing.compare(f"{prototxt}+{weights}", out, str(folder / "in.npz"), 1e-4)
    assert found.first == ""
    assert [each.name for each in found.blobs] == ["conv/1", "pool", "ip", "prob"]
    np.savez(folder / "in.npz", other=np.ones(3))
    with pytest.raises(NetError, match="inputs data are missing; given are other"):
        comparing.compare(f"{prototxt}+{weights}", out, str(folder / "in.npz"), 1e-4)


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--to=torch", "--float16"], "flag --float16 is for --to=onnx"),
        (["--fold", "--to=numpy"], "flag --fold is for --to=onnx and --to=torch"),
        (["--to=pytorch"], "flag --to is one of onnx, torch, numpy"),
    ],
)
def test_flags_of_other_formats_are_refused(files, capsys, flags, message):
    prototxt, weights, folder = files
    assert main(["export", prototxt, weights, str(folder / "x.py"), *flags]) == 2
    assert message in capsys.readouterr().err


def test_weights_that_are_missing_are_named(files, capsys):
    _, weights, folder = files
    (folder / "more.prototxt").write_text(
        (folder / "net.prototxt").read_text().replace('"ip"', '"fc"')
    )
    more = str(folder / "more.prototxt")
    assert main(["export", more, weights, str(folder / "x.onnx")]) == 2
    assert "has no weights for fc of" in capsys.readouterr().err


def test_the_api_exports_a_net(files):
    prototxt, weights, folder = files
    net = caffe.Net(prototxt, caffe.TEST, weights=weights)
    report = caffe.export(net, folder / "net.onnx", to="onnx", fold=True)
    assert report.files == [str(folder / "net.onnx")] and report.folded == 2
