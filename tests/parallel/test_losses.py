"""Losses that count labels: several ranks get the weights of one that has all their samples."""

from __future__ import annotations

import re
from pathlib import Path

import h5py
import lmdb
import numpy as np
import pytest
from kept_jobs import run_pcaffe

import pycaffe_dist as caffe
from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.snapshot.caffemodel import load_weights

BATCH, ITERATIONS, CLASSES = 8, 6, 5
RECORDS = BATCH * ITERATIONS
IGNORED = CLASSES - 1

SOLVER = """
net: '%s.prototxt' base_lr: 0.1 momentum: 0.9 lr_policy: 'fixed' display: 1 max_iter: %d
random_seed: 5 solver_mode: CPU snapshot_prefix: '%s'
"""
SAMPLES = """
layer { name: 'data' type: 'HDF5Data' top: 'x' top: 'label' top: 'targets' top: 'chosen'
  hdf5_data_param { source: 'samples.txt' batch_size: %d } }
"""
SCORES = """
layer { name: 'hidden' type: 'InnerProduct' bottom: 'x' top: 'hidden'
  inner_product_param { num_output: 12 weight_filler { type: 'xavier' } } }
layer { name: 'tanh' type: 'TanH' bottom: 'hidden' top: 'hidden' }
layer { name: 'score' type: 'InnerProduct' bottom: 'hidden' top: 'score'
  inner_product_param { num_output: 5 weight_filler { type: 'xavier' } } }
"""
VALID = "loss_param { ignore_label: 4 normalization: VALID }"
NETS = {
    "SoftmaxWithLoss": SCORES
    + f"""layer {{ name: 'loss' type: 'SoftmaxWithLoss' bottom: 'score' bottom: 'label' top: 'loss'
    {VALID} }}""",
    "SoftmaxWithLossOHEM": SCORES
    + f"""layer {{ name: 'loss' type: 'SoftmaxWithLossOHEM' bottom: 'score' bottom: 'label'
    top: 'loss' {VALID} }}""",
    "InfogainLoss": SCORES
    + f"""layer {{ name: 'loss' type: 'InfogainLoss' bottom: 'score' bottom: 'label' top: 'loss'
    infogain_loss_param {{ source: 'gain.binaryproto' }} {VALID} }}""",
    "SigmoidCrossEntropyLoss": SCORES
    + f"""layer {{ name: 'loss' type: 'SigmoidCrossEntropyLoss' bottom: 'score' bottom: 'targets'
    top: 'loss' {VALID} }}""",
    # The second rank of two has no sample in any batch but the third.
    "Filter": "layer { name: 'f' type: 'Filter' bottom: 'x' bottom: 'label' bottom: 'chosen'"
    " top: 'fx' top: 'flabel' }"
    + SCORES.replace("bottom: 'x'", "bottom: 'fx'")
    + f"""layer {{ name: 'loss' type: 'SoftmaxWithLoss' bottom: 'score' bottom: 'flabel' top: 'loss'
    {VALID} }}""",
}
DETECTION = """
layer { name: 'data' type: 'AnnotatedData' top: 'data' top: 'label'
  transform_param { scale: 0.01 } data_param { source: 'boxes_lmdb' batch_size: %d backend: LMDB } }
layer { name: 'conv' type: 'Convolution' bottom: 'data' top: 'conv'
  convolution_param { num_output: 8 kernel_size: 4 stride: 4 weight_filler { type: 'xavier' } } }
layer { name: 'tanh' type: 'TanH' bottom: 'conv' top: 'conv' }
layer { name: 'loc' type: 'Convolution' bottom: 'conv' top: 'loc' convolution_param {
  num_output: 8 kernel_size: 3 pad: 1 weight_filler { type: 'xavier' } } }
layer { name: 'loc_p' type: 'Permute' bottom: 'loc' top: 'loc_p'
  permute_param { order: 0 order: 2 order: 3 order: 1 } }
layer { name: 'loc_f' type: 'Flatten' bottom: 'loc_p' top: 'loc_f' }
layer { name: 'conf' type: 'Convolution' bottom: 'conv' top: 'conf' convolution_param {
  num_output: 8 kernel_size: 3 pad: 1 weight_filler { type: 'xavier' } } }
layer { name: 'conf_p' type: 'Permute' bottom: 'conf' top: 'conf_p'
  permute_param { order: 0 order: 2 order: 3 order: 1 } }
layer { name: 'conf_f' type: 'Flatten' bottom: 'conf_p' top: 'conf_f' }
layer { name: 'priors' type: 'PriorBox' bottom: 'conv' bottom: 'data' top: 'priors'
  prior_box_param { min_size: 6 max_size: 12 } }
layer { name: 'loss' type: 'MultiBoxLoss' bottom: 'loc_f' bottom: 'conf_f' bottom: 'priors'
  bottom: 'label' top: 'loss' propagate_down: true propagate_down: true propagate_down: false
  propagate_down: false multibox_loss_param { num_classes: 4 code_type: CENTER_SIZE } }
"""


def write_samples(folder: Path) -> None:
    """Write samples: in the first batch all labels are ignored, in the second all but one."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, CLASSES, RECORDS)
    targets = rng.choice([0, 1, IGNORED], (RECORDS, CLASSES))
    label[: 2 * BATCH], targets[: 2 * BATCH] = IGNORED, IGNORED
    label[BATCH + 3], targets[BATCH + 3, 2] = 1, 1
    chosen = np.arange(RECORDS) % 2 == 0
    chosen[2 * BATCH : 3 * BATCH] = True
    chosen[BATCH + 3] = True
    with h5py.File(folder / "samples.h5", "w") as file:
        file["x"] = rng.standard_normal((RECORDS, 7)).astype(np.float32)
        for name, values in (("label", label), ("targets", targets), ("chosen", chosen)):
            file[name] = values.astype(np.float32)
    (folder / "samples.txt").write_text("samples.h5\n")
    gain = np.eye(CLASSES) + rng.random((CLASSES, CLASSES))
    blob = caffe.io.array_to_blobproto(gain.reshape(1, 1, CLASSES, CLASSES))
    (folder / "gain.binaryproto").write_bytes(blob.SerializeToString())


def write_boxes(folder: Path) -> None:
    """Write images with 0 to 4 boxes of three classes."""
    rng = np.random.default_rng(1)
    path = str(folder / "boxes_lmdb")
    with lmdb.open(path, map_size=1 << 26) as database, database.begin(write=True) as write:
        for number in range(RECORDS):
            record = caffe_pb2.AnnotatedDatum(type=caffe_pb2.AnnotatedDatum.BBOX)
            pixels = rng.integers(0, 256, (3, 24, 24), np.uint8).tobytes()
            record.datum.CopyFrom(caffe_pb2.Datum(channels=3, height=24, width=24, data=pixels))
            for _ in range(int(rng.integers(5))):
                group = record.annotation_group.add(group_label=int(rng.integers(1, 4)))
                x, y = rng.random(2) * 0.6
                box = group.annotation.add(instance_id=0).bbox
                box.xmin, box.ymin, box.xmax, box.ymax = x, y, x + 0.3, y + 0.35
            write.put(b"%08d" % number, record.SerializeToString())


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Return a folder with data for all nets."""
    folder = tmp_path_factory.mktemp("divisors")
    write_samples(folder)
    write_boxes(folder)
    return folder


def train(folder: Path, name: str, net: str, ranks: int, *flags: str):
    """Train on some ranks that share a batch; return the losses and the weights."""
    (folder / f"{name}.prototxt").write_text(net % (BATCH // ranks))
    (folder / f"{name}_solver.prototxt").write_text(SOLVER % (name, ITERATIONS, name))
    output = run_pcaffe(ranks, ["train", f"--solver={name}_solver.prototxt", *flags], folder)
    losses = [float(loss) for loss in re.findall(r"Iteration \d+ \(.*loss = (\S+)", output)]
    assert len(losses) == ITERATIONS
    layers = load_weights(folder / f"{name}_iter_{ITERATIONS}.caffemodel")
    return losses, [blob for layer in layers for blob in layer.blobs]


def assert_equal(found, expected) -> None:
    np.testing.assert_allclose(found[0], expected[0], rtol=2e-5)
    for mine, theirs in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NETS)
def test_ignored_labels_are_those_of_all_ranks(folder, name):
    net = SAMPLES + NETS[name]
    one = train(folder, f"{name}1", net, 1)
    assert one[0][0] == 0 and min(one[0][1:]) > 0
    for ranks in (2, 4):
        assert_equal(train(folder, f"{name}{ranks}", net, ranks), one)


@pytest.mark.long
def test_matched_boxes_are_those_of_all_ranks(folder):
    one = train(folder, "boxes1", DETECTION, 1)
    assert_equal(train(folder, "boxes2", DETECTION, 2, "--overlap=forward"), one)
    assert_equal(train(folder, "boxes4", DETECTION, 4), one)
