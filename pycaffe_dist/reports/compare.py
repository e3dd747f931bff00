"""The differences between two files of weights or two solver states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pycaffe_dist.errors import UsageError
from pycaffe_dist.snapshot.caffemodel import load_weights
from pycaffe_dist.snapshot.solverstate import load_state
from pycaffe_dist.table import aligned


@dataclass(frozen=True)
class Difference:
    """A blob's largest difference, absolute and relative to the largest value.

    ``note`` has the reason if there is none, such as different shapes.
    """

    name: str
    largest: float = 0.0
    relative: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """Differences, and how many of the blobs that were compared are the same."""

    differences: tuple[Difference, ...]
    compared: int
    same: int

    def table(self) -> str:
        """Return a line for each difference, and the sum."""
        last = f"{self.same} of {self.compared} blobs are the same"
        return f"{differences_table(self.differences)}\n{last}"


def differences_table(differences: Sequence[Difference]) -> str:
    """Return a line for each difference."""
    rows = [
        (row.name, row.note or f"largest {row.largest:.3g}, relative {row.relative:.3g}")
        for row in differences
    ]
    return aligned(rows, left=(0, 1))


def compare(first: str, second: str, tolerance: float = 0.0, by_blob: bool = False) -> Comparison:
    """Compare two .caffemodel or two .solverstate files, by layer or ``by_blob``.

    Blobs are the same up to the relative difference ``tolerance``.  Binary and HDF5 files may be
    mixed.  Raises PcaffeError for unreadable files, and UsageError for weights with a solver state.
    """
    found = _differences(first, second)
    same = sum(not blob.note and blob.relative <= tolerance for blob in found)
    return Comparison(tuple(found if by_blob else worst_per_layer(found)), len(found), same)


def _differences(first: str, second: str) -> list[Difference]:
    kinds = {_is_state(path) for path in (first, second)}
    if len(kinds) > 1:
        raise UsageError(f"cannot compare weights with a solver state: {first}, {second}")
    read = _state_blobs if kinds.pop() else _weight_blobs
    one, two = read(first), read(second)
    names = list(dict.fromkeys([*one, *two]))
    return [difference(name, one.get(name), two.get(name)) for name in names]


def worst_per_layer(differences: Sequence[Difference]) -> list[Difference]:
    """Return each layer's largest difference (or note), in the order of the layers."""
    worst: dict[str, Difference] = {}
    for difference in differences:
        layer = difference.name.rpartition("[")[0] or difference.name
        known = worst.get(layer)
        if known is None or difference.note or difference.largest > known.largest:
            worst[layer] = Difference(
                layer, difference.largest, difference.relative, difference.note
            )
    return list(worst.values())


def _is_state(path: str) -> bool:
    return path.endswith((".solverstate", ".solverstate.h5"))


def _weight_blobs(path: str) -> dict[str, np.ndarray]:
    return {
        f"{layer.name}[{index}]": blob
        for layer in load_weights(path)
        for index, blob in enumerate(layer.blobs)
        if blob is not None
    }


def _state_blobs(path: str) -> dict[str, np.ndarray]:
    state = load_state(path)
    kinds = (("history", state.history), ("weights", state.weights))
    return {f"{kind}[{i}]": blob for kind, blobs in kinds for i, blob in enumerate(blobs)}


def difference(name: str, one: np.ndarray | None, two: np.ndarray | None) -> Difference:
    """Return the difference of two arrays of the same size; None stands for a missing one."""
    if one is None or two is None:
        return Difference(name, note=f"only in the {'second' if one is None else 'first'} file")
    if one.size != two.size:
        return Difference(name, note=f"shapes {one.shape} and {two.shape}")
    a, b = (np.asarray(blob, np.float64).reshape(-1) for blob in (one, two))
    if not np.array_equal(np.isfinite(a), np.isfinite(b)) or not np.isfinite(a).all():
        finite = [int(np.isfinite(values).sum()) for values in (a, b)]
        return Difference(name, note=f"{finite[0]} and {finite[1]} of {a.size} values are finite")
    largest = float(np.abs(a - b).max(initial=0))
    scale = float(max(np.abs(a).max(initial=0), np.abs(b).max(initial=0)))
    return Difference(name, largest, largest / scale if scale else 0.0)
