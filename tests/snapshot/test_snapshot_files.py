"""Snapshots: Caffe's own files load, ours have the same layout, and no file is ever incomplete."""

from __future__ import annotations

import random
import resource
import signal
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest

from pycaffe_dist import atomic
from pycaffe_dist.errors import SnapshotError
from pycaffe_dist.schema import binary, caffe_pb2
from pycaffe_dist.snapshot.caffemodel import LayerWeights, load_weights, save_weights
from pycaffe_dist.snapshot.solverstate import SolverStateData, load_state, save_state

SOLVER = Path(__file__).resolve().parents[1] / "golden" / "solver"


def _assert_same(left, right):
    assert len(left) == len(right)
    for a, b in zip(left, right):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


def _layers(with_diffs: bool = False) -> list[LayerWeights]:
    rng = np.random.default_rng(0)
    shapes = {"data": [], "conv/a": [(4, 3, 2, 2), (4,)], "conv": [(1,)]}
    layers = []
    for name, dims in shapes.items():
        blobs = [rng.standard_normal(shape, np.float32) for shape in dims]
        diffs = [blob * 2 for blob in blobs] if with_diffs else None
        layers.append(LayerWeights(name, "Convolution", blobs, diffs))
    return layers


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_caffes_two_formats_hold_the_same(name):
    from_binary = {w.name: w for w in load_weights(SOLVER / f"{name}_iter_10.caffemodel")}
    from_hdf5 = {w.name: w for w in load_weights(SOLVER / f"{name}_iter_10.caffemodel.h5")}
    assert set(from_binary) == set(from_hdf5)
    assert from_binary["conv1"].type == "Convolution"
    assert [blob.shape for blob in from_binary["conv1"].blobs] == [(6, 2, 3, 3), (6,)]
    for layer, weights in from_binary.items():
        _assert_same(weights.blobs, from_hdf5[layer].blobs)
    first = load_state(SOLVER / f"{name}_iter_10.solverstate")
    second = load_state(SOLVER / f"{name}_iter_10.solverstate.h5")
    assert (first.iteration, first.current_step) == (second.iteration, second.current_step)
    assert first.iteration == 10
    assert second.learned_net == f"{first.learned_net}.h5" == f"{name}_iter_10.caffemodel.h5"
    assert len(first.history) == {"sgd": 6, "adam": 12}[name]
    _assert_same(first.history, second.history)


def test_every_state_of_caffe_loads():
    states = sorted(SOLVER.glob("*.solverstate"))
    assert len(states) > 10
    for path in states:
        assert load_state(path).iteration == 10
        assert load_weights(path.with_suffix(".caffemodel"))


def test_binary_weights_equal_caffes_message(tmp_path):
    source = SOLVER / "sgd_iter_10.caffemodel"
    theirs = caffe_pb2.NetParameter.FromString(source.read_bytes())
    layers = [
        LayerWeights(p.name, p.type, weights.blobs, param=p)
        for p, weights in zip(theirs.layer, load_weights(source))
    ]
    path = tmp_path / "ours.caffemodel"
    save_weights(path, theirs.name, layers)
    assert caffe_pb2.NetParameter.FromString(path.read_bytes()) == theirs


def _shape_of_file(path: Path) -> dict[str, object]:
    found: dict[str, object] = {}

    def note(name, item):
        found[name] = "group"
        if isinstance(item, h5py.Dataset):
            kind = item.id.get_type()
            found[name] = (item.shape, item.chunks, kind.encode())

    with h5py.File(path) as file:
        file.visititems(note)
    return found


def test_hdf5_files_are_laid_out_like_caffes(tmp_path):
    weights = SOLVER / "adam_iter_10.caffemodel.h5"
    save_weights(tmp_path / "ours.caffemodel.h5", "net", load_weights(weights))
    assert _shape_of_file(tmp_path / "ours.caffemodel.h5") == _shape_of_file(weights)
    state = SOLVER / "adam_iter_10.solverstate.h5"
    save_state(tmp_path / "ours.solverstate.h5", load_state(state))
    assert _shape_of_file(tmp_path / "ours.solverstate.h5") == _shape_of_file(state)
    with h5py.File(tmp_path / "ours.solverstate.h5") as ours:
        assert ours["learned_net"][()] == b"adam_iter_10.caffemodel.h5"


@pytest.mark.parametrize("with_diffs", [False, True])
@pytest.mark.parametrize("name", ["net.caffemodel", "net.caffemodel.h5"])
def test_weights_survive(tmp_path, name, with_diffs):
    layers = _layers(with_diffs)
    save_weights(tmp_path / name, "net", layers)
    loaded = {weights.name: weights for weights in load_weights(tmp_path / name)}
    assert sorted(loaded) == ["conv", "conv/a", "data"]
    for layer in layers:
        _assert_same(layer.blobs, loaded[layer.name].blobs)
        if with_diffs and layer.blobs:
            _assert_same(layer.diffs, loaded[layer.name].diffs)
        else:
            assert not loaded[layer.name].diffs
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_shared_blobs_are_left_to_their_owner_in_hdf5(tmp_path):
    blobs = [np.ones(2, np.float32), np.zeros(3, np.float32)]
    path = tmp_path / "net.h5"
    save_weights(path, "net", [LayerWeights("tied", "Scale", blobs, shared=frozenset({0}))])
    (weights,) = load_weights(path)
    _assert_same(weights.blobs, [None, blobs[1]])


@pytest.mark.parametrize("name", ["s.solverstate", "s.solverstate.h5"])
def test_states_survive(tmp_path, name):
    history = [np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(1, np.float64)] * 6
    save_state(tmp_path / name, SolverStateData(7, "a folder/n\u00e9t.caffemodel", 3, history))
    state = load_state(tmp_path / name)
    assert (state.iteration, state.learned_net, state.current_step) == (
        7, "a folder/n\u00e9t.caffemodel", 3,
    )  # fmt: skip
    _assert_same(state.history, history)


@pytest.mark.parametrize("load", [load_weights, load_state])
@pytest.mark.parametrize(
    "name",
    ["sgd_iter_10.caffemodel", "sgd_iter_10.caffemodel.h5", "sgd_iter_10.solverstate",
     "sgd_iter_10.solverstate.h5"],
)  # fmt: skip
def test_cut_off_and_wrong_files(tmp_path, load, name):
    data = (SOLVER / name).read_bytes()
    path = tmp_path / "file"
    for part in (0, 20, len(data) // 2, len(data) - 10):
        path.write_bytes(data[:part])
        with pytest.raises(SnapshotError, match=f"^{path}: "):
            load(path)
    right = "caffemodel" if load is load_weights else "solverstate"
    if right not in name:
        path.write_bytes(data)
        with pytest.raises(SnapshotError, match=r"expected|is not a"):
            load(path)
    with pytest.raises(SnapshotError, match="no such file"):
        load(tmp_path / "gone")


@pytest.mark.parametrize("load", [load_weights, load_state])
def test_hdf5_files_with_any_bit_changed_load_or_lead_to_one_line(tmp_path, load):
    name = "caffemodel" if load is load_weights else "solverstate"
    data = (SOLVER / f"sgd_iter_10.{name}.h5").read_bytes()
    path = tmp_path / "file"
    rng = random.Random(3)
    errors = 0
    for _ in range(300):
        at, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
        path.write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
        try:
            load(path)
        except SnapshotError as error:
            assert str(error).startswith(f"{path}: ") and "\n" not in str(error)
            errors += 1
    assert errors > 20


def _misshaped_states():
    def no_text(file):
        del file["learned_net"]
        file["learned_net"] = np.bytes_(b"\xff\xfe")

    def a_group(file):
        del file["iter"]
        file.create_group("iter")

    def no_group(file):
        del file["history"]
        file["history"] = 3

    def texts(file):
        del file["history/0"]
        file["history/0"] = [b"one", b"two"]

    def empty(file):
        del file["iter"]
        file["iter"] = np.zeros(0, np.int32)

    def negative(file):
        file["iter"][0] = -5

    return [no_text, a_group, no_group, texts, empty, negative]


@pytest.mark.parametrize("change", _misshaped_states(), ids=lambda change: change.__name__)
def test_malformed_hdf5_states(tmp_path, change):
    path = tmp_path / "s.solverstate.h5"
    path.write_bytes((SOLVER / "sgd_iter_10.solverstate.h5").read_bytes())
    with h5py.File(path, "r+") as file:
        change(file)
    with pytest.raises(SnapshotError, match=f"^{path}: ") as caught:
        load_state(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [b"a\0b", b"a\xff"])
def test_a_state_with_an_invalid_path_of_its_weights(tmp_path, name):
    path = tmp_path / "s.solverstate"
    save_state(path, SolverStateData(7, "abc"[: len(name)], 3, []))
    data = path.read_bytes()
    path.write_bytes(data.replace(b"abc"[: len(name)], name))
    with pytest.raises(SnapshotError, match=f"^{path}: is damaged: its learned_net is "):
        load_state(path)


def test_a_blob_that_does_not_fit_its_shape_names_its_layer(tmp_path):
    net = caffe_pb2.NetParameter()
    net.layer.add(name="conv9").blobs.add(shape={"dim": [2, 2]}, data=[1, 2, 3])
    path = tmp_path / "net.caffemodel"
    path.write_bytes(net.SerializeToString())
    with pytest.raises(SnapshotError, match="layer 'conv9': a blob of shape 2x2 holds 3 values"):
        load_weights(path)


def test_too_large_for_a_binary_file(tmp_path, monkeypatch):
    monkeypatch.setattr(binary, "MAX_BYTES", 100)
    layers = _layers()
    with pytest.raises(SnapshotError, match="set snapshot_format: HDF5"):
        save_weights(tmp_path / "net.caffemodel", "net", layers)
    with pytest.raises(SnapshotError, match="set snapshot_format: HDF5"):
        save_state(tmp_path / "s", SolverStateData(1, "", 0, layers[1].blobs))
    save_weights(tmp_path / "net.caffemodel.h5", "net", layers)


@contextmanager
def _full_disk(size: int):
    """Limit the size of files, as a full disk does."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("name", ["net.caffemodel", "net.caffemodel.h5"])
def test_a_full_disk_leaves_the_old_file(tmp_path, name):
    path = tmp_path / name
    save_weights(path, "net", _layers())
    before = path.read_bytes()
    large = [LayerWeights("ip", "InnerProduct", [np.ones((1000, 1000), np.float32)])]
    with _full_disk(100_000), pytest.raises(SnapshotError, match=f"{path}: cannot be written"):
        save_weights(path, "net", large)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    save_weights(path, "net", large)
    assert load_weights(path)[0].name == "ip"


def test_a_failed_sync_leaves_nothing(tmp_path, monkeypatch):
    def fail(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic.os, "fsync", fail)
    with pytest.raises(SnapshotError, match="No space left on device"):
        atomic.write(tmp_path / "x", [b"da", b"ta"])
    assert list(tmp_path.iterdir()) == []


def test_missing_folder(tmp_path):
    for name in ("gone/net.caffemodel", "gone/net.caffemodel.h5"):
        with pytest.raises(SnapshotError, match=r"folder '.*gone' does not exist"):
            save_weights(tmp_path / name, "net", _layers())


def test_files_get_ordinary_permissions(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    atomic.write(tmp_path / "x", [b"da", b"ta"])
    assert (tmp_path / "x").read_bytes() == b"data"
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "plain").stat().st_mode
