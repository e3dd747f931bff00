"""Rows of HDF5 files: one line names rows that cannot be used."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from pycaffe_dist.data.hdf5_rows import HDF5Rows
from pycaffe_dist.errors import DataError


def _write(path: Path, data: np.ndarray, label: np.ndarray, name: str = "label", **options) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=data, **options)
        file[name] = label


def _rows(folder: Path) -> HDF5Rows:
    (folder / "list.txt").write_text(f"{folder}/good.h5\r\n{folder}/bad.h5\r\n")
    _write(folder / "good.h5", np.ones((5, 3, 4)), np.zeros(5))
    return HDF5Rows(str(folder / "list.txt"), ["data", "label"], False, 0)


BAD = {
    "lengths": ((np.ones((5, 3, 4)), np.zeros(4)), "different lengths"),
    "shape": ((np.ones((5, 1, 4)), np.zeros(5)), "(1, 4), ()], the first one of [(3, 4), ()]"),
    "name": ((np.ones((5, 3, 4)), np.zeros(5), "lable"), "no array 'label'; it has data, lable"),
    "words": ((np.array([b"a"] * 5), np.zeros(5)), "expected numbers in 'data'"),
}


@pytest.mark.parametrize("bad", BAD)
def test_arrays_that_do_not_fit(tmp_path, bad):
    arrays, words = BAD[bad]
    _write(tmp_path / "bad.h5", *arrays)
    with pytest.raises(DataError) as caught:
        _rows(tmp_path)
    assert f"{tmp_path}/bad.h5" in str(caught.value) and words in str(caught.value)


@pytest.mark.parametrize("bad", ["missing", "folder", "text", "cut off", "group"])
def test_files_that_are_no_hdf5(tmp_path, bad):
    file = tmp_path / "bad.h5"
    if bad == "folder":
        file.mkdir()
    elif bad == "text":
        file.write_text("hello")
    elif bad == "cut off":
        _write(file, np.ones((5, 3, 4)), np.zeros(5))
        file.write_bytes(file.read_bytes()[:-100])
    elif bad == "group":
        with h5py.File(file, "w") as content:
            content.create_group("data")
    with pytest.raises(DataError) as caught:
        _rows(tmp_path)
    message = str(caught.value)
    assert message.startswith(f"HDF5 file '{file}'") and "\n" not in message
    assert "Errno" not in message and "synchronously" not in message


def test_damage_found_while_reading(tmp_path):
    file = tmp_path / "bad.h5"
    _write(file, np.random.default_rng(0).random((5, 3, 4)), np.zeros(5), compression="gzip")
    with h5py.File(file) as content:
        begin = content["data"].id.get_chunk_info(0).byte_offset
    data = bytearray(file.read_bytes())
    data[begin + 20 : begin + 60] = bytes(40)
    file.write_bytes(data)
    rows = _rows(tmp_path)
    with pytest.raises(DataError, match=r"bad[.]h5' cannot be read: "):
        rows.take(np.arange(10), [np.empty((10, 3, 4)), np.empty(10)])
