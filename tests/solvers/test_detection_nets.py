"""Test nets that evaluate detections: their mean average precision, and what the log says of it."""

from __future__ import annotations

import logging

import h5py
import numpy as np
import pytest
from tiny import NET, tiny_param

from pycaffe_dist.errors import LayerError, UsageError
from pycaffe_dist.solvers import Solver

EVALUATION = """
layer {{ name: 'data' type: 'HDF5Data' top: 'det' top: 'gt'
  hdf5_data_param {{ source: '{0}/list.txt' batch_size: 1 }} }}
layer {{ name: 'eval' type: 'DetectionEvaluate' bottom: 'det' bottom: 'gt' top: 'detection_eval'
  detection_evaluate_param {{ num_classes: 4 }} }}
"""
LEFT, RIGHT, NOWHERE = (0.1, 0.1, 0.4, 0.4), (0.6, 0.6, 0.9, 0.9), (0.45, 0.45, 0.55, 0.55)
# Two batches of two images: detections as image, class, score, box, and boxes as image, class, box.
BATCHES = [
    (
        [(0, 1, 0.9, LEFT), (0, 1, 0.8, NOWHERE), (1, 1, 0.3, LEFT), (1, 2, 0.6, RIGHT)],
        [(0, 1, LEFT), (1, 1, LEFT), (1, 2, RIGHT)],
    ),
    (
        [(0, 1, 0.7, RIGHT), (0, 1, 0.6, RIGHT), (1, 2, 0.9, NOWHERE), (1, 2, 0.1, NOWHERE)],
        [(0, 1, RIGHT), (0, 1, LEFT), (1, 2, RIGHT)],
    ),
]
# Class 1, four boxes: right, wrong, right, wrong (found twice), right.  Class 2, two boxes: wrong,
# right, wrong.  Class 3 occurs nowhere.
BY_HAND = {
    "11point": (
        (3 * 1 + 3 * (2 / 3) + 2 * (3 / 5)) / 11,
        6 * (1 / 2) / 11,
        0,
    ),
    "MaxIntegral": (1 / 4 + 1 / 4 * 2 / 3 + 1 / 4 * 3 / 5, 1 / 2 * 1 / 2, 0),
    "Integral": (1 / 4 + 1 / 4 * 2 / 3 + 1 / 4 * 3 / 5, 1 / 2 * 1 / 2, 0),
}


@pytest.fixture
def folder(tmp_path):
    det = [[(n, c, score, *box) for n, c, score, box in found] for found, _ in BATCHES]
    gt = [[(n, c, 0, *box, 0) for n, c, box in boxes] for _, boxes in BATCHES]
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["det"], file["gt"] = (np.array(rows, np.float32)[:, None] for rows in (det, gt))
    (tmp_path / "list.txt").write_text(f"{tmp_path}/data.h5\n")
    return tmp_path


def make_solver(folder, fields="", net=EVALUATION):
    return Solver(
        tiny_param(
            folder,
            f"test_net_param {{ {net.format(folder)} }} test_iter: 2 test_interval: 100 "
            f"eval_type: 'detection' {fields}",
        )
    )


def logged(folder, caplog, fields):
    """Run one test; return the messages."""
    solver = make_solver(folder, fields)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        solver.test_all()
    solver.close()
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("version", BY_HAND)
def test_the_log_has_the_mean_average_precision(folder, caplog, version):
    messages = logged(folder, caplog, f"ap_version: '{version}' show_per_class_result: true")
    values = dict(line.split(": ", 1) for line in messages if line.startswith("class"))
    assert list(values) == ["class1", "class2"]
    for value, expected in zip(values.values(), BY_HAND[version]):
        assert float(value) == pytest.approx(expected, rel=1e-5)
    line = messages[-1]
    assert line.startswith("    Test net output #0: detection_eval = ")
    assert float(line.split(" = ")[1]) == pytest.approx(sum(BY_HAND[version]) / 3, rel=1e-5)
    assert "Missing true_pos for label: 3" in messages


def test_classes_are_shown_on_request_only(folder, caplog):
    messages = logged(folder, caplog, "test_compute_loss: true")
    assert not [line for line in messages if line.startswith("class")]
    assert "Test loss: 0" in messages


def test_other_outputs_of_the_net_are_averaged(folder, caplog):
    net = EVALUATION + "layer {{ name: 's' type: 'Reduction' bottom: 'gt' top: 'a_sum' }}"
    solver = make_solver(folder, net=net)
    with caplog.at_level(logging.INFO):
        solver.test_all()
    solver.close()
    lines = [record.getMessage() for record in caplog.records if "output #" in record.getMessage()]
    total = sum(n + c + sum(box) for _, boxes in BATCHES for n, c, box in boxes)
    assert float(lines[0].removeprefix("    Test net output #0: a_sum = ")) == pytest.approx(
        total / 2, rel=1e-5
    )
    assert lines[1].startswith("    Test net output #1: detection_eval = ")


def test_a_net_without_detections_cannot_be_tested_for_them(folder):
    message = "needs test nets with an output of a DetectionEvaluate layer; .* net #0 are: loss"
    with pytest.raises(UsageError, match=message):
        make_solver(folder, net=NET.replace("{", "{{").replace("}", "}}"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("eval_type: 'segmentation'", "unknown eval_type 'segmentation'; known are classification"),
        ("ap_version: '12point'", "unknown ap_version '12point'; known are 11point, MaxIntegral"),
    ],
)
def test_unknown_names_are_refused(tmp_path, fields, message):
    with pytest.raises(UsageError, match=message):
        Solver(tiny_param(tmp_path, fields))


def test_a_missing_file_of_sizes_ends_a_run_before_it_begins(folder):
    net = EVALUATION.replace("num_classes: 4", "num_classes: 4 name_size_file: 'none'")
    with pytest.raises(LayerError, match="name_size_file 'none' cannot be read"):
        make_solver(folder, net=net)
