from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from pycaffe_dist import log
from pycaffe_dist.cli.progress import Progress, images_per_iteration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def fake_solver(rank: int = 0, size: int = 2) -> SimpleNamespace:
    """What Progress reads of a solver: a data layer of 64 images, its label, a convolution."""
    blob = SimpleNamespace(shape=(64, 1, 28, 28))
    nodes = [
        SimpleNamespace(bottom=[], top=[blob, SimpleNamespace(shape=(64,))]),
        SimpleNamespace(bottom=[blob], top=[SimpleNamespace(shape=(640, 20, 24, 24))]),
    ]
    return SimpleNamespace(
        param=SimpleNamespace(max_iter=100, iter_size=3),
        iteration=10,
        cluster=SimpleNamespace(rank=rank, size=size),
        net=SimpleNamespace(nodes=nodes),
    )


def run(stream: io.StringIO, solver: SimpleNamespace) -> str:
    with Progress(solver, stream) as progress:
        log.start(stream=stream)
        for _ in range(20):
            solver.iteration += 1
            progress(solver)
        progress._line and progress._line.refresh()
        log.logger.info("Iteration 30, lr = 0.01")
        log.stop()
    return stream.getvalue()


def test_images_of_all_ranks_and_passes_count():
    assert images_per_iteration(fake_solver()) == 64 * 2 * 3


def test_a_terminal_shows_the_line_and_log_lines_stand_alone():
    shown = run(Terminal(), fake_solver())
    assert "30/100 iterations" in shown
    assert "images/s" in shown
    assert " left" in shown
    line = next(line for line in shown.splitlines() if "lr = 0.01" in line)
    assert line.lstrip("\r ").startswith("I")
    assert line.endswith("lr = 0.01")


@pytest.mark.parametrize("stream, rank", [(io.StringIO(), 0), (Terminal(), 1)])
def test_a_file_and_other_ranks_show_none(stream, rank):
    assert "iterations" not in run(stream, fake_solver(rank))
