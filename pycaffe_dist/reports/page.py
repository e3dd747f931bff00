"""A page about runs: one HTML file with curves, times, settings and nets, from their metrics."""

from __future__ import annotations

import difflib
import html
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from pycaffe_dist.draw import svg_element
from pycaffe_dist.errors import DataError
from pycaffe_dist.log import fmt, fmt_bytes
from pycaffe_dist.reports.iteration_times import PARTS
from pycaffe_dist.reports.plot import Style, draw_logs
from pycaffe_dist.reports.training_log import read_run
from pycaffe_dist.solvers.callbacks import Metrics
from pycaffe_dist.table import Html, as_html
from pycaffe_dist.training.metrics_file import is_before, read_records

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76em; margin: 2em auto; padding: 0 1em;
  color: #222 }
h1 { font-size: 1.5em } h2 { font-size: 1.2em; margin-top: 2em; border-bottom: 1px solid #ccc }
table { border-collapse: collapse; margin: .5em 0 }
td, th { padding: .15em .8em; border-bottom: 1px solid #eee }
svg { max-width: 100%; height: auto } pre { overflow-x: auto; background: #f6f6f6; padding: .6em }
.bar { display: inline-block; height: .8em; background: #4878b0; vertical-align: middle }
ins { background: #d8f5d8; text-decoration: none } del { background: #fbdcdc }
"""
_SHARES = {name: PARTS[name] for name in ("forward", "backward", "update", "data")}
_SHARES |= {"exchange_not_hidden": PARTS["wait"], "test": PARTS["test"]}
_SHARES["rest"] = "snapshots and other work"
# Flags that name files of the run itself.
_FILES = ("metrics", "tensorboard", "timeline")
_WIDTH = 20  # of a full bar, in em


@dataclass(frozen=True)
class RunMetrics:
    """A run's name, its files, and its records by kind."""

    name: str
    paths: Sequence[str]
    starts: list[Metrics]
    displays: list[Metrics]
    tests: list[Metrics]
    plans: list[Metrics]
    snapshots: list[Metrics]

    @classmethod
    def read(cls, paths: Sequence[str], name: str = "") -> RunMetrics:
        """Return a run from the files of metrics of its parts, in order; raises DataError.

        If parts have the same iteration, the record of the latest part counts.
        """
        records: list[Metrics] = []
        for part in map(read_records, paths):
            first = part[0]["iteration"] if part else math.inf
            records = [record for record in records if is_before(record, first)] + part
        kinds = {kind: [r for r in records if r["kind"] == kind] for kind in _KINDS}
        if not kinds["start"] or not (kinds["train"] or kinds["test"]):
            names = ", ".join(paths)
            raise DataError(f"'{names}' has no record of a start and of a display or test")
        return cls(name or Path(paths[0]).stem, paths, *kinds.values())


_KINDS = ("start", "train", "test", "plan", "snapshot")


def page(runs: Sequence[RunMetrics]) -> str:
    """Return the page; raises UsageError without matplotlib."""
    title = html.escape(" and ".join(run.name for run in runs))
    parts = [f"<h1>{title}</h1>", *_summary(runs), *_curves(runs)]
    for run in runs:
        parts += [*_shares(run), *_messages(run), *_layers(run), *_snapshots(run)]
    if len(runs) > 1:
        for other in runs[1:]:
            parts += _differences(runs[0], other)
    for run in runs:
        shown = html.escape(run.starts[-1]["definition"])
        words = html.escape(f"The net of {run.name}")
        parts.append(f"<h2>{words}</h2><details><summary>prototxt</summary><pre>{shown}</pre>")
        parts.append("</details>")
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
    return "\n".join([head, f"<style>{_STYLE}</style>", *parts, "</html>\n"])


def _summary(runs: Sequence[RunMetrics]) -> Iterator[str]:
    rows = [["", *(run.name for run in runs)]]
    facts = [_facts(run) for run in runs]
    for name in dict.fromkeys(name for found in facts for name in found):
        rows.append([name, *(found.get(name, "") for found in facts)])
    yield as_html(rows)


def _facts(run: RunMetrics) -> dict[str, str]:
    """Return what a run is, and what has become of it."""
    start = run.starts[-1]
    last = max((*run.displays, *run.tests), key=lambda record: record["time"])
    speeds = [record["images_per_second"] for record in run.displays[1:] if "shares" in record]
    found = {
        "net": start.get("net", ""),
        "parameters": f"{start.get('parameter_count', 0):,}",
        "iterations": f"{last['iteration']} of {start['solver'].get('max_iter', '?')}",
        "ranks": " then ".join(dict.fromkeys(str(each["ranks"]) for each in run.starts)),
        "samples per iteration": str(start["batch"]),
        "starts": ", ".join(str(each["iteration"]) for each in run.starts),
        "seconds": fmt(read_run(run.paths).last_second),
    }
    if speeds:
        found["images per second"] = fmt(mean(speeds))
    for word, records in (("train", run.displays), ("test", run.tests)):
        outputs = [record["outputs"] for record in records if "outputs" in record]
        for name, values in outputs[-1].items() if outputs else ():
            if len(values) == 1 and values[0] is not None:
                found[f"last {word} {name}"] = fmt(values[0])
    return found


def _curves(runs: Sequence[RunMetrics]) -> Iterator[str]:
    logs = [read_run(run.paths, run.name) for run in runs]
    yield "<h2>Curves</h2>"
    yield svg_element(draw_logs(logs, "svg", Style(("iterations", "seconds"))))


def _shares(run: RunMetrics) -> Iterator[str]:
    """Yield where the time went, the mean over all displays but the first."""
    found = [record["shares"] for record in run.displays[1:] if "shares" in record]
    if not found:
        return
    shares = {name: mean(each.get(name, 0.0) for each in found) for name in _SHARES}
    hidden = mean(each.get("exchange_hidden", 0.0) for each in found)
    shares["rest"] = max(0.0, 1 - sum(shares.values()))
    rows = [("part", "share", "")]
    for name, words in _SHARES.items():
        rows.append((words, f"{100 * shares[name]:.1f} %", _bar(shares[name])))
    yield f"<h2>Where the time of {html.escape(run.name)} went</h2>{as_html(rows, left=(0, 2))}"
    if hidden + shares["exchange_not_hidden"] > 0:
        part = hidden / (hidden + shares["exchange_not_hidden"])
        yield f"<p>{100 * part:.0f} % of the time of messages was hidden behind computing.</p>"


def _bar(share: float) -> Html:
    return Html(f'<span class="bar" style="width:{_WIDTH * share:.2f}em"></span>')


def _messages(run: RunMetrics) -> Iterator[str]:
    """Yield the exchange plan: what was predicted of each message, and what was measured."""
    if not run.plans:
        return
    plan, began = run.plans[-1]["messages"], run.plans[-1]["iteration"]
    measured_at = [r for r in run.displays if r["iteration"] >= began and "messages" in r]
    # Some messages of a plan's first display were those of the plan before it.
    found = [r["messages"] for r in measured_at if r["iteration"] > began or r is measured_at[-1]]
    head = ("exchange", "messages", "gradients", "sent", "predicted ms", "measured ms", "ratio")
    rows: list[tuple[str, ...]] = [head]
    for name, planned in plan.items():
        cells = [name, str(planned["count"]), fmt_bytes(planned["bytes"])]
        measured = [each[name] for each in found if name in each]
        predicted = planned["predicted_ms"]
        if measured:
            milliseconds = mean(each["ms"] for each in measured)
            sent = fmt_bytes(mean(each["bytes"] for each in measured))
            ratio = f"{milliseconds / predicted:.2g}" if predicted else ""
            cells += [sent, _figure(predicted), _figure(milliseconds), ratio]
        else:
            cells += ["", _figure(predicted), "", ""]
        rows.append(tuple(cells))
    yield f"<h2>Exchanges of {html.escape(run.name)}</h2>"
    since = ", ".join(str(each["iteration"]) for each in run.plans)
    yield f"<p>Plans at iterations {since}; the last one:</p>{as_html(rows)}"
    yield (
        "<p>Times are of one message of rank 0; predicted for one that has the network for itself, "
        "while messages and computing share it and the cores."
    )
    yield "</p>" if found else " <code>--layer_metrics</code> measures them.</p>"


def _figure(number: float) -> str:
    return f"{number:.3g}"


def _snapshots(run: RunMetrics) -> Iterator[str]:
    """Yield the snapshots, and for how long training waited for them."""
    if not run.snapshots:
        return
    rows = [("iteration", "weights", "ms of waiting")]
    for each in run.snapshots:
        rows.append((str(each["iteration"]), each["path"], _figure(1e3 * each["seconds"])))
    yield f"<h2>Snapshots of {html.escape(run.name)}</h2>{as_html(rows, left=(1,))}"


def _layers(run: RunMetrics) -> Iterator[str]:
    """Yield the times of layers, and the norms of parameters at the last display."""
    found = [record for record in run.displays[1:] if "layers" in record]
    if not found:
        return
    names = dict.fromkeys(name for record in found for name in record["layers"])
    times = {
        name: [
            mean(record["layers"].get(name, {}).get(f"{way}_ms", 0.0) for record in found)
            for way in ("forward", "backward")
        ]
        for name in names
    }
    whole = sum(map(sum, times.values())) or 1.0
    rows: list[tuple] = [("layer", "forward ms", "backward ms", "share", "")]
    for name, both in times.items():
        share = sum(both) / whole
        rows.append((name, *map(fmt, both), f"{100 * share:.1f} %", _bar(share)))
    yield f"<h2>Time by layer of {html.escape(run.name)}</h2>{as_html(rows, left=(0, 4))}"
    last = found[-1]
    columns = ("weights", "gradient", "update", "ratio")
    norms = [("parameter", *columns)]
    for key, values in last["parameters"].items():
        norms.append((key, *(fmt(values[each]) if each in values else "" for each in columns)))
    yield f"<h2>Norms at iteration {last['iteration']}</h2>{as_html(norms)}"
    if last["dead"]:
        dead = [("ReLU", "dead channels")]
        dead += [(name, f"{100 * share:.0f} %") for name, share in last["dead"].items()]
        yield as_html(dead)


def _unequal(
    head: str, one: RunMetrics, other: RunMetrics, found: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return a table of the settings that two runs have not in common; none if they are equal."""
    first, second = found
    rows: list[tuple[str, ...]] = [(head, one.name, other.name)]
    for name in dict.fromkeys((*first, *second)):
        if first.get(name) != second.get(name):
            rows.append((name, *(_shown(of.get(name, "")) for of in found)))
    return [as_html(rows)] if len(rows) > 1 else []


def _shown(value: Any) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def _differences(one: RunMetrics, other: RunMetrics) -> Iterator[str]:
    """Yield the settings, flags and lines of the nets that differ."""
    yield f"<h2>What differs: {html.escape(one.name)} and {html.escape(other.name)}</h2>"
    starts = one.starts[-1], other.starts[-1]
    settings = [{**start["solver"], "ranks": start["ranks"]} for start in starts]
    yield from _unequal("setting", one, other, settings) or (
        "<p>The solvers have the same settings.</p>",
    )
    if all("flags" in start for start in starts):
        flags = [
            {f"--{k}": v for k, v in start["flags"].items() if k not in _FILES} for start in starts
        ]
        yield from _unequal("flag", one, other, flags)
    plans = [run.plans[-1]["messages"] if run.plans else {} for run in (one, other)]
    if plans[0].keys() != plans[1].keys():
        rows = [("only in one plan", one.name, other.name)]
        for name in dict.fromkeys((*plans[0], *plans[1])):
            if (name in plans[0]) != (name in plans[1]):
                rows.append((name, *("yes" if name in plan else "" for plan in plans)))
        yield as_html(rows)
    old, new = (run.starts[-1]["definition"].splitlines() for run in (one, other))
    lines = [*difflib.unified_diff(old, new, lineterm="", n=4)][2:]
    if not lines:
        yield "<p>The nets are the same.</p>"
        return
    tags = {"+": "ins", "-": "del"}
    shown = []
    for line in lines:
        text = html.escape(line)
        tag = tags.get(line[:1])
        shown.append(f"<{tag}>{text}</{tag}>" if tag else text)
    yield "<pre>" + "\n".join(shown) + "</pre>"
