"""parse_log, plot_log, summarize, compare and the upgrade tools."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from tool_runs import run

from pycaffe_dist.cli import (
    compare,
    parse_log,
    plot_log,
    summarize,
    upgrade_net_proto_binary,
    upgrade_net_proto_text,
    upgrade_solver_proto_text,
)
from pycaffe_dist.errors import FAILURE, WRONG_INPUT
from pycaffe_dist.reports.training_log import read_log
from pycaffe_dist.schema import caffe_pb2, text
from pycaffe_dist.snapshot.caffemodel import load_weights

GOLDEN = Path(__file__).parents[1] / "golden"
LOGS = GOLDEN / "logs"


def _rows(path: Path, delimiter=",") -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


def test_parse_log(tmp_path, capsys):
    assert run(parse_log, LOGS / "lenet_train_test.log", tmp_path, "--verbose") == 0
    assert f"Wrote {tmp_path}/lenet_train_test.log.test" in capsys.readouterr().out
    test = _rows(tmp_path / "lenet_train_test.log.test")
    assert list(test[0]) == ["NumIters", "Seconds", "LearningRate", "accuracy", "loss"]
    assert [row["NumIters"] for row in test] == ["0", "10", "20"]
    assert [float(row["accuracy"]) for row in test] == [0.09, 0.442, 0.606]
    train = _rows(tmp_path / "lenet_train_test.log.train")
    assert [row["NumIters"] for row in train] == ["0", "5", "10", "15"]
    assert [float(row["LearningRate"]) for row in train] == [
        0.01, 0.00999625, 0.00999251, 0.00998876,
    ]  # fmt: skip
    assert float(train[0]["Seconds"]) == pytest.approx(0.121072)


def test_parse_log_with_another_delimiter(tmp_path):
    assert run(parse_log, LOGS / "lenet_train.log", tmp_path, "--delimiter=\\t") == 0
    rows = _rows(tmp_path / "lenet_train.log.train", "\t")
    assert len(rows) == 60 and not (tmp_path / "lenet_train.log.test").exists()


def test_log_over_new_year_and_of_two_test_nets(tmp_path):
    (tmp_path / "log").write_text(
        "I1231 23:59:59.000000 1 solver.cpp:1] Solving x\n"
        "I1231 23:59:59.500000 1 solver.cpp:1] Iteration 0, Testing net (#0)\n"
        "I1231 23:59:59.500000 1 solver.cpp:1]     Test net output #0: loss = nan\n"
        "I0101 00:00:01.000000 1 solver.cpp:1] Iteration 0, Testing net (#1)\n"
        "I0101 00:00:01.000000 1 solver.cpp:1]     Test net output #0: loss = 2e-3\n"
    )
    rows = read_log(str(tmp_path / "log")).test
    assert len(rows) == 1 and rows[0]["Seconds"] == 0.5
    assert np.isnan(rows[0]["loss"]) and rows[0]["loss#1"] == 0.002


def test_files_that_are_no_logs(tmp_path, capsys):
    (tmp_path / "text").write_text("nothing\n")
    assert run(parse_log, tmp_path / "text", tmp_path) == 1
    assert "not the log of a training run" in capsys.readouterr().err
    assert run(parse_log, tmp_path / "none", tmp_path) == 1
    assert run(parse_log, LOGS / "lenet_train.log", tmp_path / "none") == 1
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.parametrize("against", ["iterations", "seconds", "both"])
def test_plot_log(tmp_path, against):
    pytest.importorskip("matplotlib")
    shutil.copy(LOGS / "lenet_train_test.log", tmp_path / "other.log")
    for name in ("plot.png", "plot.svg"):
        out = tmp_path / name
        logs = [LOGS / "lenet_train_test.log", tmp_path / "other.log"]
        assert run(plot_log, out, *logs, f"--against={against}") == 0
    height, width = cv2.imread(str(tmp_path / "plot.png")).shape[:2]
    assert (width > height) == (against == "both")
    svg = (tmp_path / "plot.svg").read_text()
    assert svg.startswith("<?xml") and len(svg) > 10000


@pytest.mark.parametrize("name", ["plot.xyz", "plot"])
def test_plot_of_an_unknown_kind(tmp_path, capsys, name):
    pytest.importorskip("matplotlib")
    assert run(plot_log, tmp_path / name, LOGS / "lenet_train.log") in (FAILURE, WRONG_INPUT)
    assert name in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


SMALL = """
name: "small"
layer { name: "data" type: "Data" top: "data" top: "label"
  data_param { source: "none" batch_size: 2 } transform_param { crop_size: 12 } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 3 group: 1 } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "bn" }
layer { name: "ip" type: "InnerProduct" bottom: "bn" top: "ip"
  inner_product_param { num_output: 5 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


def test_summarize(tmp_path, capsys):
    (tmp_path / "net.prototxt").write_text(SMALL)
    assert run(summarize, tmp_path / "net.prototxt") == 0
    lines = capsys.readouterr().out.splitlines()
    cells = {line.split()[0]: line.split() for line in lines if line.split()}
    # 4 × 3×3×3 + 4; 2×4×10×10 outputs of 27 products each.
    assert cells["conv"][2:] == ["2x4x10x10", "112", "21.6k", "3.125", "KiB"]
    assert cells["ip"][3:5] == ["2,005", "4k"]
    assert cells["bn"][3] == "9"
    assert cells["total"][3] == f"{112 + 9 + 2005:,}"
    assert cells["data"][2:4] == ["2x3x12x12", "2"]


def test_summarize_needs_a_shape(tmp_path, capsys):
    net = SMALL.replace("transform_param { crop_size: 12 }", "")
    (tmp_path / "net.prototxt").write_text(net)
    assert run(summarize, tmp_path / "net.prototxt") == WRONG_INPUT
    assert "--shape=" in capsys.readouterr().err
    assert run(summarize, tmp_path / "net.prototxt", "--shape=1,8,9") == 0
    assert "2x1x8x9" in capsys.readouterr().out


def test_summarize_names_the_line_of_a_wrong_layer(tmp_path, capsys):
    path = tmp_path / "net.prototxt"
    path.write_text(SMALL.replace("kernel_size: 3", "kernel_size: 30"))
    assert run(summarize, path) == WRONG_INPUT
    assert f"{path}:5: layer 'conv' (Convolution)" in capsys.readouterr().err


PYTHON = """
layer { name: "other" type: "Python" top: "data" include { phase: TRAIN }
  python_param { module: "absent" layer: "Source" } }
layer { name: "source" type: "Python" top: "data" top: "im_info" include { phase: TEST }
  python_param { module: "absent" layer: "Source" } }
layer { name: "ip" type: "InnerProduct" bottom: "data" inner_product_param { num_output: 5 }
  top: "ip" }
"""


def test_summarize_replaces_python_layers_that_bring_data_in(tmp_path, capsys):
    path = tmp_path / "net.prototxt"
    path.write_text(PYTHON)
    assert run(summarize, path) == WRONG_INPUT
    message = capsys.readouterr().err
    assert f"{path}:4: layer 'source' (Python)" in message
    assert "--shape='data=DIM,DIM,… im_info=DIM,DIM,…'" in message
    assert run(summarize, path, "--shape=data=2,3,4,5 im_info=1,3") == 0
    output = capsys.readouterr().out
    assert "2x3x4x5 1x3" in output and "305" in output


@pytest.mark.parametrize("shape", ["1,2", "data=", "data=0", "a,b,c"])
def test_summarize_refuses_a_wrong_shape(tmp_path, capsys, shape):
    (tmp_path / "net.prototxt").write_text(PYTHON)
    assert run(summarize, tmp_path / "net.prototxt", f"--shape={shape}") == WRONG_INPUT
    assert "CHANNELS,HEIGHT,WIDTH" in capsys.readouterr().err


SOLVER = GOLDEN / "solver"


def test_compare_weights(tmp_path, capsys):
    binary, hdf5 = SOLVER / "sgd_iter_10.caffemodel", SOLVER / "sgd_iter_10.caffemodel.h5"
    assert run(compare, binary, hdf5) == 0
    assert "are the same" in capsys.readouterr().out
    assert run(compare, binary, SOLVER / "init.caffemodel") == 1
    lines = capsys.readouterr().out.splitlines()
    names = [layer.name for layer in load_weights(binary) if layer.blobs]
    assert [line.split()[0] for line in lines[:-1]] == names
    one, two = (load_weights(path) for path in (binary, SOLVER / "init.caffemodel"))
    (first, *_), (other, *_) = ([layer for layer in net if layer.blobs] for net in (one, two))
    largest = max(np.abs(a - b).max() for a, b in zip(first.blobs, other.blobs))
    assert f"largest {largest:.3g}," in lines[0]
    assert run(compare, binary, SOLVER / "init.caffemodel", "--tolerance=1e9") == 0


def test_compare_states(capsys):
    binary, hdf5 = SOLVER / "sgd_iter_10.solverstate", SOLVER / "sgd_iter_10.solverstate.h5"
    assert run(compare, binary, hdf5, "--blobs") == 0
    assert "history[0]" in capsys.readouterr().out
    assert run(compare, binary, SOLVER / "init.caffemodel") == WRONG_INPUT
    assert "cannot compare" in capsys.readouterr().err


@pytest.mark.parametrize("args", [("a.onnx", "--blobs"), ("a.caffemodel", "--inputs=x.npz")])
def test_compare_refuses_flags_of_the_other_kind(args, capsys):
    assert run(compare, *args, args[0]) == WRONG_INPUT
    assert f"flag {args[1].partition('=')[0]} is for " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["lenet_v0", "lenet_v1", "batchnorm_v2old"])
def test_upgraded_nets_are_caffes(tmp_path, name):
    old = GOLDEN / "legacy" / f"{name}.prototxt"
    expected = GOLDEN / "legacy" / f"{name}.upgraded.prototxt"
    assert run(upgrade_net_proto_text, old, tmp_path / "new") == 0
    found, wanted = caffe_pb2.NetParameter(), caffe_pb2.NetParameter()
    text.parse((tmp_path / "new").read_text(), found)
    text.parse(expected.read_text(), wanted)
    assert found == wanted


def test_upgraded_solver_is_caffes(tmp_path):
    legacy = GOLDEN / "legacy"
    assert run(upgrade_solver_proto_text, legacy / "solver_old.prototxt", tmp_path / "new") == 0
    found = text.parse((tmp_path / "new").read_text(), caffe_pb2.SolverParameter())
    expected = (legacy / "solver_old.upgraded.prototxt").read_text()
    assert found == text.parse(expected, caffe_pb2.SolverParameter())


def test_net_that_is_up_to_date(tmp_path, capsys):
    new = GOLDEN / "legacy" / "lenet_v1.upgraded.prototxt"
    assert run(upgrade_net_proto_text, new, tmp_path / "new") == 0
    assert "already in latest proto format" in capsys.readouterr().err


def test_upgraded_binary_net_keeps_its_weights(tmp_path, capsys):
    old = SOLVER / "init.caffemodel"
    assert run(upgrade_net_proto_binary, old, tmp_path / "new.caffemodel") == 0
    assert run(compare, old, tmp_path / "new.caffemodel") == 0
    assert run(upgrade_net_proto_binary, new_text := GOLDEN / "legacy/lenet_v0.prototxt", "x") == 1
    assert str(new_text) in capsys.readouterr().err
