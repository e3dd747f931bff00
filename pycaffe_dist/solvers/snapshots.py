"""A solver's snapshots: which files, what goes into them, and how one continues from them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pycaffe_dist.errors import SnapshotError, UsageError
from pycaffe_dist.log import logger
from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.snapshot import solverstate

if TYPE_CHECKING:
    from pycaffe_dist.solvers.solver import Solver


def check_prefix(param: Any) -> None:
    """Raise an error now if the first snapshot would fail for want of a writable folder."""
    if not param.snapshot_prefix:
        raise UsageError("the solver has snapshot but no snapshot_prefix")
    folder = Path(param.snapshot_prefix).parent
    if not folder.is_dir():
        raise SnapshotError(
            f"cannot write to snapshot prefix '{param.snapshot_prefix}': "
            f"folder '{folder}' does not exist"
        )
    if not os.access(folder, os.W_OK):
        raise SnapshotError(
            f"cannot write to snapshot prefix '{param.snapshot_prefix}': "
            f"folder '{folder}' is not writable"
        )


def write(solver: Solver) -> str:
    """Write the weights, then the state that names them; return the weights' file name."""
    param = solver.param
    hdf5 = param.snapshot_format == caffe_pb2.SolverParameter.HDF5
    kind, suffix = ("HDF5", ".h5") if hdf5 else ("binary proto", "")
    stem = f"{param.snapshot_prefix}_iter_{solver.iteration}"
    model = f"{stem}.caffemodel{suffix}"
    logger.info("Snapshotting to %s file %s", kind, model)
    solver.net.save_weights(model, param.snapshot_diff)
    state = f"{stem}.solverstate{suffix}"
    logger.info("Snapshotting solver state to %s file %s", kind, state)
    solverstate.save_state(
        state,
        solverstate.SolverStateData(
            iteration=solver.iteration,
            learned_net=model,
            current_step=solver.learning_rate.current_step,
            history=solver.method.history,
        ),
    )
    return model


def restore(solver: Solver, path: str) -> None:
    """Continue ``solver`` from the state in ``path`` and the weights that it names.

    Everything is checked before anything is changed; raises SnapshotError or WeightsError.
    """
    state = solverstate.load_state(path)
    history = solver.method.history
    if len(state.history) != len(history):
        raise SnapshotError(
            f"{path}: the state has {len(state.history)} history blobs, this net and solver type "
            f"'{solver.param.type}' need {len(history)}"
        )
    for number, (theirs, ours) in enumerate(zip(state.history, history)):
        if theirs.size != ours.size:
            raise SnapshotError(
                f"{path}: history blob {number} has shape {theirs.shape}, expected {ours.shape}"
            )
    if state.learned_net:
        solver.net.load_weights(_find_model(path, state.learned_net))
    for theirs, ours in zip(state.history, history):
        ours[...] = theirs.reshape(ours.shape)
    solver.iteration = state.iteration
    solver.learning_rate.current_step = state.current_step
    logger.info("SGDSolver: restoring history")


def _find_model(state_path: str, learned_net: str) -> str:
    """Return the weights' path: as the state says, or beside the state if both were moved."""
    beside = Path(state_path).parent / Path(learned_net).name
    if not Path(learned_net).exists() and beside.exists():
        return str(beside)
    return learned_net
