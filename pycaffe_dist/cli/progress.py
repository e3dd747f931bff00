"""The live progress line of a training run on a terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from tqdm import tqdm

    from pycaffe_dist.solvers import Solver

_FORMAT = "{n_fmt}/{total_fmt} iterations  {postfix}  {remaining} left"


class Progress:
    """Shows iterations done and in all, images/s and the time left, while it is entered.

    Call it with the solver after every iteration.  It writes to ``stream`` (standard error) only if
    that is a terminal, so a log that goes to a file stays clean; log lines pass above it.
    """

    def __init__(self, solver: Solver, stream: TextIO | None = None):
        self._solver = solver
        self._stream = stream or sys.stderr
        self._images = images_per_iteration(solver)
        self._line: tqdm | None = None

    def __enter__(self) -> Progress:
        if self._solver.cluster.rank == 0 and self._stream.isatty():
            from tqdm import tqdm

            self._line = tqdm(
                total=self._solver.param.max_iter,
                initial=self._solver.iteration,
                file=self._stream,
                bar_format=_FORMAT,
                leave=False,
                dynamic_ncols=True,
            )
        return self

    def __call__(self, solver: Solver) -> None:
        """Show that the solver has finished an iteration."""
        line = self._line
        if line is None:
            return
        rate = line.format_dict["rate"]
        if rate:
            line.set_postfix_str(f"{rate * self._images:.0f} images/s", refresh=False)
        line.update(solver.iteration - line.n)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._line is not None:
            self._line.close()


def images_per_iteration(solver: Solver) -> int:
    """Return how many images (records) all ranks together read for one update."""
    batch = 0
    for node in solver.net.nodes:
        if not node.bottom and node.top and node.top[0].shape:
            batch = max(batch, node.top[0].shape[0])
    return batch * solver.cluster.size * solver.param.iter_size
