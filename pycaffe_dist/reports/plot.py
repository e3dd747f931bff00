"""Charts of training runs, drawn with matplotlib."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import Any

from pycaffe_dist import atomic
from pycaffe_dist.errors import UsageError
from pycaffe_dist.reports.training_log import TrainingLog

AXES = {"iterations": ("NumIters", "Iterations"), "seconds": ("Seconds", "Seconds")}
# Outputs that are not losses: larger is better; they have their own axes.
_SCORES = ("accuracy", "acc", "top", "precision", "recall")


def plot_logs(
    logs: Sequence[TrainingLog], path: str, against: Sequence[str] = ("iterations",)
) -> None:
    """Draw losses and scores of runs to ``path`` (.png, .svg, .pdf).

    A row of charts for losses and, if there are any, one for accuracies; a column for each of
    ``against`` ("iterations", "seconds").  Raises UsageError without matplotlib or for an unknown
    kind of file, and SnapshotError when the file cannot be written.
    """
    kind_of_file = os.path.splitext(path)[1][1:]
    if not kind_of_file:
        raise UsageError(f"the file must end in .png, .svg or .pdf: found '{path}'")
    from pycaffe_dist.reports.picture import Picture

    kinds = [kind for kind in ("loss", "score") if any(_curves(log, kind) for log in logs)]
    if not kinds:
        raise UsageError("the logs have no outputs to draw: see 'display' in the solver")
    figure = Picture(figsize=(6.4 * len(against), 3.6 * len(kinds)))
    charts = figure.subplots(len(kinds), len(against), squeeze=False)
    for kind, row in zip(kinds, charts):
        for name, chart in zip(against, row):
            _draw(chart, logs, kind, name)
    image = io.BytesIO()
    try:
        figure.savefig(image, dpi=150, format=kind_of_file)
    except ValueError as error:
        raise UsageError(f"cannot draw to '{path}': {error}") from error
    atomic.write(path, [image.getvalue()])


def _curves(log: TrainingLog, kind: str) -> list[tuple[str, str]]:
    """Return (part, output) of every curve of a kind."""
    return [
        (part, name)
        for part, names in log.outputs().items()
        for name in names
        if name.lower().startswith(_SCORES) == (kind == "score")
    ]


def _draw(chart: Any, logs: Sequence[TrainingLog], kind: str, against: str) -> None:
    column, title = AXES[against]
    for number, log in enumerate(logs):
        prefix = f"{_run_name(log, logs)}: " if len(logs) > 1 else ""
        for part, name in _curves(log, kind):
            rows = [row for row in (log.train if part == "train" else log.test) if name in row]
            style = {"train": "-", "test": "--"}[part]
            # A line of one point is invisible.
            marker = "o" if len(rows) == 1 or (len(rows) < 30 and part == "test") else None
            chart.plot(
                [row[column] for row in rows],
                [row[name] for row in rows],
                style,
                color=f"C{number % 10}" if len(logs) > 1 else None,
                marker=marker,
                markersize=3,
                linewidth=1.4,
                label=f"{prefix}{part} {name}",
            )
    chart.set_xlabel(title)
    if column == AXES["iterations"][0]:
        chart.xaxis.get_major_locator().set_params(integer=True)
    chart.set_ylabel("Loss" if kind == "loss" else "Accuracy")
    chart.grid(alpha=0.3)
    chart.legend(fontsize="small")


def _run_name(log: TrainingLog, logs: Sequence[TrainingLog]) -> str:
    """Return the shortest end of a log's path that distinguishes it from the others."""
    parts = os.path.abspath(log.path).split(os.sep)
    for count in range(1, len(parts)):
        ends = [os.path.abspath(other.path).split(os.sep)[-count:] for other in logs]
        if ends.count(parts[-count:]) == 1:
            return os.sep.join(parts[-count:])
    return log.path
