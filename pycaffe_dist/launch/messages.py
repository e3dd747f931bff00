"""The ranks' reports to ``pcaffe launch``: short messages within their standard error.

Standard error reaches the launcher from every host and through every MPI's mpirun, without a port
or a shared folder. The launcher takes the messages out before a user sees them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress

#: Every process of a launched job has the job's name in this environment variable.
VARIABLE = "PCAFFE_JOB"
#: Rank 0 has done its command's work.
DONE = "done"
#: A rank ends the job.  After the word: "rank R on HOST".
FAILED = "failed"
#: Where the ranks are.  After the word: the host of every rank.
HOSTS = "hosts"
#: How far rank 0 has come.  After the word: a text to show until the next one.
PROGRESS = "progress"

#: Called with the kind and the details of a message.
Receiver = Callable[[str, str], None]

# Bytes that no log has, so that little output is held back.
_BEGIN, _END = b"\x02", b"\x03"
# A pipe writes up to this many bytes in one piece: other ranks' lines cannot come in between.
_MOST_BYTES = 4096


def report(kind: str, details: str = "") -> bool:
    """Send a message to the launcher of this job if it is short; tell whether there is one."""
    job = os.environ.get(VARIABLE)
    if not job:
        return False
    message = _begin(job) + f"{kind} {details}".encode() + _END + b"\n"
    if len(message) <= _MOST_BYTES:
        with suppress(OSError):  # nobody reads standard error
            os.write(2, message)
    return True


# Open MPI's line about a collective operation that a lost rank has ended, and the empty one below.
_NOISE_BEGINS = b"NBC_Progress: an error "
_NOISE = re.compile(rb"(?m)^" + _NOISE_BEGINS + rb"[^\n]*\n(?:\r?\n)?")
_LAST_NOISE = re.compile(rb"(?m)^" + _NOISE_BEGINS + rb"[^\n]*(?:\n\r?)?\Z")


def _begin_of_noise(data: bytes) -> int:
    """Return where a line of Open MPI begins that may not be whole yet; else the end."""
    if match := _LAST_NOISE.search(data):
        return match.start()
    line = data[data.rfind(b"\n") + 1 :]
    return len(data) - (len(line) if _NOISE_BEGINS.startswith(line) else 0)


def _begin(job: str) -> bytes:
    return _BEGIN + f"{VARIABLE} {job} ".encode()


class MessageFilter:
    """Takes the messages of a job out of its ranks' output.

    ``receive`` is called with the kind and the details of every message.  If ranks may be lost
    (``is_elastic``), Open MPI's lines about messages that have ended by that are dropped.
    """

    def __init__(self, job: str, receive: Receiver, is_elastic: bool = False):
        self._receive, self._is_elastic = receive, is_elastic
        self._begin = _begin(job)
        # mpirun may name the rank in front; a terminal ends lines with a carriage return.
        self._message = re.compile(
            rb"(?:\[\d+,\d+\]<stderr>: )?" + re.escape(self._begin) + rb"([^\x03]*)\x03\r?\n"
        )
        self._kept = b""

    def __call__(self, data: bytes) -> bytes:
        """Return the user's part of the next bytes, and of bytes kept back before."""
        data = self._message.sub(self._take, self._kept + data)
        begin = data.rfind(_BEGIN)
        if begin < 0 or not self._may_be_message(data[begin:]):
            begin = len(data)
        if self._is_elastic:
            begin = min(begin, _begin_of_noise(data))
        self._kept = data[begin:]
        return self._without_noise(data[:begin])

    def rest(self) -> bytes:
        """Return the bytes kept back, at the end of the output."""
        kept, self._kept = self._kept, b""
        return self._without_noise(kept)

    def _without_noise(self, data: bytes) -> bytes:
        return _NOISE.sub(b"", data) if self._is_elastic else data

    def _may_be_message(self, data: bytes) -> bool:
        """Tell whether this may be the beginning of a message whose rest has not come."""
        if len(data) > _MOST_BYTES:
            return False
        return data.startswith(self._begin) or self._begin.startswith(data)

    def _take(self, match: re.Match[bytes]) -> bytes:
        kind, _, details = match[1].decode(errors="replace").partition(" ")
        self._receive(kind, details)
        return b""
