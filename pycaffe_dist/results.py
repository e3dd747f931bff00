"""The results of commands on standard output: as text, or as JSON for programs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Protocol

from pycaffe_dist import json_lines, log
from pycaffe_dist.launch import environment

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    class Result(DataclassInstance, Protocol):
        """A command's result: a dataclass that can show itself as text."""

        def table(self) -> str:
            """Return the result as aligned text."""
            ...


def show(result: Result, as_json: bool) -> None:
    """Print a result on rank 0, whatever is logged: as text, or its fields as one line of JSON.

    In JSON a number that is not finite is null.
    """
    if environment.rank():
        return
    shown = json_lines.to_line(dataclasses.asdict(result)) if as_json else result.table()
    with log.line_removed():
        print(shown, flush=True)
