"""Rows of HDF5 files as one endless stream: file after file, over and over, shuffled if asked."""

from __future__ import annotations

import secrets
from pathlib import Path

import h5py
import numpy as np

from pycaffe_dist.errors import DataError


class HDF5Rows:
    """The rows of the files that a list file names, for some data sets of equal length.

    ``names`` are the data sets (the layer's tops).  The rows of one file at a time are in memory.
    With ``shuffle``, every epoch permutes the files and the rows within each, from ``seed`` (one
    is drawn if it is None) and the epoch's number alone, so that ranks with one seed agree on the
    order.  Raises DataError.
    """

    def __init__(self, list_file: str, names: list[str], shuffle: bool, seed: int | None):
        try:
            self.files = Path(list_file).read_text().split()
        except OSError as error:
            raise DataError(f"cannot read the list of HDF5 files: {error}") from None
        if not self.files:
            raise DataError(f"{list_file}: the list names no HDF5 file")
        self._names = names
        self._shuffle = shuffle
        self.seed = secrets.randbits(63) if seed is None else seed
        self._counts = np.array([self._count_rows(file) for file in self.files])
        if not self._counts.sum():
            raise DataError(f"{list_file}: the HDF5 files have no rows")
        self._loaded = -1
        self._arrays: list[np.ndarray] = []
        self.shapes: list[tuple[int, ...]] = []
        self.shapes = [array.shape[1:] for array in self._load(0)]

    def take(self, positions: np.ndarray, out: list[np.ndarray]) -> None:
        """Copy the rows at ascending stream ``positions`` into ``out``, one array per data set."""
        total = int(self._counts.sum())
        for epoch in np.unique(positions // total):
            order = self._permutation(int(epoch), len(self.files))
            ends = np.cumsum(self._counts[order])
            mine = np.flatnonzero(positions // total == epoch)
            offsets = positions[mine] - epoch * total
            places = np.searchsorted(ends, offsets, side="right")
            for place in np.unique(places):
                file = int(order[place])
                here = places == place
                rows = offsets[here] - (ends[place] - self._counts[file])
                rows = self._permutation(int(epoch), int(self._counts[file]), file + 1)[rows]
                for target, array in zip(out, self._load(file)):
                    target[mine[here]] = array[rows]

    def _permutation(self, epoch: int, length: int, stream: int = 0) -> np.ndarray:
        if not self._shuffle:
            return np.arange(length)
        return np.random.default_rng([self.seed, epoch, stream]).permutation(length)

    def _open(self, file: str) -> h5py.File:
        try:
            return h5py.File(file, "r")
        except OSError as error:
            raise DataError(f"cannot open HDF5 file {file}: {error}") from None

    def _count_rows(self, file: str) -> int:
        with self._open(file) as content:
            for name in self._names:
                if name not in content or content[name].ndim == 0:
                    known = ", ".join(content)
                    raise DataError(f"{file}: no data set '{name}' with rows; it has {known}")
            lengths = {name: len(content[name]) for name in self._names}
        if len(set(lengths.values())) > 1:
            raise DataError(f"{file}: data sets of different lengths: {lengths}")
        return lengths[self._names[0]]

    def _load(self, index: int) -> list[np.ndarray]:
        if self._loaded != index:
            file = self.files[index]
            try:
                with self._open(file) as content:
                    self._arrays = [content[name][...] for name in self._names]
            except OSError as error:
                raise DataError(f"{file}: {error}") from None
            self._loaded = index
            self._check_shapes(file)
        return self._arrays

    def _check_shapes(self, file: str) -> None:
        shapes = [array.shape[1:] for array in self._arrays]
        if self.shapes and shapes != self.shapes:
            raise DataError(f"{file}: rows of shapes {shapes}, the first file has {self.shapes}")
