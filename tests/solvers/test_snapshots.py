"""Snapshots are consistent, verified and pruned, and never stop training."""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from tiny import tiny_param, tiny_solver

from pycaffe_dist import atomic
from pycaffe_dist.config import Action, TrainOptions
from pycaffe_dist.errors import SnapshotError, UsageError
from pycaffe_dist.schema import text
from pycaffe_dist.snapshot import catalog
from pycaffe_dist.snapshot import companion as companions
from pycaffe_dist.snapshot.background import Copies
from pycaffe_dist.snapshot.caffemodel import load_weights
from pycaffe_dist.snapshot.solverstate import load_state
from pycaffe_dist.solvers import resuming, snapshots
from pycaffe_dist.training.trainer import train


def names(folder: Path) -> list[str]:
    """Return the names of all files except a living solver's lock."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def of_iterations(*iterations: int) -> list[str]:
    kinds = ("caffemodel", "solverstate", "solverstate.json")
    return sorted(f"tiny_iter_{iteration}.{kind}" for iteration in iterations for kind in kinds)


def flipped(data: bytes, at: int) -> bytes:
    """Return data with one bit changed."""
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


def spoil(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(flipped(data, len(data) // 2))


def as_format_1(path: Path) -> None:
    """Write a companion as the first versions of pcaffe did."""
    values = json.loads(path.read_bytes())
    del values["crc32"], values["launch"]
    path.write_bytes(json.dumps({**values, "format": 1}, indent=1).encode())


def weights_in(path: Path) -> np.ndarray:
    (layer,) = [layer for layer in load_weights(path) if layer.name == "ip"]
    return layer.blobs[0]


def fail_to_write(monkeypatch, iterations: tuple[int, ...]) -> None:
    """Make the disk seem full whenever the weights of these iterations are written."""
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


def test_a_snapshot_that_cannot_be_read_back_does_not_count(tmp_path, monkeypatch):
    solver = tiny_solver(tmp_path)
    solver.snapshot()
    before = {path: path.read_bytes() for path in tmp_path.glob("*.*[!k]")}
    monkeypatch.setattr(atomic, "checksum", lambda path: atomic.Checksum(1, 2))
    with pytest.raises(SnapshotError, match=r"tiny_iter_0\.caffemodel: cannot be written: Input"):
        solver.snapshot()
    assert {path: path.read_bytes() for path in tmp_path.glob("*.*[!k]")} == before
    assert names(tmp_path) == of_iterations(0)


@pytest.mark.parametrize("format", ["BINARYPROTO", "HDF5"])
def test_training_does_not_change_a_snapshot_while_it_is_written(tmp_path, monkeypatch, format):
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
    assert not list(tmp_path.glob("tiny_iter_*"))
    may_write.set()
    solver.close()
    suffix = ".h5" if format == "HDF5" else ""
    path = tmp_path / f"tiny_iter_2.caffemodel{suffix}"
    np.testing.assert_array_equal(weights_in(path), weights)
    for mine, theirs in zip(
        load_state(tmp_path / f"tiny_iter_2.solverstate{suffix}").history, history, strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)


def test_old_snapshots_are_removed_when_the_new_one_is_safe(tmp_path, monkeypatch):
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
    solver.step(1)  # iteration 5 again: it replaces the old one
    solver.close()
    assert names(tmp_path) == sorted(others + of_iterations(4, 5))


def test_weights_that_are_not_finite_replace_no_good_ones(tmp_path):
    solver = tiny_solver(tmp_path, keep=1)
    solver.snapshot()
    solver.net.parameters[0].blob.data[0, 0] = np.inf
    solver.state.iteration = 1
    with pytest.raises(SnapshotError, match="weights of layer 'ip' are NaN or infinite"):
        solver.snapshot()
    assert names(tmp_path) == of_iterations(0)


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    (tmp_path / ".tiny_iter_3.caffemodel.0123abcd.tmp").touch()
    (tmp_path / ".other_iter_3.caffemodel.0123abcd.tmp").touch()
    tiny_solver(tmp_path).snapshot()
    assert names(tmp_path) == sorted([".other_iter_3.caffemodel.0123abcd.tmp", *of_iterations(0)])


def test_the_newest_is_not_always_the_highest(tmp_path):
    """A new run first overwrites an older run's lower iterations."""
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


@pytest.mark.parametrize("keep", [0, 2])
def test_a_clock_that_was_set_back_does_not_change_the_order(tmp_path, monkeypatch, keep):
    solver = tiny_solver(tmp_path, "snapshot: 2", keep=keep)
    solver.step(4)
    solver.close()
    real = time.time
    monkeypatch.setattr(catalog.time, "time", lambda: real() - 86400)
    for path in tmp_path.glob("tiny_iter_2*"):
        os.utime(path, (real(), real()))
    solver = tiny_solver(tmp_path, "snapshot: 2", keep=keep)
    solver.restore(catalog.latest(f"{tmp_path}/tiny").state)
    solver.step(4)
    solver.close()
    found = [snapshot.iteration for snapshot in catalog.snapshots(f"{tmp_path}/tiny")]
    assert found == ([8, 6] if keep else [8, 6, 4, 2])
    assert catalog.latest(f"{tmp_path}/tiny").iteration == 8


def test_the_newest_snapshot_is_never_pruned(tmp_path):
    """Even if other files have any times, and a companion cannot be read."""
    tiny_solver(tmp_path, "snapshot: 2").solve()
    newest = catalog.place(f"{tmp_path}/tiny", 2, False)
    newest.companion.unlink()
    os.utime(newest.state, (0, 0))
    catalog.prune(f"{tmp_path}/tiny", 1, newest)
    assert names(tmp_path) == ["tiny_iter_2.caffemodel", "tiny_iter_2.solverstate"]


def test_snapshots_of_older_versions_are_older_than_ours(tmp_path, monkeypatch):
    tiny_solver(tmp_path, "snapshot: 4").solve()
    for path in tmp_path.glob("*.json"):
        as_format_1(path)
    real = time.time
    monkeypatch.setattr(catalog.time, "time", lambda: real() - 86400)
    solver = tiny_solver(tmp_path, "snapshot: 1")
    solver.restore(f"{tmp_path}/tiny_iter_4.solverstate")
    solver.step(1)
    solver.close()
    found = [snapshot.iteration for snapshot in catalog.snapshots(f"{tmp_path}/tiny")]
    assert found == [5, 8, 4]


@pytest.mark.parametrize("format", ["BINARYPROTO", "HDF5"])
@pytest.mark.parametrize("companion", ["whole", "none"])
def test_a_state_without_weights_is_refused(tmp_path, format, companion):
    """Caffe goes on with random weights."""
    tiny_solver(tmp_path, f"snapshot_format: {format}").solve()
    path = tmp_path / f"tiny_iter_8.solverstate{'.h5' * (format == 'HDF5')}"
    if format == "HDF5":
        with h5py.File(path, "r+") as file:
            del file["learned_net"]
    else:
        data = path.read_bytes()
        at = data.index(b"\x12")  # the tag of learned_net
        path.write_bytes(data[:at] + b"\x32" + data[at + 1 :])
    if companion == "none":
        Path(f"{path}.json").unlink()
    words = {"whole": "is damaged or of another run", "none": "names no weights to resume from"}
    with pytest.raises(SnapshotError, match=f"^{path}: {words[companion]}"):
        tiny_solver(tmp_path).restore(str(path))


def test_a_state_that_names_other_weights_is_refused(tmp_path):
    """One bit changes one file's name to another's."""
    solver = tiny_solver(tmp_path, "snapshot: 2")
    solver.snapshot()
    solver.solve()
    path = tmp_path / "tiny_iter_8.solverstate"
    path.write_bytes(path.read_bytes().replace(b"tiny_iter_8", b"tiny_iter_0"))
    with pytest.raises(SnapshotError, match=f"^{path}: is damaged or of another run"):
        tiny_solver(tmp_path).restore(str(path))


def test_a_damaged_companion_leads_to_the_snapshot_before(tmp_path, caplog):
    tiny_solver(tmp_path, "snapshot: 2").solve()
    path = tmp_path / "tiny_iter_8.solverstate.json"
    whole = path.read_bytes()
    damaged = [whole[:at] for at in range(0, len(whole), 97)]
    damaged += [flipped(whole, at) for at in range(0, len(whole), 11)]
    damaged += [b"[" * 100_000, b"{}", b"[]", b"3"]
    for data in damaged:
        path.write_bytes(data)
        caplog.clear()
        assert catalog.latest(f"{tmp_path}/tiny").iteration == 6
        (line,) = [record.getMessage() for record in caplog.records]
        assert line.startswith(f"Skipping the snapshot of iteration 8: {path}: is ")
        assert "\n" not in line
        with pytest.raises(SnapshotError, match="training resumes as Caffe does"):
            tiny_solver(tmp_path).restore(f"{tmp_path}/tiny_iter_8.solverstate")


def test_companions_of_older_versions_are_read(tmp_path):
    tiny_solver(tmp_path, "snapshot: 2").solve()
    path = tmp_path / "tiny_iter_6.solverstate.json"
    as_format_1(path)
    assert companions.load(path).iteration == 6
    solver = tiny_solver(tmp_path)
    solver.restore(f"{tmp_path}/tiny_iter_6.solverstate")
    assert solver.state.losses.go_on
    values = json.loads(path.read_bytes())
    for name in (*values, "losses"):
        broken = json.loads(path.read_bytes())
        if name == "losses":
            del broken["by_rank"][0]["losses"]
        elif name not in ("plan",):
            broken[name] = None
        path.write_bytes(json.dumps(broken).encode())
        if broken != values:
            with pytest.raises(SnapshotError, match="training resumes as Caffe does"):
                companions.load(path)
        path.write_bytes(json.dumps(values).encode())


def test_a_companion_of_another_net_leads_to_one_line(tmp_path):
    tiny_solver(tmp_path, "snapshot: 2").solve()
    solver = tiny_solver(tmp_path)
    about = companions.load(tmp_path / "tiny_iter_6.solverstate.json")
    random = about.by_rank[0]["train"]["drop"]["random"]
    random[next(iter(random))] = {"bit_generator": "none"}
    with pytest.raises(SnapshotError, match="what it says of layer 'drop' does not fit"):
        resuming.go_on(about, solver.state, solver.net, solver.test_nets, solver.cluster)


def test_layers_that_start_again_are_named(tmp_path, caplog):
    tiny_solver(tmp_path).solve()
    (tmp_path / "tiny_iter_8.solverstate.json").unlink()
    path = tmp_path / "tiny_iter_8.caffemodel"
    path.write_bytes(path.read_bytes().replace(b"\x0a\x02ip", b"\x0a\x02iq"))
    tiny_solver(tmp_path).restore(f"{tmp_path}/tiny_iter_8.solverstate")
    assert f"{path} has no weights of layer(s) ip: they start anew" in caplog.text


def test_weights_of_another_snapshot_are_not_taken_for_the_states(tmp_path):
    tiny_solver(tmp_path, "snapshot: 2").solve()
    weights = tmp_path / "tiny_iter_8.caffemodel"
    weights.write_bytes((tmp_path / "tiny_iter_6.caffemodel").read_bytes())
    with pytest.raises(SnapshotError, match=f"^{weights}: is damaged or of another run"):
        tiny_solver(tmp_path).restore(f"{tmp_path}/tiny_iter_8.solverstate")


def test_snapshots_of_an_earlier_launch_do_not_count_for_the_newest_of_a_launch(
    tmp_path, monkeypatch, caplog
):
    tiny_solver(tmp_path, "snapshot: 2").solve()
    param = tiny_param(tmp_path)
    with pytest.raises(UsageError, match="is for runs that pcaffe launch has started"):
        snapshots.resolve(param, "latest@launch")
    monkeypatch.setenv("PCAFFE_JOB", "mine.0")
    assert snapshots.resolve(param, "latest@launch") == ""
    assert snapshots.resolve(param, "latest@launch,other.solverstate") == "other.solverstate"
    solver = tiny_solver(tmp_path, "snapshot: 2")
    solver.step(5)
    solver.close()
    monkeypatch.setenv("PCAFFE_JOB", "mine.1")
    assert snapshots.resolve(param, "latest@launch").endswith("tiny_iter_4.solverstate")
    spoil(tmp_path / "tiny_iter_4.solverstate.json")
    assert snapshots.resolve(param, "latest@launch").endswith("tiny_iter_2.solverstate")
    assert "Skipping the snapshot of iteration 4: " in caplog.text


def test_all_arrays_are_copied_and_shared_ones_only_once():
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
def test_weights_on_the_command_line_replace_the_solvers_own(tmp_path, caplog, asked, name, words):
    tiny_solver(tmp_path, "snapshot: 4").solve()
    file = tmp_path / "solver.prototxt"
    file.write_text(text.to_text(tiny_param(tmp_path, "weights: 'missing.caffemodel'")))
    path = str(tmp_path / name)
    options = {asked: (path,) if asked == "weights" else path}
    with caplog.at_level(logging.INFO, "pcaffe"):
        train(TrainOptions(str(file), **options), lambda: Action.NONE)
    lines = [record.getMessage() for record in caplog.records]
    assert lines.index(f"{words} {path}") < lines.index("Starting Optimization")
    # For the solver, and for the command.
    assert lines[-2:] == ["Optimization Done."] * 2
