"""Settings for reading data: threads, bad images, the place of files.

They are set once at the start of the process, like the number of compute threads.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from pycaffe_dist.config import flag
from pycaffe_dist.threads import thread_count

GIB = 1 << 30
MOST_DECODERS = 4
_CORES_FOR_TWO_READERS = 8


@dataclass(frozen=True)
class ReadingOptions:
    """Settings of a process's data layers; ``cache_limit`` is in GiB, 0 is half of the memory.

    With "skip", the next image of the data set replaces an unreadable one.
    """

    readers: int = flag(
        0,
        "threads per data layer that load batches; 0 is 1, or 2 from 8 cores per rank on",
        metavar="N",
    )
    decoders: int = flag(
        0,
        "threads per data layer that decode images; 0 is one per core, at most 4",
        metavar="N",
    )
    on_error: str = flag(
        "stop",
        "for an image that cannot be read: stop, or skip it and read the next one",
        choices={"stop": "stop", "skip": "skip"},
    )
    shared_file_system: bool = flag(
        True,
        "all ranks read one database, each its share; else rank r reads SOURCE_r (see "
        "partition_data)",
    )
    cache: str = flag(
        "none",
        "keep databases in memory, once per node: unchanged records, or decoded images",
        choices={cache: cache for cache in ("none", "records", "images")},
    )
    cache_limit: float = flag(
        0.0,
        "the maximum size of one database's cache; 0 is half of the memory",
        metavar="GIB",
    )

    def reading_threads(self) -> int:
        """Return the number of threads per data layer that load batches."""
        return self.readers or (2 if thread_count() >= _CORES_FOR_TWO_READERS else 1)

    def decoding_threads(self) -> int:
        """Return the number of threads per data layer that decode images."""
        return self.decoders or min(MOST_DECODERS, thread_count())

    def cache_bytes(self) -> int:
        """Return the maximum size of a database's cache."""
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return int(self.cache_limit * GIB) or memory // 2


_current = ReadingOptions()


def set_options(options: ReadingOptions) -> None:
    """Use ``options`` in data layers that are set up from now on."""
    global _current
    _current = options


def options() -> ReadingOptions:
    """Return the current options."""
    return _current
