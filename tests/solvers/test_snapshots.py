"""Snapshots are consistent, verified, pruned and never in the way of training."""

from __future__ import annotations

import errno
import logging
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tiny import tiny_param, tiny_solver

from pycaffe_dist.config import Action, TrainOptions
from pycaffe_dist.errors import SnapshotError, UsageError
from pycaffe_dist.runtime.trainer import train
from pycaffe_dist.schema import text
from pycaffe_dist.snapshot import atomic, catalog
from pycaffe_dist.snapshot.background import Copies
from pycaffe_dist.snapshot.caffemodel import load_weights
from pycaffe_dist.snapshot.solverstate import load_state
from pycaffe_dist.solvers import snapshots


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def of_iterations(*iterations: int) -> list[str]:
    kinds = ("caffemodel", "solverstate", "solverstate.json")
    return sorted(f"tiny_iter_{iteration}.{kind}" for iteration in iterations for kind in kinds)


def weights_in(path: Path) -> np.ndarray:
    (layer,) = [layer for layer in load_weights(path) if layer.name == "ip"]
    return layer.blobs[0]


def fail_to_write(monkeypatch, iterations: tuple[int, ...]) -> None:
    """Let the disk be full whenever the weights of these iterations are written."""
    real = atomic.fill

    def fill(new, parts):
        if any(f"_iter_{iteration}.caffemodel" in new.name for iteration in iterations):
            new.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        real(new, parts)

    monkeypatch.setattr(atomic, "fill", fill)


def test_a_periodic_snapshot_that_fails_costs_one_line(tmp_path, monkeypatch, caplog):
    fail_to_write(monkeypatch, (4,))
    solver = tiny_solver(tmp_path, "snapshot: 2")
    with caplog.at_level(logging.INFO, "pcaffe"):
        solver.solve()
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert line == (
        f"Snapshot failed: {tmp_path}/tiny_iter_4.caffemodel: cannot be written: No space left on "
        f"device; training goes on (last good one: {tmp_path}/tiny_iter_2.solverstate)"
    )
    assert solver.iteration == 8
    assert names(tmp_path) == of_iterations(2, 6, 8)


@pytest.mark.parametrize(
    "fields", ["", "snapshot: 4", "snapshot: 8", "snapshot: 8 snapshot_after_train: false"]
)
def test_a_last_snapshot_that_fails_is_an_error(tmp_path, monkeypatch, fields):
    fail_to_write(monkeypatch, (8,))
    with pytest.raises(
        SnapshotError, match=r"tiny_iter_8\.caffemodel: cannot be written: No space"
    ):
        tiny_solver(tmp_path, fields).solve()
    assert names(tmp_path) == (of_iterations(4) if fields == "snapshot: 4" else [])


def test_what_does_not_read_back_does_not_count(tmp_path, monkeypatch):
    solver = tiny_solver(tmp_path)
    solver.snapshot()
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(atomic, "checksum", lambda path: atomic.Checksum(1, 2))
    with pytest.raises(SnapshotError, match=r"tiny_iter_0\.caffemodel: cannot be written: Input"):
        solver.snapshot()
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("format", ["BINARYPROTO", "HDF5"])
def test_training_changes_nothing_that_is_being_written(tmp_path, monkeypatch, format):
    solver = tiny_solver(tmp_path, f"snapshot_format: {format}")
    solver.step(2)
    weights = solver.net.parameters[0].blob.data.copy()
    history = [array.copy() for array in solver.method.history]
    may_write = threading.Event()
    real = snapshots.fill_weights

    def late(*args):
        assert may_write.wait(30)
        real(*args)

    monkeypatch.setattr(snapshots, "fill_weights", late)
    solver.snapshot(wait=False)
    solver.step(3)
    assert not list(tmp_path.glob("tiny*"))
    may_write.set()
    solver.close()
    suffix = ".h5" if format == "HDF5" else ""
    path = tmp_path / f"tiny_iter_2.caffemodel{suffix}"
    np.testing.assert_array_equal(weights_in(path), weights)
    for mine, theirs in zip(
        load_state(tmp_path / f"tiny_iter_2.solverstate{suffix}").history, history, strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)


def test_old_snapshots_go_when_the_new_one_is_safe(tmp_path, monkeypatch):
    for other in ("tiny_b_iter_1.solverstate", "tinyx_iter_2.solverstate", "tiny_iter_3.log"):
        (tmp_path / other).touch()
    others = names(tmp_path)
    fail_to_write(monkeypatch, (6,))
    solver = tiny_solver(tmp_path, "snapshot: 1", keep=2)
    solver.step(6)
    solver.close()
    assert names(tmp_path) == sorted(others + of_iterations(4, 5))
    solver = tiny_solver(tmp_path, "snapshot: 1", keep=2)
    solver.restore(f"{tmp_path}/tiny_iter_4.solverstate")
    solver.step(1)  # iteration 5 again: it takes the place of the one that is there
    solver.close()
    assert names(tmp_path) == sorted(others + of_iterations(4, 5))


def test_weights_that_are_not_finite_replace_no_good_ones(tmp_path):
    solver = tiny_solver(tmp_path, keep=1)
    solver.snapshot()
    solver.net.parameters[0].blob.data[0, 0] = np.inf
    solver.iteration = 1
    with pytest.raises(SnapshotError, match="weights of layer 'ip' are NaN or infinite"):
        solver.snapshot()
    assert names(tmp_path) == of_iterations(0)


def test_what_a_killed_process_left_is_removed(tmp_path):
    (tmp_path / ".tiny_iter_3.caffemodel.0123abcd.tmp").touch()
    (tmp_path / ".other_iter_3.caffemodel.0123abcd.tmp").touch()
    tiny_solver(tmp_path).snapshot()
    assert names(tmp_path) == sorted([".other_iter_3.caffemodel.0123abcd.tmp", *of_iterations(0)])


def test_the_newest_is_not_always_the_highest(tmp_path):
    """A run that began anew writes over an older one's lower iterations first."""
    tiny_solver(tmp_path, "snapshot: 2").solve()
    solver = tiny_solver(tmp_path, "snapshot: 2")
    solver.step(3)
    solver.close()
    assert catalog.latest(f"{tmp_path}/tiny").iteration == 2


@pytest.mark.parametrize("kind", ["caffemodel", "solverstate"])
@pytest.mark.parametrize("with_companion", [True, False])
def test_a_snapshot_that_is_cut_off_is_skipped(tmp_path, caplog, kind, with_companion):
    tiny_solver(tmp_path, "snapshot: 2").solve()
    path = tmp_path / f"tiny_iter_8.{kind}"
    path.write_bytes(path.read_bytes()[:-30])
    if not with_companion:
        (tmp_path / "tiny_iter_8.solverstate.json").unlink()
    assert catalog.latest(f"{tmp_path}/tiny").iteration == 6
    assert "Skipping the snapshot of iteration 8: " in caplog.text
    for path in tmp_path.glob("*.caffemodel"):
        path.unlink()
    with pytest.raises(SnapshotError, match=r"none of the 4 snapshot\(s\) of prefix"):
        snapshots.resolve(tiny_param(tmp_path), "latest")


def test_weights_of_another_snapshot_are_not_taken_for_the_states(tmp_path):
    tiny_solver(tmp_path, "snapshot: 2").solve()
    weights = tmp_path / "tiny_iter_8.caffemodel"
    weights.write_bytes((tmp_path / "tiny_iter_6.caffemodel").read_bytes())
    with pytest.raises(SnapshotError, match=f"^{weights}: is damaged or of another run"):
        tiny_solver(tmp_path).restore(f"{tmp_path}/tiny_iter_8.solverstate")


def test_snapshots_of_an_earlier_run_do_not_count_for_the_newest_since_a_time(tmp_path):
    tiny_solver(tmp_path, "snapshot: 2").solve()
    param, now = tiny_param(tmp_path), time.time()
    assert snapshots.resolve(param, f"latest@{now - 60:.0f}").endswith("tiny_iter_8.solverstate")
    assert snapshots.resolve(param, f"latest@{now + 60:.0f}") == ""
    assert snapshots.resolve(param, f"latest@{now + 60:.0f},other.solverstate").startswith("other")
    with pytest.raises(UsageError, match="takes seconds since 1970, found 'noon'"):
        snapshots.resolve(param, "latest@noon")


def test_copies_are_of_all_arrays_and_shared_ones_are_copied_once():
    copies = Copies()
    large, small = np.arange(3e6, dtype=np.float32).reshape(3, -1), np.ones(2)
    for _ in range(2):
        copies.restart()
        first, second, again = copies.copy(large), copies.copy(small), copies.copy(large)
        assert again is first
        np.testing.assert_array_equal(first, large)
        np.testing.assert_array_equal(second, small)
        large += 1


@pytest.mark.parametrize(
    "given, expected",
    [
        ("", "{folder}/my.solver"),
        ("snapshot_prefix: '{folder}/out'", "{folder}/out/my.solver"),
        ("snapshot_prefix: '{folder}/new'", "{folder}/new"),
    ],
)
def test_snapshots_are_named_after_the_solvers_file(tmp_path, given, expected):
    (tmp_path / "out").mkdir()
    file = tmp_path / "my.solver.prototxt"
    file.write_text("net: 'x' " + given.format(folder=tmp_path))
    assert text.read_solver(file).snapshot_prefix == expected.format(folder=tmp_path)


@pytest.mark.parametrize(
    ("asked", "name", "words"),
    [
        ("weights", "tiny_iter_8.caffemodel", "Finetuning from"),
        ("snapshot", "tiny_iter_4.solverstate", "Resuming from"),
    ],
)
def test_what_is_asked_for_goes_before_the_solvers_own_weights(
    tmp_path, caplog, asked, name, words
):
    tiny_solver(tmp_path, "snapshot: 4").solve()
    file = tmp_path / "solver.prototxt"
    file.write_text(text.to_text(tiny_param(tmp_path, "weights: 'missing.caffemodel'")))
    path = str(tmp_path / name)
    options = {asked: (path,) if asked == "weights" else path}
    with caplog.at_level(logging.INFO, "pcaffe"):
        train(TrainOptions(str(file), **options), lambda: Action.NONE)
    lines = [record.getMessage() for record in caplog.records]
    assert lines.index(f"{words} {path}") < lines.index("Starting Optimization")
    # Of the solver, and of the command.
    assert lines[-2:] == ["Optimization Done."] * 2
