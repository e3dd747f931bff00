"""Logging in glog's format, with Caffe's words, so that parse_log scripts keep working.

``I1121 08:37:34.808195 21316 solver.py:45] Initializing solver from parameters:``
"""

from __future__ import annotations

import logging
import sys
import time
from typing import TextIO

logger = logging.getLogger("pcaffe")


class GlogFormatter(logging.Formatter):
    """Formats a record as glog does: level letter, date, time, process, file and line."""

    def format(self, record: logging.LogRecord) -> str:
        letter = "F" if record.levelno >= logging.CRITICAL else record.levelname[0]
        seconds = int(record.created)
        micros = int((record.created - seconds) * 1e6)
        when = time.strftime("%m%d %H:%M:%S", time.localtime(seconds))
        head = f"{letter}{when}.{micros:06d} {record.process:5d} {record.filename}:{record.lineno}]"
        text = f"{head} {record.getMessage()}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


class _ProgressAwareHandler(logging.StreamHandler):
    """Writes to standard error; a live progress line is taken off first and put back after."""

    def emit(self, record: logging.LogRecord) -> None:
        if "tqdm" in sys.modules and self.stream.isatty():
            from tqdm import tqdm

            with tqdm.external_write_mode(file=self.stream):
                super().emit(record)
        else:
            super().emit(record)


def start(level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Send pcaffe's log to ``stream`` (standard error); a second call replaces the first."""
    stop()
    handler = _ProgressAwareHandler(stream)
    handler.setFormatter(GlogFormatter())
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False


def stop() -> None:
    """Undo :func:`start`."""
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    logger.propagate = True
    logger.setLevel(logging.NOTSET)
