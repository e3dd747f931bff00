"""Rows of cells as columns: aligned text, or a table in HTML."""

from __future__ import annotations

import html
from collections.abc import Collection, Sequence

RULE = None


class Html(str):
    """A cell that is HTML already."""


def aligned(rows: Sequence[Sequence[str] | None], left: Collection[int] = (0,)) -> str:
    """Return rows of cells as lines: the columns ``left`` flush left, the others flush right.

    ``RULE`` in place of a row is a line of dashes.
    """
    widths = [max(map(len, column)) for column in zip(*filter(None, rows))]
    rule = ["-" * width for width in widths]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if number in left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(rule if row is RULE else row, widths))
        ).rstrip()
        for row in rows
    )


def as_html(rows: Sequence[Sequence[str] | None], left: Collection[int] = (0,)) -> str:
    """Return the same rows as a table in HTML, whose head is the first row."""
    lines = []
    for number, row in enumerate(filter(None, rows)):
        kind = "td" if number else "th"
        cells = (
            f'<{kind} style="text-align: {"left" if column in left else "right"}">'
            f"{cell if isinstance(cell, Html) else html.escape(cell)}</{kind}>"
            for column, cell in enumerate(row)
        )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join(["<table>", *lines, "</table>"])
