"""Passes on a job's output, and keeps its last lines."""

from __future__ import annotations

import os
import pty
import threading
from contextlib import suppress
from typing import TextIO

from pycaffe_dist import log
from pycaffe_dist.launch.messages import MessageFilter
from pycaffe_dist.log import logger

_TAIL_BYTES = 1 << 16


class Output:
    """One of a job's two outputs: a thread passes it on to a stream of ours.

    ``stream`` is None if it is closed.  When it has no reader any more, or its disk is full, lines
    are dropped: days of training are worth more than their log.
    """

    def __init__(self, name: str, stream: TextIO | None, message_filter: MessageFilter):
        self._name, self._stream, self._filter = name, stream, message_filter
        self._tail = b""
        self._has_warned = stream is None
        # If a terminal shows the output, mpirun must write to a terminal, too.
        self._is_terminal = stream is not None and stream.isatty()
        self._source, self.target = (pty.openpty if self._is_terminal else os.pipe)()
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._thread.start()

    @property
    def tail(self) -> str:
        """The job's last output."""
        return self._tail.decode(errors="replace").replace("\r", "")

    def close(self) -> None:
        """Close our copy of the end that the job writes to."""
        os.close(self.target)

    def wait(self, timeout: float) -> None:
        """Return when all output has been passed on, or after ``timeout`` seconds."""
        self._thread.join(timeout)

    def _pass_on(self) -> None:
        with suppress(OSError):  # a terminal's other end is closed with an error
            while data := os.read(self._source, 1 << 16):
                # Open MPI ends its own messages with a zero byte, which would begin our next line.
                self._write(self._filter(data.replace(b"\0", b"")))
        self._write(self._filter.rest())
        os.close(self._source)

    def _write(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        if self._stream is None or not data:
            return
        try:
            ends_line = data.endswith(b"\n") or not self._is_terminal
            with log.line_removed(ends_line):
                while data:
                    data = data[os.write(self._stream.fileno(), data) :]
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "cannot write to %s (%s): lines are dropped, and the job goes on",
                    self._name,
                    error.strerror,
                )
