"""The live progress line of a training run on a terminal."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from tqdm import tqdm

    from pycaffe_dist.solvers import Solver

_FORMAT = "{n_fmt}/{total_fmt} iterations  {images_rate} images/s  {remaining} left"


class Progress:
    """Shows iterations done and in total, images/s and the time left, inside a ``with``.

    Call it with the solver after every iteration.  It writes to ``stream`` (standard error) only if
    this is a terminal, or if mpirun copies it to one, so a log in a file has no progress lines.
    Log lines appear above it.
    """

    def __init__(self, stream: TextIO | None = None):
        self._stream = stream or sys.stderr
        self._line: tqdm | None = None

    def __enter__(self) -> Progress:
        return self

    def __call__(self, solver: Solver) -> None:
        """Show that the solver has finished an iteration; the first call opens the line."""
        if self._line is None:
            if solver.cluster.rank != 0 or not _ends_at_terminal(self._stream):
                return
            self._line = _open_line(solver, self._stream)
        self._line.update(solver.iteration - self._line.n)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._line is not None:
            self._line.close()


def _open_line(solver: Solver, stream: TextIO) -> tqdm:
    from tqdm import tqdm

    images = solver.effective_batch

    class Line(tqdm):
        @property
        def format_dict(self) -> dict[str, Any]:
            values = super().format_dict
            # tqdm's own rate is smoothed, and unknown until the second update.
            mean = (values["n"] - values["initial"]) / max(values["elapsed"], 1e-9)
            values["images_rate"] = f"{images * (values['rate'] or mean):.0f}"
            return values

    return Line(
        total=solver.param.max_iter,
        initial=solver.iteration,
        file=stream,
        bar_format=_FORMAT,
        leave=False,
        ncols=shutil.get_terminal_size().columns,
        smoothing=0.1,
    )


def _ends_at_terminal(stream: TextIO) -> bool:
    """Tell whether standard error ends at a terminal, of this process or of its mpirun.

    Open MPI's mpirun reads its ranks' standard error through a pipe and copies it to its own,
    unless one of its output options redirects it.
    """
    if stream.isatty():
        return True
    if stream is not sys.stderr or "OMPI_COMM_WORLD_RANK" not in os.environ:
        return False
    parent = Path(f"/proc/{os.getppid()}")
    try:
        target = os.readlink(parent / "fd" / "2")
        return target.startswith("/dev/pts/") and b"output" not in (parent / "cmdline").read_bytes()
    except OSError:
        return False
