"""How this rank reads data: threads, bad images, where its files are.

Like the number of compute threads it is one setting of the process, made once at its start.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from pycaffe_dist.threads import thread_count

ON_ERROR = ("stop", "skip")
CACHES = ("none", "records", "images")
GIB = 1 << 30
MOST_DECODERS = 4
_CORES_FOR_TWO_READERS = 8


@dataclass(frozen=True)
class ReadingOptions:
    """``readers`` and ``decoders`` are threads per data layer; 0 chooses by the rank's cores.

    ``on_error`` says what becomes of an image that cannot be read: "stop" raises, "skip" puts the
    next one of its data set in its place.  Without a ``shared_file_system`` rank r reads a
    database of its own, whose name ends in ``_r``.  ``cache`` keeps databases in memory that the
    processes of a node share, as they are ("records") or with images decoded ("images"); each may
    take ``cache_limit`` GiB, or with 0 half of the machine's memory.
    """

    readers: int = 0
    decoders: int = 0
    on_error: str = "stop"
    shared_file_system: bool = True
    cache: str = "none"
    cache_limit: float = 0.0

    def reading_threads(self) -> int:
        """Return how many threads of a data layer make batches."""
        return self.readers or (2 if thread_count() >= _CORES_FOR_TWO_READERS else 1)

    def decoding_threads(self) -> int:
        """Return how many threads of a data layer decode images."""
        return self.decoders or min(MOST_DECODERS, thread_count())

    def cache_bytes(self) -> int:
        """Return how many bytes the cache of a database may take."""
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return int(self.cache_limit * GIB) or memory // 2


_current = ReadingOptions()


def set_options(options: ReadingOptions) -> None:
    """Read as ``options`` say in data layers that are set up from now on."""
    global _current
    _current = options


def options() -> ReadingOptions:
    """Return the options that count."""
    return _current
