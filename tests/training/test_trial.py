"""`pcaffe train --check` and `--keep_best`, and a solver without max_iter."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from tiny import NET, tiny_param, tiny_solver

from pycaffe_dist.config import Action, TrainOptions
from pycaffe_dist.errors import SnapshotError, UsageError
from pycaffe_dist.schema import text
from pycaffe_dist.snapshot.caffemodel import load_weights
from pycaffe_dist.training.trainer import train
from pycaffe_dist.training.trial import Remaining

OUTPUT = """
layer { name: 'out/1' type: 'HDF5Output' bottom: 'x' bottom: 'y'
  hdf5_output_param { file_name: '%s/out.h5' } include { phase: TEST } }
"""


def run(folder, fields: str, **options) -> None:
    """Train with the net of `tiny` in files of their own."""
    param = tiny_param(folder, fields)
    param.ClearField("net_param")
    param.net = str(folder / "net.prototxt")
    (folder / "net.prototxt").write_text(NET + OUTPUT % folder)
    path = folder / "solver.prototxt"
    path.write_text(text.to_text(param))
    train(TrainOptions(solver=str(path), **options), lambda: Action.NONE)


def contents(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_check_touches_nothing(tmp_path, capsys):
    for name in ("out.h5", "tiny_best.caffemodel", "tiny_iter_2.caffemodel"):
        (tmp_path / name).write_text("mine")
    for name in ("net", "solver"):
        (tmp_path / f"{name}.prototxt").write_text("")
    names = set(contents(tmp_path))
    fields = "test_iter: 7 test_interval: 20 snapshot: 10 max_iter: 95 best_output: 'loss'"
    run(tmp_path, fields, check=True)
    found = contents(tmp_path)
    assert set(found) == names
    assert [found[name] for name in names if not name.endswith("prototxt")] == [b"mine"] * 3
    printed = capsys.readouterr().out
    assert "in order. The whole run will take about:\ntime  " in printed
    for what, count in (("iterations", 95), ("tests", 5), ("snapshots", 10)):
        assert re.search(rf"^  {what} +\d.* s: {count} of \S+ s$", printed, re.MULTILINE), printed
    assert re.search(r"^memory +\S+ [MG]iB$", printed, re.MULTILINE)
    assert re.search(r"^disk +\d\S* KiB, \d\S* KiB a snapshot; \S+ .iB are free$", printed, re.M)


def test_a_check_is_told_to_programs(tmp_path, capsys):
    run(tmp_path, "max_iter: 95 snapshot: 10 snapshot_after_train: false", check=True, json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["remaining"] == {"iterations": 95, "tests": 0, "snapshots": 9}
    each = found["seconds_each"]
    assert each["iterations"] > 0 and each["snapshots"] > 0 and each["tests"] == 0
    assert found["seconds"] == pytest.approx(95 * each["iterations"] + 9 * each["snapshots"])
    assert found["memory"] > 1e7 and found["snapshot"] > 100 and found["gpu_memory"] is None


def test_a_check_goes_on_from_a_snapshot(tmp_path, capsys):
    run(tmp_path, "max_iter: 6")
    before = {k: v for k, v in contents(tmp_path).items() if k.startswith("tiny")}
    run(tmp_path, "max_iter: 50 test_iter: 1 test_interval: 3", check=True, snapshot="latest")
    printed = capsys.readouterr().out
    assert re.search(r"  iterations .*: 44 of (.|\n)*  tests .*: 15 of ", printed)
    assert {k: v for k, v in contents(tmp_path).items() if k.startswith("tiny")} == before


def test_a_check_finds_what_would_fail_after_days(tmp_path):
    with pytest.raises(SnapshotError, match=r"folder '.*missing' does not exist"):
        run(tmp_path, f"snapshot_prefix: '{tmp_path}/missing/tiny'", check=True)


@pytest.mark.parametrize("begin", [0, 7, 12])
@pytest.mark.parametrize(
    "fields",
    [
        "test_iter: 1 test_interval: 4 snapshot: 6",
        "test_iter: 1 test_interval: 5 test_initialization: false snapshot_after_train: false",
        "snapshot: 8",
    ],
)
def test_the_plan_is_what_a_run_does(tmp_path, fields, begin):
    solver = tiny_solver(tmp_path, f"{fields} max_iter: 24")
    solver.state.iteration = begin
    plan = Remaining.of(solver.param, begin)
    counts = {"test_all": 0, "snapshot": 0}

    def counting(name):
        real = getattr(solver, name)

        def call(*args, **options):
            counts[name] += 1
            return real(*args, **options)

        return call

    for name in counts:
        setattr(solver, name, counting(name))
    solver.solve()
    solver.close()
    assert plan == Remaining(24 - begin, counts["test_all"], counts["snapshot"])


def test_the_flag_keeps_the_best_weights(tmp_path):
    run(tmp_path, "test_iter: 1 test_interval: 4", keep_best="loss")
    (layer,) = [x for x in load_weights(tmp_path / "tiny_best.caffemodel") if x.name == "ip"]
    assert np.isfinite(layer.blobs[0]).all()


def test_a_solver_without_max_iter_says_so(tmp_path):
    path = tmp_path / "solver.prototxt"
    path.write_text("net: 'net.prototxt' base_lr: 0.1 lr_policy: 'fixed'")
    with pytest.raises(UsageError, match=r"solver.prototxt: has no max_iter, the number of iter"):
        train(TrainOptions(solver=str(path)), lambda: Action.NONE)
