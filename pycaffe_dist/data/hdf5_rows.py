"""Rows of HDF5 files as one endless stream: file after file, repeated, optionally shuffled."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np

from pycaffe_dist import limits
from pycaffe_dist.data_scripts import how_to_make
from pycaffe_dist.errors import DataError, PcaffeError

# The kinds of NumPy's types that are numbers.
_NUMBERS = "biuf"


class HDF5Rows:
    """The rows of the files in a list file, for some data sets of equal length.

    ``names`` are the data sets (the layer's tops).  The rows of one file at a time are in memory.
    With ``shuffle``, every epoch permutes the files and the rows within each.  The order depends on
    ``seed`` (drawn if None) and the epoch's number only, so ranks with one seed have the same
    order.  Raises DataError.
    """

    def __init__(self, list_file: str, names: list[str], shuffle: bool, seed: int | None):
        try:
            self.files = Path(list_file).read_text("utf-8", "surrogateescape").split()
        except OSError as error:
            hint = "" if Path(list_file).exists() else how_to_make(list_file)
            raise DataError(
                f"cannot read the list of HDF5 files '{list_file}': {error.strerror}{hint}"
            ) from error
        if not self.files:
            raise DataError(f"{list_file}: the list names no HDF5 file")
        self._names = names
        self._shuffle = shuffle
        self.seed = secrets.randbits(63) if seed is None else seed
        shapes = [self._look_at(file) for file in self.files]
        self._counts = np.array([of_file[0][0] for of_file in shapes])
        if not self._counts.sum():
            raise DataError(f"{list_file}: the HDF5 files have no rows")
        self.shapes = [shape[1:] for shape in shapes[0]]
        for file, of_file in zip(self.files, shapes):
            rows = [shape[1:] for shape in of_file]
            if rows != self.shapes:
                raise DataError(
                    f"HDF5 file '{file}' has rows of shapes {rows}, the first one of {self.shapes}"
                )
        self._loaded = -1
        self._arrays: list[np.ndarray] = []

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

    def _look_at(self, file: str) -> list[tuple[int, ...]]:
        """Return the shapes of a file's data sets, which have the same number of rows."""
        shapes = []
        with _opened(file) as content:
            for name in self._names:
                array = content.get(name)
                if not isinstance(array, h5py.Dataset) or not array.shape:
                    known = ", ".join(map(str, content))
                    raise DataError(f"HDF5 file '{file}' has no array '{name}'; it has {known}")
                if array.dtype.kind not in _NUMBERS:
                    raise DataError(
                        f"HDF5 file '{file}': expected numbers in '{name}', found {array.dtype}"
                    )
                excess = limits.excess_expanded(array.nbytes, array.id.get_storage_size())
                if excess:
                    raise DataError(f"HDF5 file '{file}': array '{name}' {excess}")
                shapes.append(array.shape)
        lengths = {name: shape[0] for name, shape in zip(self._names, shapes)}
        if len(set(lengths.values())) > 1:
            raise DataError(f"HDF5 file '{file}' has arrays of different lengths: {lengths}")
        return shapes

    def _load(self, index: int) -> list[np.ndarray]:
        if self._loaded != index:
            with _opened(self.files[index]) as content:
                self._arrays = [content[name][...] for name in self._names]
            self._loaded = index
        return self._arrays


@contextlib.contextmanager
def _opened(file: str) -> Iterator[h5py.File]:
    """Open an HDF5 file; the library's errors, also in the block, become `DataError`."""
    try:
        with open(file, "rb"), h5py.File(file, "r") as content:
            yield content
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        if isinstance(error, PcaffeError):
            raise
        # The library's message: the operation, and the reason in parentheses.
        words = getattr(error, "strerror", None) or str(error)
        reason = re.sub(r"^[^(]*\((.*)\)[^)]*$", r"\1", " ".join(words.split()))
        raise DataError(f"HDF5 file '{file}' cannot be read: {reason}") from error
