"""The snapshots of a prefix: which there are, which is the newest good one, which are too many."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pycaffe_dist.errors import SnapshotError
from pycaffe_dist.log import logger
from pycaffe_dist.snapshot import companion
from pycaffe_dist.snapshot.caffemodel import load_weights
from pycaffe_dist.snapshot.solverstate import load_state


@dataclass(frozen=True)
class Snapshot:
    """The paths of a snapshot's two files, as Caffe has them, and of their companion."""

    iteration: int
    weights: str
    state: str

    @property
    def companion(self) -> Path:
        """The path of what Caffe's files lack."""
        return companion.path_of(self.state)


def place(prefix: str, iteration: int, hdf5: bool) -> Snapshot:
    """Return where the snapshot after ``iteration`` iterations is."""
    stem, suffix = f"{prefix}_iter_{iteration}", ".h5" if hdf5 else ""
    return Snapshot(iteration, f"{stem}.caffemodel{suffix}", f"{stem}.solverstate{suffix}")


def snapshots(prefix: str) -> list[Snapshot]:
    """Return the snapshots of a prefix, the newest first; those of longer prefixes are others."""
    return sorted(_found(prefix), key=_age_key, reverse=True)


def _found(prefix: str) -> Iterator[Snapshot]:
    path = Path(prefix)
    pattern = re.compile(re.escape(path.name) + r"_iter_(\d+)\.solverstate(\.h5)?")
    with suppress(FileNotFoundError, NotADirectoryError):
        for name in os.listdir(path.parent):
            if match := pattern.fullmatch(name):
                yield place(prefix, int(match[1]), bool(match[2]))


def _age_key(snapshot: Snapshot) -> tuple[float, int]:
    """The time of writing, which copying may have taken from the file but not from the companion,
    and the iteration: a run that began anew writes over lower iterations than it finds."""
    with suppress(SnapshotError):
        known = companion.load(snapshot.companion)
        if known is not None:
            return known.written, snapshot.iteration
    with suppress(OSError):
        return os.stat(snapshot.state).st_mtime, snapshot.iteration
    return 0.0, snapshot.iteration


def find_weights(state_path: str, learned_net: str) -> str:
    """Return the weights' path: as the state says, or beside the state if both were moved."""
    beside = Path(state_path).parent / Path(learned_net).name
    if not Path(learned_net).exists() and beside.exists():
        return str(beside)
    return learned_net


def check(snapshot: Snapshot) -> None:
    """Raise SnapshotError, or another PcaffeError, unless the snapshot can be read whole."""
    if snapshot.companion.exists() and companion.of(snapshot.state, snapshot.weights):
        return
    state = load_state(snapshot.state)
    load_weights(find_weights(snapshot.state, state.learned_net))


def latest(prefix: str, since: float = 0.0) -> Snapshot | None:
    """Return the newest snapshot that is whole, None without any; warn of damaged ones.

    Those that were written before ``since`` (seconds since 1970) do not count.  Raises
    SnapshotError when there are snapshots but none is whole.
    """
    found = [snapshot for snapshot in snapshots(prefix) if _age_key(snapshot)[0] >= since]
    for snapshot in found:
        try:
            check(snapshot)
        except SnapshotError as error:
            logger.warning("Skipping the snapshot of iteration %d: %s", snapshot.iteration, error)
        else:
            return snapshot
    if found:
        raise SnapshotError(
            f"none of the {len(found)} snapshot(s) of prefix '{prefix}' is whole; "
            "to start anew, remove them or choose another snapshot_prefix"
        )
    return None


def prune(prefix: str, keep: int) -> None:
    """Remove all but the newest ``keep`` snapshots of a prefix.

    The state goes last: what a killed process has not removed is then found again.
    """
    for snapshot in snapshots(prefix)[keep:]:
        for path in (snapshot.weights, snapshot.companion, snapshot.state):
            try:
                Path(path).unlink(missing_ok=True)
            except OSError as error:
                logger.warning("%s: cannot be removed: %s", path, error.strerror)
