"""`pcaffe timeline`: where an iteration's time goes, and what would save most."""

from __future__ import annotations

import json

import pytest

from pycaffe_dist.cli.main import main
from pycaffe_dist.errors import FAILURE, WRONG_INPUT

FLAGS = {"pid": 0, "tid": 0, "ph": "X"}


def span(rank: int, kind: str, name: str, began: float, milliseconds: float) -> dict:
    times = {"ts": began * 1e3, "dur": milliseconds * 1e3}
    shown = name if kind == "exchange" else f"{kind} {name}"
    about = {"args": {"exchange": "allreduce", "bytes": 4096}} if kind == "exchange" else {}
    return {**FLAGS, "pid": rank, "cat": kind, "name": shown, **times, **about}


def write(path) -> str:
    """Write two ranks' iterations: the first of 100 ms, then four of 20 ms; return the path."""
    events = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "rank 0"}}]
    for rank in (0, 1):
        events.append(span(rank, "iteration", "0", 0, 100))
        events.append(span(rank, "forward", "conv", 10, 80))
        for number in range(1, 5):
            at = 100 + 20 * (number - 1)
            spans = [("iteration", str(number), 0, 20), ("forward", "data", 0, 2)]
            spans += [("data", "data", 0, 1.5), ("forward", "conv", 2, 4)]
            spans += [("backward", "conv", 6, 6 + 2 * rank), ("update", "conv[0]", 15, 1)]
            spans += [("exchange", "conv[0]", 8, 8), ("wait", "conv[0]", 14, 1 - rank)]
            events += [span(rank, kind, name, at + b, long) for kind, name, b, long in spans]
    path.write_text(json.dumps({"traceEvents": events}))
    return str(path)


def test_parts_of_an_iteration_and_what_would_save_most(tmp_path, capsys):
    assert main(["timeline", write(tmp_path / "t.json"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ranks"], found["iterations"], found["whole"]) == (2, 4, 20)
    assert found["parts"] == pytest.approx(
        {
            "forward": 4.5,
            "backward": 7,
            "updates": 1,
            "waiting for gradients": 0.5,
            "waiting for data": 1.5,
            "other work": 5.5,
        }
    )
    assert found["hidden"] == pytest.approx(1 - 0.5 / 8)
    assert found["messages"] == [
        {"exchange": "allreduce", "count": 1, "bytes": 4096, "milliseconds": 8}
    ]
    savings = [(s["what"].split(" (")[0], s["milliseconds"]) for s in found["savings"]]
    assert savings == [
        ("layer 'conv', forward and backward", pytest.approx(11)),
        ("other work", pytest.approx(5.5)),
        ("waiting for data", pytest.approx(1.5)),
    ]


def test_the_table_counts_all_iterations_if_asked_to(tmp_path, capsys):
    assert main(["timeline", write(tmp_path / "t.json"), "--skip=0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "mean of 5 x 2 rank(s)" in lines[0]
    assert any(line.startswith("iteration ") and line.split()[1] == "36" for line in lines)
    assert "94 % of the messages' time was hidden" in lines
    (row,) = (line.split() for line in lines if line.startswith("allreduce"))
    assert row == ["allreduce", "0.8", "3.2", "KiB", "6.4", "500", "KiB"]


@pytest.mark.parametrize(
    ("contents", "error"),
    [
        ("no", "is not a timeline of pcaffe train --timeline"),
        ('{"traceEvents": []}', "has no marks of iterations"),
    ],
)
def test_files_of_something_else(tmp_path, capsys, contents, error):
    (tmp_path / "t.json").write_text(contents)
    assert main(["timeline", str(tmp_path / "t.json")]) == FAILURE
    assert error in capsys.readouterr().err
    assert main(["timeline", str(tmp_path / "t.json"), "--skip=-1"]) == WRONG_INPUT
