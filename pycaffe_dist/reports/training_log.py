"""Reads what a training run has written: its log, Caffe's or pcaffe's, or its metrics."""

from __future__ import annotations

import csv
import datetime
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pycaffe_dist.errors import DataError
from pycaffe_dist.training.metrics_file import read_records

# glog's line: a severity with the month and day, then the time.
_STAMP = re.compile(r"^[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d+)")
_ITERATION = re.compile(r"Iteration (\d+)")
_NUMBER = r"([-+]?(?:[\d.]+(?:[eE][-+]?\d+)?|nan|inf))"
_OUTPUT = re.compile(rf"(Train|Test) net output #\d+: (\S+) = {_NUMBER}")
_SOLVING = re.compile(r"\] Solving( |$)")
_RATE = re.compile(rf"lr = {_NUMBER}")
_NET = re.compile(r"Testing net \(#(\d+)\)")

Row = dict[str, float]
HEAD = ("NumIters", "Seconds", "LearningRate")


@dataclass
class TrainingLog:
    """A run's outputs: a row with HEAD's columns and each output's value per display or test."""

    path: str
    train: list[Row] = field(default_factory=list)
    test: list[Row] = field(default_factory=list)
    name: str = ""

    def outputs(self) -> dict[str, list[str]]:
        """Return the names of the outputs of "train" and "test", in the order of the log."""
        named: dict[str, list[str]] = {}
        for part, rows in (("train", self.train), ("test", self.test)):
            names = dict.fromkeys(name for row in rows for name in row if name not in HEAD)
            named[part] = list(names)
        return named

    def forget(self, iteration: int) -> float:
        """Remove the rows from an iteration on; return the seconds at the last that stays."""
        for rows in (self.train, self.test):
            rows[:] = [row for row in rows if row["NumIters"] < iteration]
        return self.last_second

    @property
    def last_second(self) -> float:
        """The seconds at the last row; 0 without any."""
        return max((row["Seconds"] for row in (*self.train[-1:], *self.test[-1:])), default=0.0)


def read_run(paths: Sequence[str], name: str = "") -> TrainingLog:
    """Return a run's contents from its logs or files of metrics, in the order of time.

    Where a later part goes on from an earlier iteration, it replaces what it repeats, and its
    seconds go on from there.  ``name`` is that of the run in charts.  Raises DataError.
    """
    run = TrainingLog(paths[0], name=name)
    for path in paths:
        part = _read_metrics(path) if _has_metrics(path) else read_log(path)
        first = min(row["NumIters"] for row in (*part.train[:1], *part.test[:1]))
        shift = run.forget(int(first))
        for rows, more in ((run.train, part.train), (run.test, part.test)):
            rows += [row | {"Seconds": row["Seconds"] + shift} for row in more]
    return run


def _has_metrics(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(1) == b"{"
    except OSError:
        return False


def _read_metrics(path: str) -> TrainingLog:
    log, begin, last, rate = TrainingLog(path), 0.0, 0.0, math.nan
    for record in read_records(path):
        if record["kind"] == "start":
            begin = record["time"] - last  # without the time in which nothing ran
        last = record["time"] - begin
        rate = record.get("learning_rate", rate)
        row = dict(zip(HEAD, (record["iteration"], last, rate)))
        for output, values in record.get("outputs", {}).items():
            suffix = f"#{record['net']}" if record.get("net") else ""
            for index, value in enumerate(values):
                number = f"[{index}]" if len(values) > 1 else ""
                row[output + number + suffix] = math.nan if value is None else value
        if len(row) > len(HEAD):
            (log.test if record["kind"] == "test" else log.train).append(row)
    if not (log.train or log.test):
        raise DataError(f"'{path}' has no outputs of displays or tests")
    return log


def read_log(path: str) -> TrainingLog:
    """Return a log's contents; raises DataError if it is unreadable or has no iteration.

    Seconds count from the line about the solver's start, or else from the first line.
    Names of outputs of test nets after the first end in ``#n``.  A resumed run in the same log
    replaces what it repeats.
    """
    try:
        lines = Path(path).read_text(errors="replace").splitlines()
    except OSError as error:
        raise DataError(f"cannot read log '{path}': {error.strerror}") from error
    log = TrainingLog(path)
    clock = _Clock()
    start: float | None = None
    iteration, rate, test_net, resumes = -1, math.nan, 0, False
    for line in lines:
        seconds = clock.read(line)
        if seconds is None:
            continue
        if start is None or (line.endswith("Solving") or ("] Solving " in line and iteration < 0)):
            start = seconds
        resumes = resumes or (iteration >= 0 and _SOLVING.search(line) is not None)
        if match := _ITERATION.search(line):
            iteration = int(match[1])
            if resumes:
                start, resumes = seconds - log.forget(iteration), False
        if match := _NET.search(line):
            test_net = int(match[1])
        if match := _RATE.search(line):
            rate = float(match[1])
            # It is logged behind the outputs of its iteration.
            if log.train and log.train[-1]["NumIters"] == iteration:
                log.train[-1]["LearningRate"] = rate
        if iteration >= 0 and (match := _OUTPUT.search(line)):
            part = log.train if match[1] == "Train" else log.test
            suffix = f"#{test_net}" if part is log.test and test_net else ""
            _add(part, iteration, seconds - start, rate, match[2] + suffix, float(match[3]))
    if iteration < 0:
        raise DataError(f"'{path}' is not the log of a training run: it has no line 'Iteration …'")
    if log.test and math.isnan(log.test[0]["LearningRate"]) and log.train:
        log.test[0]["LearningRate"] = log.train[0]["LearningRate"]
    return log


class _Clock:
    """Turns glog's time stamps, which have no year, into seconds that do not go back."""

    def __init__(self) -> None:
        self._year = 2000  # a leap year
        self._last: datetime.datetime | None = None
        self._first: datetime.datetime | None = None

    def read(self, line: str) -> float | None:
        """Return the seconds since the first line, None for a line without a time stamp."""
        match = _STAMP.match(line)
        if match is None:
            return None
        month, day, hour, minute, second = (int(part) for part in match.groups()[:5])
        micro = int(match[6][:6].ljust(6, "0"))
        moment = datetime.datetime(self._year, month, day, hour, minute, second, micro)
        if self._last is not None and moment.month < self._last.month:
            self._year += 1
            moment = moment.replace(year=self._year)
        self._last = moment
        self._first = self._first or moment
        return (moment - self._first).total_seconds()


def _add(
    rows: list[Row], iteration: int, seconds: float, rate: float, name: str, value: float
) -> None:
    """Put a value into the last row, or into a new one if the last has an earlier iteration."""
    if not rows or rows[-1]["NumIters"] != iteration or name in rows[-1]:
        rows.append({"NumIters": iteration, "Seconds": seconds, "LearningRate": rate})
    rows[-1][name] = value


def write_tables(log: TrainingLog, folder: str, delimiter: str = ",") -> list[str]:
    """Write ``NAME.train`` and ``NAME.test`` to ``folder``, NAME being the log's.

    Each has a line of column names and a line per row; a part without rows is not written.
    Returns the files' paths; raises DataError.
    """
    written = []
    for part, rows in (("train", log.train), ("test", log.test)):
        if not rows:
            continue
        path = os.path.join(folder, f"{os.path.basename(log.path)}.{part}")
        try:
            with open(path, "w", newline="") as file:
                columns = [*HEAD, *log.outputs()[part]]
                writer = csv.DictWriter(file, columns, delimiter=delimiter, restval="")
                writer.writeheader()
                writer.writerows(rows)
        except OSError as error:
            raise DataError(f"cannot write '{path}': {error.strerror}") from error
        written.append(path)
    return written
