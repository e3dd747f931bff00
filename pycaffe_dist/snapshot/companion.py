"""The companion file: JSON beside Caffe's solver state, with the data for an exact resume."""

from __future__ import annotations

import json
import math
import os
import zlib
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pycaffe_dist.atomic import Checksum, checksum
from pycaffe_dist.errors import SnapshotError
from pycaffe_dist.log import logger

_Path = str | os.PathLike[str]
# Format 1 had no checksum and no launch.
FORMAT = 2
_SEAL = b',\n "crc32": '
# The values that the code relies on; a file of format 1 has no other protection.
_KINDS: dict[str, type | tuple[type, ...]] = {
    "iteration": int,
    "written": (int, float),
    "seed": int,
    "ranks": int,
    "batch": int,
    "tested": list,
    "learning_rate": dict,
    "by_rank": list,
    "plan": str,
    "launch": str,
    "best": dict,
}
_KINDS_BY_RANK: dict[str, type | tuple[type, ...]] = {
    "losses": list,
    "statistics": list,
    "train": dict,
    "test": list,
}


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The state of a run, except Caffe's solver state.

    ``batch`` is the number of samples in an iteration on all ``ranks`` together, ``tested`` the
    number of batches that each test net has read.  ``learning_rate`` is the policy's state;
    ``by_rank`` has each rank's losses and the states of its nets' layers.  ``plan`` is the exchange
    plan, in JSON, if a resumed run might make another one.  ``best`` is the state of the solver's
    best_output.
    """

    iteration: int
    ranks: int
    batch: int
    tested: list[int]
    learning_rate: dict[str, Any]
    by_rank: list[dict[str, Any]]
    plan: str = ""
    best: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Companion(RunRecord):
    """The record of a run at a snapshot.

    ``written`` orders the snapshots of a prefix: the time in seconds since 1970, but always more
    than the earlier snapshots' times, even if clocks differ.  ``launch`` names the `pcaffe launch`
    of the run, empty without one.  ``weights`` and ``state`` are the checksums of the two files
    that this one belongs to.
    """

    written: float
    weights: Checksum
    state: Checksum
    seed: int
    launch: str = ""

    def encode(self) -> bytes:
        """Return the contents of the file: JSON that ends with the CRC-32 of all before it."""
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=1)
        return _sealed(text.removesuffix("\n}").encode())


def path_of(state: _Path) -> Path:
    """Return the path of the companion of a solver state."""
    return Path(f"{os.fspath(state)}.json")


def decode(data: bytes, path: _Path = "the companion file") -> Companion:
    """Return the Companion that `Companion.encode` wrote; raises SnapshotError."""
    head, seal, _ = data.rpartition(_SEAL)
    try:
        if seal and data != _sealed(head):
            raise ValueError("its checksum differs")
        values = json.loads(data)
        version = values.pop("format", None)
        if version not in range(1, FORMAT + 1):
            raise SnapshotError(
                f"{path}: is of format {version}, this version of pcaffe reads {FORMAT}; "
                "without that file, training resumes as Caffe does"
            )
        if version > 1 and not seal:
            raise ValueError("its checksum is missing")
        values.pop("crc32", None)
        return _companion(values)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SnapshotError(
            f"{path}: is damaged ({error}); without it, training resumes as Caffe does"
        ) from None


def _sealed(head: bytes) -> bytes:
    return head + _SEAL + b"%d\n}" % zlib.crc32(head)


def _companion(values: dict[str, Any]) -> Companion:
    values = {"plan": "", "launch": "", "best": {}, **values}
    for name in ("weights", "state"):
        values[name] = Checksum(*values[name])
    _check_kinds(values, _KINDS)
    for record in values["by_rank"]:
        _check_kinds(record, _KINDS_BY_RANK)
    if not math.isfinite(values["written"]) or len(values["by_rank"]) != values["ranks"]:
        raise ValueError("its values do not fit together")
    return Companion(**values)


def _check_kinds(values: dict[str, Any], kinds: dict[str, type | tuple[type, ...]]) -> None:
    for name, kind in kinds.items():
        if not isinstance(values[name], kind):
            raise TypeError(f"{name} is {values[name]!r:.40}")


def load(path: _Path) -> Companion | None:
    """Return the companion in a file, or None if there is no file; raises SnapshotError."""
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SnapshotError(f"{path}: cannot be read: {error.strerror}") from None
    return decode(data, path)


def of(state: _Path, weights: _Path, beside: _Path = "") -> Companion | None:
    """Return the companion of a solver state and its weights, None if there is none.

    ``beside`` is the usual path of the weights, for a damaged state that does not name it.  Raises
    SnapshotError when the companion fits only one of state and weights: the other is damaged, or
    from another run that was stopped while it overwrote this snapshot.
    """
    path = path_of(state)
    companion = load(path)
    if companion is None:
        return None
    if _checksum(state) == companion.state:
        if _checksum(weights) == companion.weights:
            return companion
        differing = weights
    elif any(_is(file, companion.weights) for file in (weights, beside)):
        differing = state
    else:
        logger.warning("%s does not belong to the snapshot beside it and is not read", path)
        return None
    raise SnapshotError(
        f"{os.fspath(differing)}: is damaged or of another run: it is not the file that '{path}' "
        "was written with; without that file, training resumes as Caffe does"
    )


def _is(path: _Path, expected: Checksum) -> bool:
    with suppress(SnapshotError):
        return _checksum(path) == expected
    return False


def _checksum(path: _Path) -> Checksum:
    try:
        return checksum(path)
    except OSError as error:
        raise SnapshotError(f"{path}: cannot be read: {error.strerror}") from None
