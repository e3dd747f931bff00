"""Runs as plot_log sees them: from logs and metrics, in several parts, smoothed, as they grow."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from running import BIN, Job
from tool_runs import run

from pycaffe_dist.cli import plot_log
from pycaffe_dist.errors import WRONG_INPUT
from pycaffe_dist.reports.plot import smoothed
from pycaffe_dist.reports.training_log import TrainingLog, read_run

LOG = Path(__file__).parents[1] / "golden" / "logs" / "lenet_train_test.log"


def line(second: int, words: str) -> str:
    return f"I0101 00:{second // 60:02}:{second % 60:02}.000000 1 solver.cpp:1] {words}\n"


def log_of(first: int, last: int, second: int, loss: float) -> str:
    """Return the log of a run that displays each second's iteration, and tests each fourth."""
    words = line(second, "Solving net")
    for iteration in range(first, last):
        if iteration % 4 == 0:
            words += line(second, f"Iteration {iteration}, Testing net (#0)")
            words += line(second, f"    Test net output #0: accuracy = 0.{iteration:02}")
        words += line(second, f"Iteration {iteration}, loss = {loss}")
        words += line(second, f"    Train net output #0: loss = {loss}")
        words += line(second, f"Iteration {iteration}, lr = 0.1")
        second += 1
    return words


def metrics_of(first: int, last: int, moment: float, loss: float) -> str:
    start = {"kind": "start", "iteration": first, "time": moment}
    lines = [json.dumps(start)]
    for iteration in range(first, last):
        record = {"iteration": iteration, "time": moment + iteration - first}
        if iteration % 4 == 0:
            outputs = {"outputs": {"accuracy": [iteration / 100]}, "net": 0}
            lines.append(json.dumps({"kind": "test", **record, **outputs}))
        outputs = {"outputs": {"loss": [loss]}, "learning_rate": 0.1}
        lines.append(json.dumps({"kind": "train", **record, **outputs}))
    return "\n".join([*lines, ""])


def columns(run: TrainingLog) -> list[tuple]:
    return [(row["NumIters"], row["Seconds"], row["loss"]) for row in run.train]


def written(folder: Path, **texts: str) -> list[str]:
    for name, words in texts.items():
        (folder / name).write_text(words)
    return [str(folder / name) for name in texts]


# Iterations 6 and 7 were lost; the run was resumed 100 seconds later.
JOINED = [(i, i, 1.0 if i < 6 else 0.5) for i in range(10)]


@pytest.mark.parametrize("of", [log_of, metrics_of])
def test_parts_of_a_resumed_run_are_one(tmp_path, of):
    run = read_run(written(tmp_path, one=of(0, 8, 0, 1.0), two=of(6, 10, 107, 0.5)))
    # The iteration that is made again takes up where the last one before it was.
    expected = [(i, s if i < 6 else s - 1, loss) for i, s, loss in JOINED]
    assert columns(run) == expected
    assert [row["NumIters"] for row in run.test] == [0, 4, 8]


def test_a_resumed_run_in_one_log_is_one(tmp_path):
    (path,) = written(tmp_path, log=log_of(0, 8, 0, 1.0) + log_of(6, 10, 107, 0.5))
    expected = [(i, s if i < 6 else s - 1, loss) for i, s, loss in JOINED]
    assert columns(read_run([path])) == expected


def test_metrics_with_a_resumed_start_have_no_gap(tmp_path):
    words = metrics_of(0, 6, 0, 1.0) + metrics_of(6, 10, 107, 0.5)
    (path,) = written(tmp_path, metrics=words)
    expected = [(i, s if i < 6 else s - 1, loss) for i, s, loss in JOINED]
    assert columns(read_run([path])) == expected


def test_a_curve_is_smoothed_over_the_last_values():
    assert smoothed([4, 2, float("nan"), 6, 6], 2) == [4, 3, 2, 6, 6]
    assert smoothed([1.0, 2.0], 1) == [1.0, 2.0]


def test_a_chart_of_named_runs(tmp_path):
    pytest.importorskip("matplotlib")
    one, two = written(tmp_path, one=log_of(0, 8, 0, 1.0), two=metrics_of(6, 10, 107, 0.5))
    out = tmp_path / "plot.svg"
    runs = [f"slow={one},{two}", f"fast={LOG}"]
    assert run(plot_log, str(out), *runs, "--log_scale", "--smooth=3") == 0
    svg = out.read_text()
    for label in ("slow: train loss", "fast: test accuracy", "Rate", "Seconds"):
        assert f"<!-- {label} -->" in svg
    # The values are pale behind the means.
    assert svg.count("opacity: 0.25") > 0


def test_wrong_flags(tmp_path, capsys):
    assert run(plot_log, str(tmp_path / "a.png"), str(LOG), "--smooth=-1") == WRONG_INPUT
    assert "flag --smooth needs 0 or more, not -1" in capsys.readouterr().err


def test_a_picture_follows_its_log(tmp_path):
    pytest.importorskip("matplotlib")
    (path,) = written(tmp_path, log=log_of(0, 3, 0, 1.0))
    out = tmp_path / "plot.svg"
    job = Job([BIN / "pcaffe", "plot_log", out, path, "--follow=0.1"])
    try:
        first = wait_for(out, b"")
        with open(path, "a") as file:
            file.write(log_of(3, 60, 3, 2.0))
        wait_for(out, first)
    finally:
        job.kill()


def wait_for(path: Path, before: bytes) -> bytes:
    """Return the contents of a file as soon as they are others."""
    for _ in range(600):
        if path.exists() and (found := path.read_bytes()) != before:
            return found
        time.sleep(0.1)
    pytest.fail(f"{path} does not change")
