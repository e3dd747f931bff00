"""The file of a run's records: a line of JSON each, which outlives resumed runs and lost ranks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from pycaffe_dist import atomic
from pycaffe_dist.errors import DataError, UsageError
from pycaffe_dist.json_lines import to_line
from pycaffe_dist.log import logger
from pycaffe_dist.solvers.callbacks import Metrics

if TYPE_CHECKING:
    from pycaffe_dist.solvers import Solver

_KEYS = ("kind", "iteration", "time")


class MetricsFile:
    """Appends every record that it is called with to a file.

    A start removes the records of its iteration and later ones, which the run repeats: those of a
    run that was resumed from a snapshot, or lost ranks.  Raises UsageError for a place that cannot
    be written to, and for a file of something else.  A disk that is full later ends no run.
    """

    def __init__(self, path: str):
        self._path, self._failed = Path(path), False
        folder = self._path.absolute().parent
        if (self._path.exists() and not self._path.is_file()) or not folder.is_dir():
            why = "it is not a file" if folder.is_dir() else "there is no such folder"
            raise UsageError(f"cannot write the metrics {path}: {why}")
        if not os.access(self._path if self._path.exists() else folder, os.W_OK):
            raise UsageError(f"cannot write the metrics {path}: permission denied")
        if self._path.exists():
            try:
                read_records(path)
            except DataError as error:
                raise UsageError(f"{error}; name another file for --metrics") from None

    def __call__(self, solver: Solver, record: Metrics) -> None:
        """Append a record."""
        try:
            if record["kind"] == "start" and self._path.exists():
                self._keep_before(record["iteration"])
            with open(self._path, "a") as file:
                file.write(to_line(record) + "\n")
        except OSError as error:
            if not self._failed:
                logger.warning("The metrics %s lose records: %s", self._path, error.strerror)
            self._failed = True

    def _keep_before(self, iteration: int) -> None:
        records = read_records(str(self._path))
        kept = [record for record in records if is_before(record, iteration)]
        if len(kept) < len(records):
            logger.info(
                "%s: %d records from iteration %d on are replaced",
                *(self._path, len(records) - len(kept), iteration),
            )
        lines = "".join(to_line(record) + "\n" for record in kept)
        atomic.write(self._path, [lines.encode()])


def is_before(record: Metrics, iteration: float) -> bool:
    """Tell whether a record stays valid when the run goes on from an iteration."""
    known = record["iteration"]
    return known < iteration or (known == iteration and record["kind"] == "snapshot")


def read_records(path: str) -> list[Metrics]:
    """Return the records of a file; a last line that was broken off does not count.

    Raises DataError, with the line, for a file that is unreadable or of something else.
    """
    try:
        lines = Path(path).read_text().split("\n")
    except OSError as error:
        raise DataError(f"cannot read the metrics '{path}': {error.strerror}") from error
    except UnicodeDecodeError:
        raise DataError(f"'{path}' has no metrics: it is not a text") from None
    return [_record(line, f"{path}:{number}") for number, line in enumerate(lines[:-1], 1)]


def _record(line: str, place: str) -> Metrics:
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict) or any(key not in record for key in _KEYS):
        raise DataError(
            f"{place}: not a record of metrics, which is a line of JSON with {', '.join(_KEYS)}"
        )
    return record
