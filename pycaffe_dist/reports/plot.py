"""Charts of training runs, drawn with matplotlib."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pycaffe_dist import atomic
from pycaffe_dist.errors import UsageError
from pycaffe_dist.reports.training_log import TrainingLog

AXES = {"iterations": ("NumIters", "Iterations"), "seconds": ("Seconds", "Seconds")}
# Outputs that are not losses: larger is better; they have their own axes.
_RATE = "rate"
_SCORES = ("accuracy", "acc", "top", "precision", "recall")


# A curve is smoothed over this part of its points.
_SMOOTH_PART = 50


@dataclass(frozen=True)
class Style:
    """How runs are drawn: against "iterations", "seconds" or both; losses on a log scale.

    Curves of displays are means over ``smooth`` points or, for 0, a fiftieth of them, with their
    points pale behind them.
    """

    against: Sequence[str] = ("iterations",)
    log_scale: bool = False
    smooth: int = 0

    def window(self, count: int) -> int:
        """Return the number of points that a mean is over, for a curve of ``count``."""
        return self.smooth or max(1, round(count / _SMOOTH_PART))


def plot_logs(logs: Sequence[TrainingLog], path: str, style: Style = Style()) -> None:
    """Draw losses, scores and learning rates of runs to ``path`` (.png, .svg, .pdf).

    Rows of charts for losses, for accuracies if there are any, and for learning rates that change;
    a column for each axis.  Raises UsageError without matplotlib or for an unknown kind of file,
    and SnapshotError when the file cannot be written.
    """
    kind_of_file = os.path.splitext(path)[1][1:]
    if not kind_of_file:
        raise UsageError(f"the file must end in .png, .svg or .pdf: found '{path}'")
    try:
        image = draw_logs(logs, kind_of_file, style)
    except ValueError as error:
        raise UsageError(f"cannot draw to '{path}': {error}") from error
    atomic.write(path, [image])


def draw_logs(logs: Sequence[TrainingLog], kind_of_file: str, style: Style) -> bytes:
    """Return the charts of `plot_logs` as a file of this kind; raises UsageError."""
    from pycaffe_dist.reports.picture import Picture

    kinds = [kind for kind in ("loss", "score") if any(_curves(log, kind) for log in logs)]
    if not kinds:
        raise UsageError("the logs have no outputs to draw: see 'display' in the solver")
    if any(len(_rates(log)) > 1 for log in logs):
        kinds.append(_RATE)
    heights = [1.3 if kind == _RATE else 3.6 for kind in kinds]
    size = 6.4 * len(style.against), sum(heights)
    figure = Picture(figsize=size)
    charts = figure.subplots(
        len(kinds), len(style.against), squeeze=False, height_ratios=heights, sharex="col"
    )
    for kind, row in zip(kinds, charts):
        for name, chart in zip(style.against, row):
            draw = _draw_rates if kind == _RATE else _draw
            draw(chart, logs, kind, AXES[name][0], style)
            chart.grid(alpha=0.3)
    for name, chart in zip(style.against, charts[-1]):
        chart.set_xlabel(AXES[name][1])
    image = io.BytesIO()
    figure.savefig(image, dpi=150, format=kind_of_file)
    return image.getvalue()


def _curves(log: TrainingLog, kind: str) -> list[tuple[str, str]]:
    """Return (part, output) of every curve of a kind."""
    return [
        (part, name)
        for part, names in log.outputs().items()
        for name in names
        if name.lower().startswith(_SCORES) == (kind == "score")
    ]


def _draw(chart: Any, logs: Sequence[TrainingLog], kind: str, column: str, style: Style) -> None:
    """Draw the curves of a kind: of displays smoothed, of tests with their points."""
    number = 0
    for run, log in enumerate(logs):
        prefix = f"{_run_name(log, logs)}: " if len(logs) > 1 else ""
        for part, name in _curves(log, kind):
            rows = [row for row in (log.train if part == "train" else log.test) if name in row]
            x, y = [row[column] for row in rows], [row[name] for row in rows]
            color = f"C{(run if len(logs) > 1 else number) % 10}"
            label = f"{prefix}{part} {name}"
            if part == "test":
                chart.plot(x, y, "--o", color=color, markersize=3, linewidth=1, label=label)
            else:
                smooth = smoothed(y, style.window(len(y)))
                if smooth != y:
                    chart.plot(x, y, color=color, alpha=0.25, linewidth=0.8)
                marker = "o" if len(y) == 1 else None  # a line of one point is invisible
                chart.plot(x, smooth, color=color, marker=marker, linewidth=1.4, label=label)
            number += 1
    if style.log_scale and kind == "loss":
        chart.set_yscale("log")
    if column == AXES["iterations"][0]:
        chart.xaxis.get_major_locator().set_params(integer=True)
    chart.set_ylabel("Loss" if kind == "loss" else "Accuracy")
    chart.legend(fontsize="small")


def _draw_rates(
    chart: Any, logs: Sequence[TrainingLog], kind: str, column: str, style: Style
) -> None:
    for run, log in enumerate(logs):
        rows = [row for row in log.train if math.isfinite(row["LearningRate"])]
        x, y = [row[column] for row in rows], [row["LearningRate"] for row in rows]
        chart.plot(x, y, color=f"C{run % 10}" if len(logs) > 1 else "gray", linewidth=1)
    chart.set_ylabel("Rate", fontsize="small")


def _rates(log: TrainingLog) -> set[float]:
    return {row["LearningRate"] for row in log.train if math.isfinite(row["LearningRate"])}


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """Return the means of each value and the ``window`` - 1 before it that are finite."""
    means: list[float] = []
    recent: list[float] = []
    for value in values:
        recent = [*recent, value][-window:]
        finite = [each for each in recent if math.isfinite(each)]
        means.append(sum(finite) / len(finite) if finite else math.nan)
    return means


def _run_name(log: TrainingLog, logs: Sequence[TrainingLog]) -> str:
    """Return a run's name or the shortest end of its path that differs from the others."""
    if log.name:
        return log.name
    parts = os.path.abspath(log.path).split(os.sep)
    for count in range(1, len(parts)):
        ends = [os.path.abspath(other.path).split(os.sep)[-count:] for other in logs]
        if ends.count(parts[-count:]) == 1:
            return os.sep.join(parts[-count:])
    return log.path
