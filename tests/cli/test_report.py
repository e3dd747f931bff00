"""`pcaffe report`: a page about runs, from their metrics."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from pycaffe_dist.cli.main import main
from pycaffe_dist.errors import FAILURE

pytest.importorskip("matplotlib")


def metrics_of(
    path, name: str = "net", exchange: str = "allreduce", flags: dict | None = None, **solver
) -> str:
    """Write the metrics of a short run that was resumed at iteration 2; return the path."""
    plan = {f"{exchange} of a[0]": {"count": 2, "bytes": 2048, "predicted_ms": 2.0}}
    about = {"net": name, "ranks": 2, "batch": 8, "parameter_count": 1234}
    about["solver"] = {"base_lr": 0.1, "max_iter": 5, **solver}
    if flags is not None:  # which older files lack
        about["flags"] = flags
    about["definition"] = f'name: "{name}"\nlayer {{ name: "a" }}'
    records = []
    for iteration in range(5):
        shares = {"forward": 0.5, "backward": 0.25, "exchange_not_hidden": 0.05}
        record = {
            "kind": "train",
            "iteration": iteration,
            "time": 10.0 + iteration,
            "loss": 1 / (iteration + 1),
            "outputs": {"loss": [1 / (iteration + 1)]},
            "learning_rate": 0.1,
            "images_per_second": 80.0,
            "dead": {"relu<1>": 0.25},
            "shares": {**shares, "exchange_hidden": 0.15},
            "layers": {"a": {"forward_ms": 2.0, "backward_ms": 4.0}, "b": {"forward_ms": 2.0}},
            "parameters": {"a[0]": {"weights": 3.0, "gradient": 0.5, "update": 0.03}},
        }
        if iteration > 2:
            record["messages"] = {f"{exchange} of a[0]": {"ms": 2.0 * iteration, "bytes": 512}}
        head = {key: record[key] for key in ("iteration", "time")}
        if iteration == 2:
            about_it = {"time": 11.0, "path": "net_iter_2.caffemodel", "seconds": 0.004}
            records.append({"kind": "snapshot", **head, **about_it})
        if iteration in (0, 2):
            records.append({"kind": "start", **head, **about})
            records.append({"kind": "plan", **head, "messages": plan})
        records.append(record)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


class _Checker(HTMLParser):
    """Collects cells, and everything that a browser would load."""

    def __init__(self) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.loaded: list[str] = []
        self._inside = False

    def handle_starttag(self, tag, attrs):
        names = dict(attrs)
        self.loaded += [
            value
            for key in ("src", "href", "xlink:href")
            if (value := names.get(key) or "") and not value.startswith("#")
        ]
        if tag in ("script", "link", "iframe"):
            self.loaded.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")
            self._inside = True

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self._inside = False

    def handle_data(self, data):
        if self._inside:
            self.cells[-1] += data


def check(path) -> list[str]:
    checker = _Checker()
    checker.feed(path.read_text())
    assert not checker.loaded
    return checker.cells


def after(cells: list[str], name: str, count: int = 1) -> list[str]:
    place = cells.index(name)
    return cells[place + 1 : place + 1 + count]


def test_a_page_about_one_run(tmp_path):
    assert main(["report", metrics_of(tmp_path / "run.jsonl")]) == 0
    cells = check(tmp_path / "run.html")
    assert after(cells, "iterations") == ["4 of 5"] and after(cells, "starts") == ["0, 2"]
    assert after(cells, "images per second") == ["80"]
    assert after(cells, "last train loss") == ["0.2"]
    assert after(cells, "forward") == ["50.0 %"]
    assert after(cells, "snapshots and other work") == ["20.0 %"]
    assert after(cells, "a", 3) == ["2", "4", "75.0 %"]
    assert after(cells, "a[0]", 4) == ["3", "0.5", "0.03", ""]
    assert after(cells, "relu<1>") == ["25 %"]
    figures = ["2", "2 KiB", "512 B", "2", "7", "3.5"]
    assert after(cells, "allreduce of a[0]", 6) == figures
    assert after(cells, "net_iter_2.caffemodel") == ["4"]
    page = (tmp_path / "run.html").read_text()
    assert "75 % of the time of messages was hidden" in page and "<svg" in page


def test_a_page_that_compares_runs(tmp_path):
    one = metrics_of(tmp_path / "one.jsonl")
    other = metrics_of(tmp_path / "other.jsonl", "wide", "sufficient_factor", base_lr=0.2)
    out = tmp_path / "page.html"
    assert main(["report", f"narrow={one}", other, f"--output={out}"]) == 0
    cells = check(out)
    assert after(cells, "base_lr", 2) == ["0.1", "0.2"] and "max_iter" not in cells
    assert after(cells, "only in one plan", 8) == [
        *("narrow", "other"),
        *("allreduce of a[0]", "yes", "", "sufficient_factor of a[0]", "", "yes"),
    ]
    page = out.read_text()
    assert "<title>narrow and other</title>" in page
    assert re.search(
        r"<del>-name: &quot;net&quot;</del>\n<ins>\+name: &quot;wide&quot;</ins>", page
    )


def test_flags_that_differ_are_shown(tmp_path):
    old, one, other = (
        metrics_of(tmp_path / f"{name}.jsonl", flags=flags)
        for name, flags in (
            ("old", None),
            ("one", {"metrics": "one.jsonl", "threads": 2, "wire": "float16"}),
            ("other", {"metrics": "other.jsonl", "threads": 2, "cuda_graph": False}),
        )
    )
    page = tmp_path / "page.html"
    assert main(["report", one, other, f"--output={page}"]) == 0
    shown = ["one", "other", "--wire", "float16", "", "--cuda_graph", "", "off"]
    assert after(check(page), "flag", 8) == shown
    assert "--threads" not in page.read_text() and "--metrics" not in page.read_text()
    for same in (one, old):
        assert main(["report", one, same, f"--output={page}"]) == 0
        assert "flag" not in check(page)


def test_files_without_a_run(tmp_path, capsys):
    (tmp_path / "run.jsonl").write_text("")
    assert main(["report", str(tmp_path / "run.jsonl")]) == FAILURE
    assert "has no record of a start" in capsys.readouterr().err
    assert not (tmp_path / "run.html").exists()


def test_parts_of_a_run_are_joined(tmp_path):
    whole = metrics_of(tmp_path / "whole.jsonl")
    lines = (tmp_path / "whole.jsonl").read_text().splitlines(keepends=True)
    begin = next(i for i, line in enumerate(lines) if i and '"start"' in line)
    (tmp_path / "one.jsonl").write_text("".join(lines[: begin + 4]))
    (tmp_path / "two.jsonl").write_text("".join(lines[begin:]))
    parts = f"net={tmp_path}/one.jsonl,{tmp_path}/two.jsonl"
    assert main(["report", f"net={whole}", "--output", str(tmp_path / "whole.html")]) == 0
    assert main(["report", parts, "--output", str(tmp_path / "parts.html")]) == 0
    assert check(tmp_path / "whole.html") == check(tmp_path / "parts.html")
