"""What Caffe's solver state lacks for going on exactly, in a JSON file beside it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pycaffe_dist.errors import SnapshotError
from pycaffe_dist.log import logger
from pycaffe_dist.snapshot.atomic import Checksum, checksum

_Path = str | os.PathLike[str]
FORMAT = 1


@dataclass(frozen=True)
class Companion:
    """A run's surroundings at a snapshot.

    ``written`` is the time of the snapshot in seconds since 1970; ``weights`` and ``state`` are the
    checksums of the two files that this one belongs to.  ``batch`` is the number of samples of an
    iteration on all ``ranks`` together, ``tested`` how many batches each test net has had.
    ``learning_rate`` is the policy's state; ``by_rank`` holds what each rank wrote about itself:
    its losses and the states of the layers of its nets.  ``plan`` is the exchange plan, in JSON, if
    a resumed run might make another one.
    """

    iteration: int
    written: float
    weights: Checksum
    state: Checksum
    seed: int
    ranks: int
    batch: int
    tested: list[int]
    learning_rate: dict[str, Any]
    by_rank: list[dict[str, Any]]
    plan: str = ""

    def encode(self) -> bytes:
        """Return the contents of the file."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1).encode()


def path_of(state: _Path) -> Path:
    """Return the path of the companion of a solver state."""
    return Path(f"{os.fspath(state)}.json")


def decode(data: bytes, path: _Path = "the companion file") -> Companion:
    """Return what `Companion.encode` wrote; raises SnapshotError."""
    try:
        values = json.loads(data)
        version = values.pop("format")
        if version != FORMAT:
            raise SnapshotError(
                f"{path}: is of format {version}, this version of pcaffe reads {FORMAT}; "
                "without that file, training resumes as Caffe does"
            )
        for name in ("weights", "state"):
            values[name] = Checksum(*values[name])
        return Companion(**values)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SnapshotError(
            f"{path}: is damaged ({error}); without it, training resumes as Caffe does"
        ) from None


def load(path: _Path) -> Companion | None:
    """Return the companion in a file, or None if there is no file; raises SnapshotError."""
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SnapshotError(f"{path}: cannot be read: {error.strerror}") from None
    return decode(data, path)


def of(state: _Path, weights: _Path) -> Companion | None:
    """Return the companion of a solver state and its weights; None if there is none of theirs.

    Raises SnapshotError when just one of the two files is the one that the companion belongs to:
    the other is damaged, or of another run that was stopped while it wrote over this snapshot.
    """
    path = path_of(state)
    companion = load(path)
    if companion is None:
        return None
    differing = [
        os.fspath(file)
        for file, expected in ((state, companion.state), (weights, companion.weights))
        if _checksum(file) != expected
    ]
    if not differing:
        return companion
    if len(differing) == 1:
        raise SnapshotError(
            f"{differing[0]}: is damaged or of another run: it is not the file that '{path}' "
            "was written with; without that file, training resumes as Caffe does"
        )
    logger.warning("%s does not belong to the snapshot beside it and is not read", path)
    return None


def _checksum(path: _Path) -> Checksum:
    try:
        return checksum(path)
    except OSError as error:
        raise SnapshotError(f"{path}: cannot be read: {error.strerror}") from None
