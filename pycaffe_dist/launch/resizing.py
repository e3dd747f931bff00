"""What ``pcaffe launch`` asks its running ranks for: other numbers of ranks on their hosts.

A file on the launcher's host has the last request; the ranks there look for it.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pycaffe_dist.launch import messages


@dataclass(frozen=True, order=True)
class Request:
    """The ``number``-th request of a job, counted from 1: so many ``ranks`` on each host."""

    number: int = 0
    ranks: Mapping[str, int] = field(default_factory=dict, compare=False)

    @property
    def size(self) -> int:
        """The number of all ranks."""
        return sum(self.ranks.values())

    def stay(self, hosts: Sequence[str]) -> list[bool]:
        """Tell which ranks on these ``hosts`` stay: the first ones on each."""
        return [
            hosts[:rank].count(host) < self.ranks.get(host, 0) for rank, host in enumerate(hosts)
        ]

    def join(self, hosts: Sequence[str]) -> list[str]:
        """Return the host of every rank that joins those on these ``hosts``."""
        return list((Counter(self.ranks) - Counter(hosts)).elements())

    def encode(self) -> bytes:
        """Return the request as bytes for `decode`."""
        return json.dumps(asdict(self)).encode()


def decode(data: bytes) -> Request:
    """Return the request that `Request.encode` has made bytes of."""
    return Request(**json.loads(data))


class RequestFile:
    """The file with the last request to the ranks of a job, by default this process's.

    The user notes in ``done`` which request was the last to be done.
    """

    def __init__(self, job: str | None = None):
        job = os.environ.get(messages.VARIABLE, "") if job is None else job
        self._path = Path(tempfile.gettempdir()) / f"pcaffe-ranks-{job}" if job else None
        self._modified = 0
        self._last = self.done = Request()

    def read(self) -> Request:
        """Return the last request; its number is 0 if there is none on this host."""
        if self._path is not None:
            with suppress(OSError):
                modified = self._path.stat().st_mtime_ns
                if modified != self._modified:
                    self._last = decode(self._path.read_bytes())
                    self._modified = modified
        return self._last

    def has_new(self) -> bool:
        """Tell whether there is a request that is not ``done``."""
        return self.read() > self.done

    def write(self, ranks: Mapping[str, int]) -> None:
        """Replace the request by a new one; raises OSError."""
        assert self._path is not None
        new = self._path.with_name(f"{self._path.name}.new")
        new.write_bytes(Request(self.read().number + 1, ranks).encode())
        new.replace(self._path)

    def remove(self) -> None:
        """Remove the file, if there is one."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
