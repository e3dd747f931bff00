"""Records of a run: their values, their file, and callbacks that get them."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from tiny import NET, tiny_param

import pycaffe_dist as caffe
from pycaffe_dist.cli.main import main
from pycaffe_dist.config import Action, TrainOptions
from pycaffe_dist.data.writers import create_database
from pycaffe_dist.errors import DataError, UsageError
from pycaffe_dist.schema import caffe_pb2, text
from pycaffe_dist.solvers import Solver
from pycaffe_dist.solvers.layer_metrics import LayerMetrics
from pycaffe_dist.training.metrics_file import read_records
from pycaffe_dist.training.trainer import train

WITH_RELU = NET.replace(
    "layer { name: 'loss'",
    "layer { name: 'relu' type: 'ReLU' bottom: 'ip' top: 'relu' } layer { name: 'loss'",
).replace("bottom: 'ip' bottom: 'y'", "bottom: 'relu' bottom: 'y'")
FIELDS = "display: 2 test_iter: 2 test_interval: 3 snapshot: 4 max_iter: 10"


def solver_file(folder, fields: str = FIELDS, net: str = WITH_RELU) -> str:
    param = tiny_param(folder, fields)
    param.ClearField("net_param")
    param.net = str(folder / "net.prototxt")
    (folder / "net.prototxt").write_text(net)
    (folder / "solver.prototxt").write_text(text.to_text(param))
    return str(folder / "solver.prototxt")


def run(folder, name: str = "run.jsonl", fields: str = FIELDS, **options) -> list[dict]:
    """Train; return the records of the file."""
    path = folder / name
    wanted = TrainOptions(solver=solver_file(folder, fields), metrics=str(path), **options)
    train(wanted, lambda: Action.NONE)
    return read_records(str(path))


def test_a_start_has_the_flags_that_were_given(tmp_path):
    file = f"--metrics={tmp_path / 'run.jsonl'}"
    solver = f"--solver={solver_file(tmp_path)}"
    assert main(["train", solver, file, "--seed=5", "--wire=float32", "--nocuda_graph"]) == 0
    (start,) = [r for r in read_records(str(tmp_path / "run.jsonl")) if r["kind"] == "start"]
    given = {"seed": 5, "cuda_graph": False}
    assert start["flags"] == given | {"solver": solver[9:], "metrics": file[10:]}


def results(records: list[dict]) -> list[tuple]:
    return [
        (record["kind"], record["iteration"], record["loss"], record.get("outputs"))
        for record in records
        if record["kind"] in ("train", "test")
    ]


def test_a_record_for_each_display_and_test(tmp_path, caplog):
    caplog.set_level("INFO", logger="pcaffe")
    records = run(tmp_path)
    start, *others = records
    snapshots = [record for record in others if record["kind"] == "snapshot"]
    assert [record["path"] for record in snapshots] == [
        str(tmp_path / f"tiny_iter_{record['iteration']}.caffemodel") for record in snapshots
    ]
    assert [record["iteration"] for record in snapshots] == [4, 8, 10]
    others = [record for record in others if record["kind"] != "snapshot"]
    assert start["kind"] == "start" and start["solver"]["base_lr"] == pytest.approx(0.05)
    assert text.parse(start["definition"], caffe_pb2.NetParameter()).layer[2].name == "ip"
    places = [(record["kind"], record["iteration"]) for record in others]
    tests, displays = range(0, 10, 3), range(0, 11, 2)
    assert places == sorted(
        [*(("test", i) for i in tests), *(("train", i) for i in displays)],
        key=lambda place: (place[1], place[0]),
    )
    for kind in ("train", "test"):
        logged = re.findall(rf"{kind.title()} net output #0: loss = (\S+)", caplog.text)
        values = [r["outputs"]["loss"][0] for r in others if r["kind"] == kind and "outputs" in r]
        assert values == pytest.approx([*map(float, logged)], rel=1e-5)
    for record in others[1:]:
        if record["kind"] == "train" and record["iteration"] < 10:
            shares = record["shares"]
            assert all(0 <= share <= 1 for share in shares.values())
            assert 0 < sum(shares.values()) <= 1
            assert record["images_per_second"] > 0 and record["learning_rate"] == 0.05


def test_a_resumed_run_replaces_what_it_repeats(tmp_path):
    whole = run(tmp_path, "whole.jsonl")
    run(tmp_path, fields="max_iter: 7 " + FIELDS.replace("max_iter: 10", ""))
    resumed = run(tmp_path, snapshot=str(tmp_path / "tiny_iter_4.solverstate"))
    assert results(resumed) == results(whole)
    assert [r["iteration"] for r in resumed if r["kind"] == "start"] == [0, 4]
    # The record of the snapshot that the run resumed from stays.
    assert [r["iteration"] for r in resumed if r["kind"] == "snapshot"] == [4, 8, 10]


def test_a_file_of_a_killed_run_can_be_read_and_continued(tmp_path):
    whole = run(tmp_path)
    path = tmp_path / "run.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert results(read_records(str(path))) == results(whole)[:-1]
    resumed = run(tmp_path, snapshot=str(tmp_path / "tiny_iter_8.solverstate"))
    assert results(resumed) == results(whole)


def test_norms_are_those_of_weights_gradients_and_updates(tmp_path):
    solver = Solver(text.read_solver(solver_file(tmp_path, FIELDS + " iter_size: 2")))
    found, records = {}, []
    weights = solver.net.parameters[0].blob

    def note(name, values):
        found[solver.iteration, name] = np.array(values, np.float64)

    solver.callbacks.before_gradients.append(lambda _: note("before", weights.data))
    solver.callbacks.after_gradients.append(lambda _: note("gradient", weights.diff))
    solver.callbacks.after_iteration.append(lambda _: note("after", weights.data))
    solver.callbacks.on_record.append(lambda _, record: records.append(record))
    solver.recorder.layers = LayerMetrics()
    solver.step(5)
    for record in (record for record in records if record["kind"] == "train"):
        i = record["iteration"]
        before, after = found[i, "before"], found[i + 1, "after"]
        update = np.linalg.norm(after - before)
        expected = {
            "weights": np.linalg.norm(before),
            "gradient": np.linalg.norm(found[i, "gradient"]) / 2,
            "update": update,
            "ratio": update / np.linalg.norm(before),
        }
        assert record["parameters"]["ip[0]"] == pytest.approx(expected, rel=1e-5)
        assert record["layers"]["ip"]["forward_ms"] > 0
    top = solver.net.blobs["relu"].data
    assert record["iteration"] == 4 and record["dead"] == {"relu": np.mean((top <= 0).all(0))}
    solver.close()


# The gradient of the inner product is left to its update, as factors.
WIDE = """layer { name: 'x' type: 'DummyData' top: 'x' top: 'y' dummy_data_param {
  shape { dim: 2 dim: 1024 } shape { dim: 2 dim: 2048 } data_filler { type: 'gaussian' } } }
layer { name: 'ip' type: 'InnerProduct' bottom: 'x' top: 'ip'
  inner_product_param { num_output: 2048 weight_filler { type: 'xavier' } } }
layer { name: 'relu' type: 'ReLU' bottom: 'ip' top: 'ip' }
layer { name: 'loss' type: 'EuclideanLoss' bottom: 'ip' bottom: 'y' top: 'loss' }"""


@pytest.mark.parametrize("net", [WITH_RELU, WIDE])
def test_a_run_that_is_followed_has_the_same_weights(net, tmp_path):
    fields = "display: 2 base_lr: 0.01"
    alone, followed = (Solver(text.read_solver(solver_file(tmp_path, fields, net))) for _ in "12")
    norms: dict[int, tuple] = {}

    def note(solver):
        blob = solver.net.parameters[0].blob
        norms[solver.iteration] = tuple(
            np.linalg.norm(x.astype(float)) for x in (blob.data, blob.diff)
        )

    alone.callbacks.after_gradients.append(note)
    records: list[dict] = []
    followed.callbacks.on_record.append(lambda _, record: records.append(record))
    followed.recorder.layers = LayerMetrics()
    spans: list[tuple] = []
    followed.profile(spans.extend)
    for solver in (alone, followed):
        solver.step(5)
    followed.profile(spans.extend, wanted=False)
    for solver in (alone, followed):
        solver.close()
    for one, other in zip(alone.net.parameters, followed.net.parameters):
        assert np.array_equal(one.blob.data, other.blob.data)
    shown = [record for record in records if "parameters" in record]
    assert [record["iteration"] for record in shown] == [0, 2, 4]
    for record in shown:
        found = record["parameters"]["ip[0]"]
        assert (found["weights"], found["gradient"]) == pytest.approx(
            norms[record["iteration"]], rel=1e-5
        )
    assert [span[1] for span in spans if span[0] == "iteration"] == [*"01234"]
    updates = {span[1] for span in spans if span[0] == "update"}
    assert updates == ({"all"} if net == WITH_RELU else {"ip[0]", "ip[1]"})


def test_dead_channels_are_positive_for_no_sample_and_nowhere(tmp_path):
    net = """layer { name: 'x' type: 'DummyData' top: 'x'
      dummy_data_param { shape { dim: 2 dim: 4 dim: 3 dim: 3 } } }
      layer { name: 'relu' type: 'ReLU' bottom: 'x' top: 'x' }"""
    from pycaffe_dist.net import Net
    from pycaffe_dist.solvers.layer_metrics import dead_channels

    built = Net(text.parse(net, caffe_pb2.NetParameter()))
    values = np.full((2, 4, 3, 3), -1.0)
    values[1, 2, 0, 1] = 1
    built.blobs["x"].data[...] = values
    built.forward(start=1)
    assert dead_channels(built) == {"relu": 0.75}


def test_callbacks_get_the_records_of_the_file(tmp_path):
    solver = caffe.get_solver(solver_file(tmp_path))
    records: list[dict] = []
    solver.add_record_callback(records.append, layers=True)
    solver.solve()
    of_file = run(tmp_path, layer_metrics=True)
    assert results(records) == results(of_file)
    assert [set(record) for record in records] == [set(record) for record in of_file]


def test_nothing_is_measured_while_nobody_gets_records(tmp_path):
    solver = Solver(text.read_solver(solver_file(tmp_path)))
    records: list[dict] = []
    follower = lambda _, record: records.append(record)  # noqa: E731
    for follows, last in ((True, 4), (False, 7), (True, 9)):
        solver.callbacks.on_record[:] = [follower] if follows else []
        solver.step(last - solver.iteration)
        assert (solver.profiler.record is not None) == follows
    solver.close()
    places = [(r["kind"], r["iteration"]) for r in records if r["kind"] in ("start", "train")]
    assert places == [("start", 0), ("train", 0), ("train", 2), ("start", 7), ("train", 8)]


def test_epochs_count_the_records_of_a_database(tmp_path):
    for backend in ("lmdb", "leveldb"):
        with create_database(str(tmp_path / backend), backend) as writer:
            for number in range(6):
                datum = caffe_pb2.Datum(channels=3, height=1, width=1, data=b"abc", label=1)
                writer.put(b"%03d" % number, datum.SerializeToString())
        data = f"""layer {{ name: 'x' type: 'Data' top: 'x' top: 'y' data_param {{
          source: '{tmp_path}/{backend}' batch_size: 4 backend: {backend.upper()} }} }}
          layer {{ name: 'ip' type: 'InnerProduct' bottom: 'x' top: 'ip'
            inner_product_param {{ num_output: 1 }} }}
          layer {{ name: 'loss' type: 'EuclideanLoss' bottom: 'ip' bottom: 'y' top: 'loss' }}"""
        solver = Solver(text.read_solver(solver_file(tmp_path, "display: 1", data)))
        records: list[dict] = []
        solver.callbacks.on_record.append(lambda _, record, to=records: to.append(record))
        solver.step(4)
        solver.close()
        # Counting a LevelDB would read all of it.
        found = [record.get("epoch") for record in records[1:]]
        expected = [i * 4 / 6 for i in range(4)] if backend == "lmdb" else [None] * 4
        assert found == pytest.approx(expected)


def test_a_loss_that_is_not_finite_is_null(tmp_path):
    fields = "display: 2 max_iter: 40 base_lr: 1e20 snapshot_after_train: false"
    records = run(tmp_path, fields=fields, stop_at_nan=False)
    assert records[-1]["loss"] is None and "NaN" not in (tmp_path / "run.jsonl").read_text()


def test_a_file_that_cannot_be_written_any_more_ends_no_run(tmp_path, caplog):
    path = tmp_path / "run.jsonl"
    solver = Solver(text.read_solver(solver_file(tmp_path)))
    from pycaffe_dist.training.metrics_file import MetricsFile

    solver.callbacks.on_record.append(MetricsFile(str(path)))
    solver.step(3)
    path.unlink()
    path.mkdir()
    solver.step(4)
    solver.close()
    assert solver.iteration == 7
    lost = [line for line in caplog.messages if "lose records" in line]
    assert lost == [f"The metrics {path} lose records: Is a directory"]


@pytest.mark.parametrize(
    ("name", "contents", "error"),
    [
        ("missing/run.jsonl", None, "cannot write the metrics .*: there is no such folder"),
        (".", None, "cannot write the metrics .*: it is not a file"),
        ("net.prototxt", WITH_RELU, "prototxt:1: not a record of metrics.*; name another file"),
        ("list.jsonl", "[1]\n", r"list.jsonl:1: not a record of metrics, which is a line of JSON"),
        ("some.jsonl", '{"kind": "start"}\n', "some.jsonl:1: not a record"),
    ],
)
def test_files_of_something_else_are_refused(tmp_path, name, contents, error):
    if contents:
        (tmp_path / name).write_text(contents)
    with pytest.raises(UsageError, match=error):
        run(tmp_path, name)
    if contents:
        assert (tmp_path / name).read_text() == contents
        with pytest.raises(DataError, match=re.escape(f"{name}:1: ")):
            read_records(str(tmp_path / name))


def test_layers_need_a_file(tmp_path):
    with pytest.raises(UsageError, match="--layer_metrics needs a place for the records"):
        train(TrainOptions(solver=solver_file(tmp_path), layer_metrics=True), lambda: Action.NONE)


def test_every_line_is_json_of_its_own(tmp_path):
    run(tmp_path, layer_metrics=True)
    for line in (tmp_path / "run.jsonl").read_text().splitlines():
        assert json.loads(line, parse_constant=pytest.fail)
