from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from pycaffe_dist import log
from pycaffe_dist.cli.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(stream: io.StringIO, rank: int = 0) -> str:
    """Let a solver run from iteration 10 to 30, with a log line at the end."""
    solver = SimpleNamespace(
        param=SimpleNamespace(max_iter=100),
        iteration=10,
        cluster=SimpleNamespace(rank=rank),
        effective_batch=384,
    )
    log.start(stream=stream)
    with Progress(stream) as progress:
        while solver.iteration < 30:
            solver.iteration += 1
            progress(solver)
        log.logger.info("Iteration 30, lr = 0.01")
    log.stop()
    return stream.getvalue()


def test_a_terminal_shows_the_line_and_log_lines_stand_alone():
    shown = run(Terminal())
    assert "30/100 iterations  " in shown
    assert " images/s  " in shown
    assert " left" in shown
    line = next(line for line in shown.splitlines() if "lr = 0.01" in line)
    assert line.startswith("I")
    assert line.endswith("lr = 0.01")


@pytest.mark.parametrize("stream, rank", [(io.StringIO(), 0), (Terminal(), 1)])
def test_a_file_and_other_ranks_show_none(stream, rank):
    assert "iterations" not in run(stream, rank)


@pytest.mark.parametrize(
    "target, launched, shown",
    [
        ("/dev/pts/3", True, True),
        ("/dev/pts/3", False, False),
        ("/tmp/train.log", True, False),
        ("pipe:[123]", True, False),
    ],
)
def test_mpirun_on_a_terminal_shows_the_line_of_rank_0(monkeypatch, target, launched, shown):
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr("os.readlink", lambda path: target)
    monkeypatch.setattr("os.getppid", lambda: "self")
    monkeypatch.delenv("OMPI_COMM_WORLD_RANK", raising=False)
    if launched:
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    assert ("30/100 iterations" in run(stream)) is shown
