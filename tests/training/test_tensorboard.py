"""`pcaffe train --tensorboard`: what its event files hold, read back."""

from __future__ import annotations

import sys

import cv2
import numpy as np
import pytest
from event_files import read_events
from tensorboardX.proto import event_pb2, graph_pb2
from test_metrics import run, solver_file

from pycaffe_dist.config import Action, TrainOptions
from pycaffe_dist.errors import UsageError
from pycaffe_dist.net import Net
from pycaffe_dist.schema import caffe_pb2, text
from pycaffe_dist.training.pictures import tiles, with_boxes
from pycaffe_dist.training.score_counts import THRESHOLDS, ScoreCounts, probabilities
from pycaffe_dist.training.trainer import train

NET = """
layer { name: 'x' type: 'DummyData' top: 'x' top: 'y'
  dummy_data_param { shape { dim: 4 dim: 3 dim: 9 dim: 9 } shape { dim: 4 }
  data_filler { type: 'gaussian' } data_filler { type: 'constant' value: 1 } } }
layer { name: 'block/conv' type: 'Convolution' bottom: 'x' top: 'conv'
  convolution_param { num_output: 5 kernel_size: 3 weight_filler { type: 'xavier' } } }
layer { name: 'relu' type: 'ReLU' bottom: 'conv' top: 'conv' }
layer { name: 'ip' type: 'InnerProduct' bottom: 'conv' top: 'ip'
  inner_product_param { num_output: 3 weight_filler { type: 'xavier' } } }
layer { name: 'loss' type: 'SoftmaxWithLoss' bottom: 'ip' bottom: 'y' top: 'loss' }
layer { name: 'accuracy' type: 'Accuracy' bottom: 'ip' bottom: 'y' top: 'accuracy'
  include { phase: TEST } }
"""
FIELDS = "display: 2 test_iter: 2 test_interval: 3 snapshot: 4 max_iter: 6"
SCORES = "layer { name: 'in' type: 'Input' top: 'scores' top: 'labels' input_param { "
SCORES += "shape { dim: 50 dim: 4 } shape { dim: 50 } } } layer { name: 'accuracy' "
SCORES += "type: 'Accuracy' bottom: 'scores' bottom: 'labels' top: 'accuracy' }"


def values(events: list[event_pb2.Event]) -> dict[str, list[tuple[int, object]]]:
    """Return the steps and values of summaries by their tags."""
    found: dict[str, list] = {}
    for event in events:
        for value in event.summary.value:
            found.setdefault(value.tag, []).append((event.step, value))
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the folder of a finished run, and the records of its metrics."""
    folder = tmp_path_factory.mktemp("finished")
    path = solver_file(folder, FIELDS, NET)
    options = TrainOptions(
        path, metrics=f"{folder}/run.jsonl", tensorboard=f"{folder}/run", layer_metrics=True
    )
    train(options, lambda: Action.NONE)
    from pycaffe_dist.training.metrics_file import read_records

    return folder, read_records(options.metrics)


def test_numbers_are_those_of_the_records(finished):
    folder, records = finished
    found = values(read_events(folder / "run"))
    for kind, tag in (("train", "train"), ("test", "test0")):
        expected = [(r["iteration"], r["loss"]) for r in records if r["kind"] == kind]
        assert [(s, v.simple_value) for s, v in found[f"{tag}/loss"]] == [
            (step, pytest.approx(loss)) for step, loss in expected
        ]
    shown = [r for r in records if "parameters" in r]
    for tag, name in (("norms of gradients", "gradient"), ("updates to weights", "ratio")):
        expected = [pytest.approx(r["parameters"]["ip[0]"][name]) for r in shown]
        assert [v.simple_value for _, v in found[f"{tag}/ip/0"]] == expected
    assert len(found["shares of time/forward"]) == len(shown)
    assert {"test0/accuracy", "run/learning_rate", "dead channels/relu"} <= set(found)


def test_looks_hold_histograms_and_pictures(finished):
    folder, _ = finished
    found = values(read_events(folder / "run"))
    (step, value), *_ = found["gradients/block/conv/0"]
    assert step == 0 and value.histo.num == sum(value.histo.bucket) == 5 * 3 * 3 * 3
    assert [step for step, _ in found["weights/ip/1"]][-1] == 6
    for tag in ("inputs", "filters/block/conv", "maps/block/conv", "test0/confusion"):
        image = found[tag][0][1].image
        pixels = cv2.imdecode(np.frombuffer(image.encoded_image_string, np.uint8), 1)
        assert pixels.shape == (image.height, image.width, 3) and pixels.std() > 0
    assert [step for step, _ in found["test0/all"]] == [0, 3, 6]


def test_the_net_and_the_settings_are_there(finished):
    folder, _ = finished
    events = read_events(folder / "run")
    (graph,) = (event.graph_def for event in events if event.graph_def)
    nodes = {node.name: node for node in graph_pb2.GraphDef.FromString(graph).node}
    assert nodes["relu"].op == "ReLU" and [*nodes["relu"].input] == ["block/conv"]
    assert [*nodes["ip"].input] == ["relu"] and [*nodes["loss"].input] == ["ip", "x"]
    plugins = {v.metadata.plugin_data.plugin_name for e in events for v in e.summary.value}
    assert {"hparams", "pr_curves"} <= plugins


def test_a_resumed_run_lets_tensorboard_forget_what_it_repeats(tmp_path):
    folder = tmp_path / "run"
    run(tmp_path, fields=FIELDS, tensorboard=str(folder))
    resumed = str(tmp_path / "tiny_iter_4.solverstate")
    run(tmp_path, fields=FIELDS, tensorboard=str(folder), snapshot=resumed)
    starts = [e.step for e in read_events(folder) if e.session_log.status == 1]
    assert len(list(folder.iterdir())) == 2 and starts == [0, 4]


def test_counts_are_those_of_scikit_learn():
    from sklearn import metrics  # takes a second, which other test processes need not spend

    net = Net(text.parse(SCORES, caffe_pb2.NetParameter()), keep_diffs=False)
    rng = np.random.default_rng(0)
    counts, scores, labels = ScoreCounts(net), [], []
    for _ in range(3):
        net.blobs["scores"].data[...] = rng.normal(0, 2, (50, 4))
        net.blobs["labels"].data[...] = rng.integers(0, 4, 50)
        scores.append(net.blobs["scores"].data.copy())
        labels.append(net.blobs["labels"].data.copy())
        counts.add(net)
    all_scores, all_labels = np.concatenate(scores), np.concatenate(labels)
    expected = metrics.confusion_matrix(all_labels, all_scores.argmax(1))
    np.testing.assert_array_equal(counts.confusion, expected)
    likely = probabilities(all_scores.astype(np.float64))
    np.testing.assert_allclose(likely.sum(1), 1)
    np.testing.assert_array_equal(probabilities(likely), likely)
    for label in range(4):
        curve, positives = counts.curve(label), all_labels == label
        for number in (0, 10, 50, 99):
            found = likely[:, label] >= number / (THRESHOLDS - 1)
            assert curve.true_positives[number] == (found & positives).sum()
            assert curve.false_positives[number] == (found & ~positives).sum()
            assert curve.true_negatives[number] == (~found & ~positives).sum()
            recall = metrics.recall_score(positives, found)
            assert curve.recall[number] == pytest.approx(recall)
            assert curve.precision[number] == pytest.approx(
                metrics.precision_score(positives, found, zero_division=1)
            )


def test_labels_that_are_ignored_do_not_count():
    net = Net(text.parse(SCORES, caffe_pb2.NetParameter()), keep_diffs=False)
    net.blobs["labels"].data[...] = -1
    net.blobs["labels"].data[:2] = 4, 3
    counts = ScoreCounts(net)
    counts.add(net)
    assert counts.confusion.sum() == counts.confusion[3].sum() == 1


def test_tiles_are_scaled_together_and_lie_in_rows():
    maps = np.arange(3 * 40 * 60, dtype=np.float32).reshape(3, 40, 60)
    picture = tiles(maps)
    assert picture.shape == (81, 121, 1) and picture.dtype == np.uint8
    assert picture[0, 0, 0] == 0 and picture[41 + 39, 59, 0] == 255
    assert (picture[40] == 64).all() and (picture[41:, 61:] == 64).all()
    colors = np.zeros((1, 3, 100, 100), np.float32)
    colors[0, 2] = 1  # blue, green, red
    assert picture.std() > 0 and tiles(colors)[50, 50].tolist() == [255, 0, 0]
    assert (tiles(np.full((1, 100, 100), np.nan))[:100, :100] == 0).all()


def test_boxes_are_drawn_where_they_are():
    image = np.zeros((3, 200, 100), np.float32)
    found = np.array([[1, 0.9, 0.2, 0.5, 0.6, 0.75], [2, 0.1, 0, 0, 1, 1]])
    green = with_boxes(image, found)[..., 1] > 100
    assert green[100, 20:60].all() and green[100:150, 60].all() and not green[:99].any()


def test_without_the_library_the_way_to_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(UsageError, match=r"needs tensorboardX: pip install 'pycaffe-dist\[tens"):
        run(tmp_path, tensorboard=str(tmp_path / "run"))


def test_a_disk_that_fails_later_ends_no_run(tmp_path, monkeypatch, caplog):
    from tensorboardX.record_writer import RecordWriter

    def fail(self, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RecordWriter, "write", fail)
    assert run(tmp_path, tensorboard=str(tmp_path / "run"))[-1]["iteration"] == 10
    lost = [line for line in caplog.messages if "lose events" in line]
    assert lost == ["The files for TensorBoard lose events: No space left on device"]


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(UsageError, match=r"cannot write to .*run: "):
        run(tmp_path, tensorboard=str(tmp_path / "run"))
