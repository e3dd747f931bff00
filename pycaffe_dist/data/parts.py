"""Splits a database into parts, one for each rank with its own disk."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from pycaffe_dist.data.partition import partition_name
from pycaffe_dist.data.sources import Database
from pycaffe_dist.data.writers import create_database
from pycaffe_dist.errors import DataError


def write_parts(
    source: Database,
    target: str,
    backend: str,
    parts: int,
    progress: Callable[[], None] = lambda: None,
) -> list[int]:
    """Write record i of ``source`` to database ``target_r`` with r = i modulo ``parts``.

    So rank r reads the same records as from the whole database on a shared file system.  Keys and
    values do not change.  Returns the parts' numbers of records; after an error no part remains.
    """
    if parts > source.count:
        raise DataError(f"'{source.path}' has {source.count} records, too few for {parts} parts")
    counts = [0] * parts
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(create_database(partition_name(target, rank), backend))
            for rank in range(parts)
        ]
        for number, (key, value) in enumerate(source.items()):
            writers[number % parts].put(key, value)
            counts[number % parts] += 1
            progress()
    return counts
