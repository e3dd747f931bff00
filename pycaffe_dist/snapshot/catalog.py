"""The snapshots of a prefix: finds them, chooses the newest good one, removes old ones."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pycaffe_dist.errors import SnapshotError
from pycaffe_dist.log import logger
from pycaffe_dist.snapshot import companion
from pycaffe_dist.snapshot.caffemodel import load_weights
from pycaffe_dist.snapshot.companion import Companion
from pycaffe_dist.snapshot.solverstate import load_state

# The minimum difference between two snapshots' times.
_LEAST_SECONDS = 0.001


@dataclass(frozen=True)
class Snapshot:
    """The paths of a snapshot's two Caffe files, and of their companion."""

    iteration: int
    weights: str
    state: str

    @property
    def companion(self) -> Path:
        """The path of the companion file."""
        return companion.path_of(self.state)


def place(prefix: str, iteration: int, hdf5: bool) -> Snapshot:
    """Return the paths of the snapshot after ``iteration`` iterations."""
    stem, suffix = f"{prefix}_iter_{iteration}", ".h5" if hdf5 else ""
    return Snapshot(iteration, f"{stem}.caffemodel{suffix}", f"{stem}.solverstate{suffix}")


def snapshots(prefix: str) -> list[Snapshot]:
    """Return the snapshots of exactly this prefix, the newest first."""
    return sorted(_found(prefix), key=_order, reverse=True)


def _found(prefix: str) -> Iterator[Snapshot]:
    path = Path(prefix)
    pattern = re.compile(re.escape(path.name) + r"_iter_(\d+)\.solverstate(\.h5)?")
    with suppress(FileNotFoundError, NotADirectoryError):
        for name in os.listdir(path.parent):
            if match := pattern.fullmatch(name):
                yield place(prefix, int(match[1]), bool(match[2]))


def _order(snapshot: Snapshot) -> tuple[float, int]:
    """Return a sort key that is larger for a newer snapshot.

    The iteration does not come first: a run that starts again writes lower iterations later.
    """
    known = _companion(snapshot)
    if known is not None:
        return known.written, snapshot.iteration
    with suppress(OSError):
        return os.stat(snapshot.state).st_mtime, snapshot.iteration
    return 0.0, snapshot.iteration


def _companion(snapshot: Snapshot) -> Companion | None:
    with suppress(SnapshotError):
        return companion.load(snapshot.companion)
    return None


def newest_time(prefix: str) -> float:
    """Return the time of the newest snapshot of a prefix, 0 without any."""
    return max((_order(snapshot)[0] for snapshot in _found(prefix)), default=0.0)


def time_after(newest: float) -> float:
    """Return the time for a new snapshot: now, or just after the newest snapshot's time."""
    return max(time.time(), newest + _LEAST_SECONDS)


def find_weights(state_path: str, learned_net: str) -> str:
    """Return the weights' path: from the state, or in the state's folder if both were moved."""
    beside = os.path.join(os.path.dirname(state_path), os.path.basename(learned_net))
    if not os.path.exists(learned_net) and os.path.exists(beside):
        return beside
    return learned_net


def weights_of(state_path: str, learned_net: str) -> tuple[str, Companion | None]:
    """Return the path of a state's weights, and the companion, if there is one.

    Raises SnapshotError when the companion shows that one of the files is damaged, and for a state
    that names no weights.  Caffe never writes such a state, but would continue with the net's own.
    """
    folder, name = os.path.split(state_path)
    beside = os.path.join(folder, name.replace(".solverstate", ".caffemodel"))
    weights = find_weights(state_path, learned_net) if learned_net else beside
    about = companion.of(state_path, weights, beside)
    if not learned_net:
        raise SnapshotError(
            f"{state_path}: names no weights to resume from (learned_net is empty): damaged"
        )
    return weights, about


def check(snapshot: Snapshot) -> None:
    """Raise SnapshotError, or another PcaffeError, unless the whole snapshot can be read."""
    if snapshot.companion.exists() and companion.of(snapshot.state, snapshot.weights):
        return
    state = load_state(snapshot.state)
    load_weights(weights_of(snapshot.state, state.learned_net)[0])


def latest(prefix: str, launch: str = "") -> Snapshot | None:
    """Return the newest undamaged snapshot, None if there are no snapshots; warn of damaged ones.

    With a ``launch``, only its snapshots count.  Raises SnapshotError when all are damaged.
    """
    found = snapshots(prefix)
    if launch:
        found = [snapshot for snapshot in found if _is_of(snapshot, launch)]
    for snapshot in found:
        try:
            check(snapshot)
        except SnapshotError as error:
            _say_skipped(snapshot, error)
        else:
            return snapshot
    if found:
        raise SnapshotError(
            f"none of the {len(found)} snapshot(s) of prefix '{prefix}' is whole; "
            "to start anew, remove them or choose another snapshot_prefix"
        )
    return None


def _is_of(snapshot: Snapshot, launch: str) -> bool:
    try:
        known = companion.load(snapshot.companion)
    except SnapshotError as error:
        _say_skipped(snapshot, error)
        return False
    return known is not None and known.launch == launch


def _say_skipped(snapshot: Snapshot, error: SnapshotError) -> None:
    logger.warning("Skipping the snapshot of iteration %d: %s", snapshot.iteration, error)


def prune(prefix: str, keep: int, newest: Snapshot) -> None:
    """Remove a prefix's snapshots except ``newest``, just written, and the next ``keep - 1``.

    The state is removed last, so a later call finds the rest if this process is killed.
    """
    others = [snapshot for snapshot in snapshots(prefix) if snapshot != newest]
    for snapshot in others[keep - 1 :]:
        for path in (snapshot.weights, snapshot.companion, snapshot.state):
            try:
                Path(path).unlink(missing_ok=True)
            except OSError as error:
                logger.warning("%s: cannot be removed: %s", path, error.strerror)
