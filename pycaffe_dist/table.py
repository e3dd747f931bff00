"""Aligned text: rows of cells as columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence

RULE = None


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
