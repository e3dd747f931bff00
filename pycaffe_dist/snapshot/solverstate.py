"""The states of solvers: .solverstate, a binary SolverState, and .solverstate.h5."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pycaffe_dist import atomic, hdf5
from pycaffe_dist.errors import SnapshotError
from pycaffe_dist.schema import binary, caffe_pb2, wire
from pycaffe_dist.schema.reading import is_hdf5

if TYPE_CHECKING:
    import h5py

_Path = str | os.PathLike[str]
_INT_MAX = 2**31 - 1


@dataclass(frozen=True)
class SolverStateData:
    """The state of a solver after ``iteration`` iterations.

    ``learned_net`` is the path of the weights, ``current_step`` counts the drops of the learning
    rate, ``history`` has the solver's arrays (such as momentum) in its own order.  If the weights
    there are means of ``averaged`` iterations, training goes on with ``weights``, one array for
    each parameter.
    """

    iteration: int
    learned_net: str
    current_step: int
    history: Sequence[np.ndarray]
    averaged: int = 0
    weights: Sequence[np.ndarray] = ()


def save_state(path: _Path, state: SolverStateData) -> None:
    """Write a state atomically, as HDF5 when the path ends in .h5.

    Raises SnapshotError.
    """
    with atomic.replacing(path) as new:
        fill_state(new, path, state)


def fill_state(new: Path, path: _Path, state: SolverStateData) -> None:
    """Write the state file ``path`` to ``new``, the path of `atomic.replacing`, and read it back.

    Raises OSError, or SnapshotError for a state too large for a binary file.
    """
    if os.fspath(path).endswith(".h5"):
        _fill_hdf5(new, state)
        return
    head = caffe_pb2.SolverState(
        iter=state.iteration, learned_net=state.learned_net, current_step=state.current_step
    )
    if state.averaged:
        head.averaged = state.averaged
    parts: list[wire.Part] = [head.SerializeToString()]
    for array in state.history:
        parts += wire.nested(head.HISTORY_FIELD_NUMBER, binary.blob_parts(array))
    for array in state.weights:
        parts += wire.nested(head.WEIGHTS_FIELD_NUMBER, binary.blob_parts(array))
    binary.check_size(path, parts)
    atomic.fill(new, parts)


def _fill_hdf5(new: Path, state: SolverStateData) -> None:
    arrays = {f"history/{index}": array for index, array in enumerate(state.history)}
    arrays |= {f"weights/{index}": array for index, array in enumerate(state.weights)}
    with hdf5.filling(new) as file:
        hdf5.write_int(file, "iter", state.iteration)
        hdf5.write_string(file, "learned_net", state.learned_net)
        hdf5.write_int(file, "current_step", state.current_step)
        if state.averaged:
            hdf5.write_int(file, "averaged", state.averaged)
        file.create_group("history")
        for name, array in arrays.items():
            file.create_dataset(name, data=array)
    hdf5.check(new, arrays)


def load_state(path: _Path) -> SolverStateData:
    """Return the state in a file of either kind, recognized by its contents.

    Raises SnapshotError.
    """
    state = _load_hdf5(path) if is_hdf5(path) else _load_binary(path)
    for name, value in (
        ("iter", state.iteration),
        ("current_step", state.current_step),
        ("averaged", state.averaged),
    ):
        if not 0 <= value <= _INT_MAX:
            raise SnapshotError(f"{os.fspath(path)}: is damaged: its {name} is {value}")
    if not isinstance(state.learned_net, str) or "\0" in state.learned_net:
        raise SnapshotError(
            f"{os.fspath(path)}: is damaged: its learned_net is {state.learned_net!r}, not a path"
        )
    return state


def _load_binary(path: _Path) -> SolverStateData:
    message = binary.read_solver_state(path)
    try:
        history, weights = (
            [binary.blob_to_array(blob) for blob in blobs]
            for blobs in (message.history, message.weights)
        )
    except SnapshotError as error:
        raise SnapshotError(f"{os.fspath(path)}: history or weights: {error}") from None
    return SolverStateData(
        iteration=message.iter,
        learned_net=message.learned_net,
        current_step=message.current_step,
        history=history,
        averaged=message.averaged,
        weights=weights,
    )


def _load_hdf5(path: _Path) -> SolverStateData:
    with hdf5.reading(path) as file:
        missing = [name for name in ("iter", "current_step", "history") if name not in file]
        if missing:
            raise SnapshotError(
                f"{os.fspath(path)}: has no /{missing[0]}, so it is not a .solverstate.h5"
            )
        learned_net = hdf5.read_string(file["learned_net"]) if "learned_net" in file else ""
        return SolverStateData(
            iteration=int(file["iter"][0]),
            learned_net=learned_net,
            current_step=int(file["current_step"][0]),
            history=_read_arrays(path, file["history"]),
            averaged=int(file["averaged"][0]) if "averaged" in file else 0,
            weights=_read_arrays(path, file["weights"]) if "weights" in file else [],
        )


def _read_arrays(path: _Path, group: h5py.Group) -> list[np.ndarray]:
    found = hdf5.read_numbered(group)
    gaps = [index for index, array in enumerate(found) if array is None]
    if gaps:
        raise SnapshotError(f"{os.fspath(path)}: {group.name}/{gaps[0]} is missing")
    return [array for array in found if array is not None]
