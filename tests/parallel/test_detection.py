"""Tests of detection on several ranks equal those on one: mean average precision and files."""

from __future__ import annotations

import re
from pathlib import Path

import h5py
import numpy as np
import pytest
from kept_jobs import run_pcaffe

IMAGES, BATCH, CLASSES = 22, 2, 4
CELLS = 5
# The train net learns nothing that the test net needs: the predictions are in the data.
NET = """
layer { name: 'x' type: 'DummyData' top: 'x' top: 'y' include { phase: TRAIN }
  dummy_data_param { shape { dim: 4 dim: 3 } shape { dim: 4 dim: 2 }
  data_filler { type: 'gaussian' } data_filler { type: 'constant' value: 1 } } }
layer { name: 'ip' type: 'InnerProduct' bottom: 'x' top: 'ip' include { phase: TRAIN }
  inner_product_param { num_output: 2 weight_filler { type: 'xavier' } } }
layer { name: 'loss' type: 'EuclideanLoss' bottom: 'ip' bottom: 'y' top: 'loss'
  include { phase: TRAIN } }
"""
TEST = """
layer { name: 'predictions' type: 'HDF5Data' top: 'loc' top: 'conf' include { phase: TEST }
  hdf5_data_param { source: 'predictions.txt' batch_size: %(batch)d } }
layer { name: 'boxes' type: 'HDF5Data' top: 'gt' include { phase: TEST }
  hdf5_data_param { source: 'boxes.txt' batch_size: 1 } }
layer { name: 'map' type: 'DummyData' top: 'map' include { phase: TEST }
  dummy_data_param { shape { dim: 1 dim: 1 dim: %(cells)d dim: %(cells)d } } }
layer { name: 'priors' type: 'PriorBox' bottom: 'map' top: 'priors' include { phase: TEST }
  prior_box_param { min_size: 60 max_size: 90 img_size: 300 } }
layer { name: 'out' type: 'DetectionOutput' bottom: 'loc' bottom: 'conf' bottom: 'priors'
  top: 'out' include { phase: TEST }
  detection_output_param { num_classes: %(classes)d code_type: CENTER_SIZE
    nms_param { nms_threshold: 0.45 top_k: 40 } keep_top_k: 20 confidence_threshold: 0.1
    save_output_param { output_directory: '%(name)s' output_name_prefix: 'det_'
      output_format: 'VOC' label_map_file: 'labels.txt' name_size_file: 'sizes.txt' } } }
layer { name: 'eval' type: 'DetectionEvaluate' bottom: 'out' bottom: 'gt' top: 'detection_eval'
  include { phase: TEST }
  detection_evaluate_param { num_classes: %(classes)d name_size_file: 'sizes.txt' } }
"""
SOLVER = """
net: '%(name)s.prototxt' base_lr: 0.01 lr_policy: 'fixed' max_iter: 2 random_seed: 1
test_iter: %(batches)d test_interval: 1 eval_type: 'detection' ap_version: '11point'
show_per_class_result: true snapshot_prefix: '%(name)s' snapshot_after_train: true
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Return a folder with predictions that are partly right, boxes, and images' names."""
    folder = tmp_path_factory.mktemp("detection")
    rng = np.random.default_rng(3)
    count = 2 * CELLS**2
    scores = rng.integers(0, 40, (IMAGES, count, CLASSES)) / 80  # many are equal
    boxes = np.zeros((IMAGES // BATCH, 1, 2 * BATCH, 8), np.float32)
    for number in range(2 * IMAGES):
        image, prior = number // 2, int(rng.integers(count))
        label = int(rng.integers(1, CLASSES))
        if rng.random() < 0.7:
            scores[image, prior, label] = 0.6 + rng.integers(0, 10) / 40
        row = boxes[image // BATCH, 0, number % (2 * BATCH)]
        cell, side = prior // 2, (60, 90 * np.sqrt(2 / 3))[prior % 2] / 600
        center = (cell % CELLS + 0.5) / CELLS, (cell // CELLS + 0.5) / CELLS
        corners = (*np.subtract(center, side), *np.add(center, side))
        row[:] = image % BATCH, label, 0, *corners, 0
    with h5py.File(folder / "predictions.h5", "w") as file:
        file["loc"] = rng.standard_normal((IMAGES, 4 * count)).astype(np.float32)
        file["conf"] = scores.reshape(IMAGES, -1).astype(np.float32)
    with h5py.File(folder / "boxes.h5", "w") as file:
        file["gt"] = boxes
    for name in ("predictions", "boxes"):
        (folder / f"{name}.txt").write_text(f"{name}.h5\n")
    (folder / "labels.txt").write_text(
        "".join(f"item {{ name: 'c{label}' label: {label} }}\n" for label in range(CLASSES))
    )
    sizes = rng.integers(100, 500, (IMAGES, 2))
    (folder / "sizes.txt").write_text("".join(f"i{n} {h} {w}\n" for n, (h, w) in enumerate(sizes)))
    return folder


def write(folder: Path, name: str) -> None:
    values = {"batch": BATCH, "cells": CELLS, "classes": CLASSES, "name": name}
    (folder / f"{name}.prototxt").write_text(NET + TEST % values)
    solver = SOLVER % {"name": name, "batches": IMAGES // BATCH}
    (folder / f"{name}_solver.prototxt").write_text(solver)


def results(output: str) -> list[str]:
    """Return the lines with precisions, without their beginnings."""
    return re.findall(r"(class\d: .*|detection_eval = .*)", output)


def files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.iterdir())}


@pytest.mark.long
def test_three_ranks_measure_and_write_what_one_rank_does(folder):
    found = []
    for count in (1, 3):
        name = f"on{count}"
        write(folder, name)
        output = run_pcaffe(count, ["train", f"--solver={name}_solver.prototxt"], folder)
        trained = results(output)
        flags = f"--weights={name}_iter_2.caffemodel", f"--iterations={IMAGES // BATCH}"
        after_training = files(folder / name)
        output = run_pcaffe(count, ["test", f"--model={name}.prototxt", *flags], folder)
        found.append((trained, results(output), after_training, files(folder / name)))
    one, several = found
    assert several == one
    trained, tested, _, written = one
    # Three tests, each with the three classes and their mean.
    assert len(trained) == 3 * CLASSES
    assert trained[:CLASSES] == trained[CLASSES : 2 * CLASSES]
    mean = float(trained[3].split("= ")[1])
    precisions = [float(line.split(": ")[1]) for line in trained[:3]]
    assert mean == pytest.approx(np.mean(precisions), rel=1e-5)
    assert 0.1 < mean < 0.9
    assert tested[0] == f"detection_eval = {mean:.6g} (mean average precision, 11point)"
    assert [line.split(", ")[1] for line in tested] == ["11point)", "MaxIntegral)", "Integral)"]
    assert set(written) == {"det_c1.txt", "det_c2.txt", "det_c3.txt"}
    images = {line.split()[0] for text in written.values() for line in text.splitlines()}
    assert images == {f"i{number}" for number in range(IMAGES)}
