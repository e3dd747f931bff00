"""Logging in glog's format, with Caffe's words, so that parse_log scripts keep working.

``I1121 08:37:34.808195 21316 solver.py:45] Initializing solver from parameters:``

Modules log through ``logger``; numbers in messages go through :func:`fmt`, details have the level
``DETAIL``, and :func:`status` shows how far a command has come.  The command line calls
:func:`start`; a Python program that does not keeps Python's own logging rules.  The module itself
can be called, as pycaffe's ``caffe.log`` is: ``pycaffe_dist.log("a line")``.
"""

from __future__ import annotations

import contextlib
import getpass
import itertools
import logging
import os
import shutil
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, TextIO

from pycaffe_dist.errors import PcaffeError, UsageError

logger = logging.getLogger("pcaffe")

# glog's four severities, by the numbers of --minloglevel.
SEVERITIES = (logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)

# The level of glog's VLOG(1): shown with -v 1, and written to log files.
DETAIL = logging.INFO - 1

# Without a terminal, a line tells how far a command has come when the log was silent for so long.
_SILENT_SECONDS = 30.0


def fmt(number: float) -> str:
    """Return a number as C++ streams print a float: six significant digits (``0.00999251``)."""
    return f"{float(number):.6g}"


def fmt_bytes(count: float) -> str:
    """Return a number of bytes in the largest unit of which there is one: ``1.646 MiB``."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"


_HINT = " (an unexpected error, maybe of pcaffe itself: --debug shows where it comes from)"


class GlogFormatter(logging.Formatter):
    """Formats a record as glog does: severity, date, time, process, file and line.

    The message starts with ``rank``, unless it is 0.  With ``debug``, the traceback follows an
    error that ends the run; without it, a hint at --debug follows an unexpected error.
    """

    def __init__(self, rank: int = 0, debug: bool = False):
        super().__init__()
        self._prefix = f"[rank {rank}] " if rank else ""
        self._debug = debug

    def format(self, record: logging.LogRecord) -> str:
        letter = "FEWI"[sum(record.levelno < level for level in SEVERITIES[1:])]
        seconds = int(record.created)
        micros = int((record.created - seconds) * 1e6)
        when = time.strftime("%m%d %H:%M:%S", time.localtime(seconds))
        head = f"{letter}{when}.{micros:06d} {record.process:5d} {record.filename}:{record.lineno}]"
        text = f"{head} {self._prefix}{record.getMessage()}"
        error = getattr(record, "error", None)
        if error is not None and self._debug:
            return f"{text}\n{''.join(traceback.format_exception(error)).rstrip()}"
        return text + _HINT if record.exc_info else text


class _TerminalHandler(logging.StreamHandler):
    """Writes to a stream; on a terminal, a last line that changes stays below what is written."""

    def __init__(self, stream: TextIO | None = None):
        super().__init__(stream)
        self._status = ""
        self._within_a_line = False  # what a block has written does not end with its line
        self._written_at = time.monotonic()

    def emit(self, record: logging.LogRecord) -> None:
        with self.line_removed():
            super().emit(record)

    @contextmanager
    def line_removed(self, ends_line: bool = True) -> Iterator[None]:
        """Remove the last line while a block writes to the terminal, and restore it if it may."""
        with self.lock or contextlib.nullcontext():
            self._draw("")
            try:
                yield
            finally:
                self._written_at = time.monotonic()
                self._within_a_line = not ends_line
                self._draw(self._status)

    def show(self, text: str) -> None:
        """Show a text as the last line; without a terminal, log it now and then."""
        with self.lock or contextlib.nullcontext():
            if self._is_terminal():
                self._draw(text)
                self._status = text
            elif text and time.monotonic() - self._written_at >= _SILENT_SECONDS:
                logger.info("%s", text)

    def _is_terminal(self) -> bool:
        return self.stream is not None and self.stream.isatty()

    def _draw(self, text: str) -> None:
        """Write a text over the last line; an empty one removes it."""
        if self._within_a_line or not (text or self._status):
            return
        with contextlib.suppress(OSError):
            self.stream.write(f"\r\x1b[K{text[: _columns(self.stream) - 1]}")
            self.stream.flush()

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop a line if the reader is gone or the disk full; show any other error, it is a bug."""
        if self.stream is not None and not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def close(self) -> None:
        """Remove the last line."""
        if self._status:
            self.show("")
        super().close()


def _columns(terminal: TextIO) -> int:
    """Return the width of a terminal, which may not be standard output's."""
    with contextlib.suppress(OSError):
        if columns := os.get_terminal_size(terminal.fileno()).columns:
            return columns
    return shutil.get_terminal_size().columns


class _FileHandler(logging.Handler):
    """Appends lines to an open unbuffered binary file; drops lines that cannot be written.

    The first failure is logged as a warning.  Later lines are tried, too: the disk may have room.
    """

    def __init__(self, file: BinaryIO):
        super().__init__()
        self._file = file
        self._has_warned = False

    def write(self, text: str) -> None:
        """Write a text whole or not at all."""
        begin = self._file.tell()
        data = memoryview(text.encode(errors="backslashreplace"))
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(self._file.seek(begin))
            self._warn(error)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        try:
            self.write(self.format(record) + "\n")
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):
            self._file.close()
        super().close()

    def _warn(self, error: OSError) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        text = (
            f"{self._file.name}: cannot be written: {error.strerror}; lines of the log are dropped"
        )
        record = logger.makeRecord(logger.name, logging.WARNING, __file__, 0, text, (), None)
        for handler in _terminals() or [_TerminalHandler()]:
            handler.handle(record)


_started: dict[str, Any] = {}  # the arguments of the last `start`


def start(
    level: int = logging.INFO,
    stream: TextIO | None = None,
    rank: int = 0,
    log_dir: str = "",
    to_stream: bool = True,
    debug: bool = False,
    verbosity: int = 0,
    threshold: int = logging.ERROR,
) -> None:
    """Send pcaffe's log to ``stream`` (standard error); a second call replaces the first.

    A rank other than 0 logs warnings and errors only, with its rank in front.  With ``log_dir``,
    rank 0 also writes a file there, named as glog names it, details included; with ``to_stream``
    False, only lines from the level ``threshold`` on then go to the stream.  ``verbosity`` 1 adds
    details.  ``debug`` adds tracebacks to errors.  Raises UsageError when the file cannot be
    written.
    """
    _started.update(locals())
    least = max(level, logging.WARNING) if rank else level
    handlers: list[logging.Handler] = []
    if log_dir and rank == 0:
        handlers.append(_file_handler(Path(log_dir)))
        handlers[0].setLevel(_with_details(least, max(verbosity, 1)))
    everything = to_stream or not handlers
    handlers.append(_TerminalHandler(stream))
    handlers[-1].setLevel(_with_details(least, verbosity) if everything else max(least, threshold))
    stop()
    for handler in handlers:
        handler.setFormatter(GlogFormatter(rank, debug))
        logger.addHandler(handler)
    logger.setLevel(min(handler.level for handler in handlers))
    logger.propagate = False


def _with_details(level: int, verbosity: int) -> int:
    """Return the lowest level to log; glog's VLOG(n) is n below information."""
    return max(1, logging.INFO - max(0, verbosity)) if level == logging.INFO else level


def status(text: str) -> None:
    """Show how far a command has come; an empty text removes that.

    On a terminal it is the last line, below the log.  Without one it becomes a line of the log when
    nothing else was written for half a minute.
    """
    for handler in _terminals():
        handler.show(text)


@contextmanager
def line_removed(ends_line: bool = True) -> Iterator[None]:
    """Remove the line of :func:`status` while a block writes to the terminal itself.

    If what it writes ends within a line, nothing is shown before another block has ended that.
    """
    with contextlib.ExitStack() as stack:
        for handler in _terminals():
            stack.enter_context(handler.line_removed(ends_line))
        yield


def _terminals() -> list[_TerminalHandler]:
    return [handler for handler in logger.handlers if isinstance(handler, _TerminalHandler)]


def change_rank(rank: int) -> None:
    """Log as another rank of the run, after ranks were lost."""
    if _started:
        start(**{**_started, "rank": rank})


def stop() -> None:
    """Undo :func:`start`."""
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.propagate = True
    logger.setLevel(logging.NOTSET)


@contextmanager
def silent() -> Iterator[None]:
    """Drop log lines of the calling thread."""
    thread = threading.get_ident()

    def is_kept(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger.addFilter(is_kept)
    try:
        yield
    finally:
        logger.removeFilter(is_kept)


def fatal(error: BaseException, who: str = "") -> None:
    """Log an error as glog's FATAL line, with the place that raised it; ``who`` goes before it.

    An unexpected error also gets its type, and its traceback as `GlogFormatter` prints it.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    file, line = ("pcaffe", 0)
    if trace is not None:
        file, line = trace.tb_frame.f_code.co_filename, trace.tb_lineno
    text = str(error) or type(error).__name__  # a MemoryError may say nothing
    info: Any = None
    if isinstance(error, KeyboardInterrupt):
        text = "interrupted"
    elif not isinstance(error, PcaffeError | MemoryError):
        text = " ".join(f"{type(error).__name__}: {text}".split())
        info = type(error), error, error.__traceback__
    args, level = (who + text,), logging.CRITICAL
    extra = {"error": error}
    logger.handle(logger.makeRecord(logger.name, level, file, line, "%s", args, info, extra=extra))


def _file_handler(folder: Path) -> _FileHandler:
    """Open a log file as glog does: header, full name, and a link called ``pcaffe.INFO``."""
    now, host = time.localtime(), socket.gethostname()
    stamp = time.strftime("%Y%m%d-%H%M%S", now)
    name = f"pcaffe.{host}.{_user()}.log.INFO.{stamp}.{os.getpid()}"
    try:
        file = _new_file(folder / name)
    except OSError as error:
        raise UsageError(f"cannot write a log file in {folder}: {error.strerror}") from None
    handler = _FileHandler(file)
    handler.write(
        f"Log file created at: {time.strftime('%Y/%m/%d %H:%M:%S', now)}\n"
        f"Running on machine: {host}\n"
        "Log line format: [IWEF]mmdd hh:mm:ss.uuuuuu processid file:line] msg\n"
    )
    _link(folder / "pcaffe.INFO", os.path.basename(file.name))
    return handler


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        return str(os.getuid())


def _new_file(path: Path) -> BinaryIO:
    """Create a file of this name, with a number appended if it exists; raises OSError.

    Containers may share host names and process numbers.
    """
    for number in itertools.count():
        with contextlib.suppress(FileExistsError):
            return open(f"{path}.{number}" if number else path, "xb", buffering=0)
    raise AssertionError  # there are numbers enough


def _link(link: Path, name: str) -> None:
    """Point a symbolic link to a file in its folder, atomically, if the file system has links."""
    new = link.with_name(f".{name}.link")
    with contextlib.suppress(OSError):
        new.symlink_to(name)
        new.replace(link)


class _Callable(ModuleType):
    """This module's type: ``caffe.log`` is a function in pycaffe, and a module here."""

    def __call__(self, message: str) -> None:
        """Write a line to the log."""
        logger.info("%s", message, stacklevel=2)


sys.modules[__name__].__class__ = _Callable
