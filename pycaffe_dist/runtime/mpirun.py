"""Runs mpirun in a session of its own, passes signals on to the ranks, and says which rank died."""

from __future__ import annotations

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from pycaffe_dist.errors import ClusterError
from pycaffe_dist.log import logger

# Open MPI refuses these two unless told: to run as root, as in containers, and to start more ranks
# than there are cores.
_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
# What ranks on other hosts are to see of this process's environment; mpirun passes on its own.
_PASSED_ON = re.compile(r"PYTHON|PCAFFE_|GLOG_|NUMBA_|OMP_|OPENBLAS_|LD_LIBRARY_PATH$")
# Open MPI's mpirun does not pass the first three on: it ends the job.  SIGUSR1 means to a rank what
# SIGINT means, SIGUSR2 what SIGHUP means, and the two at once what SIGTERM means.
_PASSED_AS = {
    signal.SIGINT: (signal.SIGUSR1,),
    signal.SIGHUP: (signal.SIGUSR2,),
    signal.SIGTERM: (signal.SIGUSR2, signal.SIGUSR1),
    signal.SIGUSR1: (signal.SIGUSR1,),
    signal.SIGUSR2: (signal.SIGUSR2,),
}
_SECONDS_TO_END = 5.0
_TAIL_BYTES = 1 << 16
# What Open MPI's mpirun says, and what it means.
_DEATHS = (
    (
        r"process rank (?P<rank>\d+) with PID (?P<pid>\d+) on node (?P<host>\S+)\s+exited on\s+"
        r"signal (?P<signal>\d+(?: \([^)]*\))?)",
        "rank {rank} (process {pid} on {host}) was ended by signal {signal}",
    ),
    (
        r"process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+)\s+calling\s+\"abort\"",
        "rank {rank} on {host} gave up, for the reason that it has told",
    ),
    (
        r"Process name: \[.*,(?P<rank>\d+)\]\s+Exit code: +(?P<code>\d+)",
        "rank {rank} ended with status {code}",
    ),
    (
        r"(?i)lost communication with[^.]*?(?:node|host):?\s+(?P<host>[^\s.]+)",
        "host {host} does not answer any more",
    ),
    (
        r"daemon failed to report back(?:.|\n)*?Remote host:\s+(?P<host>\S+)",
        "no rank could be started on host {host}: is it up, does ssh reach it without a password, "
        "is mpirun there at the same path, and does no firewall keep it from answering?",
    ),
)


def find() -> str:
    """Return the mpirun of this Python's environment, or else the one on the path.

    Raises ClusterError when there is none.
    """
    beside = Path(sys.executable).parent / "mpirun"
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        raise ClusterError(
            "there is no mpirun: pip install 'pycaffe-dist[mpi]' brings one, or load the cluster's "
            "MPI so that mpirun is on the PATH"
        )
    return found


def command(ranks: int, hostfile: str, extra: Sequence[str], program: Sequence[str]) -> list[str]:
    """Return mpirun's command line for ``pcaffe`` with the arguments ``program``."""
    line = [find(), "-n", str(ranks)]
    if hostfile:
        line += ["--hostfile", hostfile]
    for name in sorted(os.environ):
        if _PASSED_ON.match(name):
            line += ["-x", name]
    return [*line, *extra, sys.executable, "-m", "pycaffe_dist", *program]


def check_hostfile(path: str, ranks: int) -> None:
    """Raise ClusterError, with the line, when a hostfile cannot be what was meant."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError as error:
        raise ClusterError(f"cannot read the hostfile {path}: {error.strerror}") from None
    slots: list[int | None] = []
    for number, line in enumerate(lines, 1):
        host, *settings = line.partition("#")[0].split() or [""]
        found = re.search(r"(?:^| )slots *= *(\S*)", " ".join(settings))
        if found and not (found[1].isdigit() and int(found[1])):
            raise ClusterError(
                f"{path}:{number}: slots of {host} is the number of its ranks, not '{found[1]}'"
            )
        if host:
            slots.append(int(found[1]) if found else None)
    if not slots:
        raise ClusterError(f"the hostfile {path} names no host")
    # A host without a number takes as many ranks as it has cores.
    known = sum(number for number in slots if number is not None)
    if None not in slots and known < ranks:
        raise ClusterError(
            f"the hostfile {path} has slots for {known} rank{'s' * (known != 1)}, but {ranks} are "
            "to be launched (-n)"
        )


def who_died(output: str) -> str:
    """Return what mpirun says of the rank that ended the job; empty when it says nothing."""
    for pattern, words in _DEATHS:
        if match := re.search(pattern, output):
            return words.format(**match.groupdict())
    return ""


class Job:
    """One run of mpirun.  While entered, this process's signals go to the ranks instead.

    A second SIGINT ends the job at once.  Enter it in the main thread.
    """

    def __init__(self, line: Sequence[str]):
        self._line = line
        self._previous: dict[signal.Signals, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._tail = b""
        self.asked_to_stop = False
        self.ended_at_once = False

    def __enter__(self) -> Job:
        # Where a terminal shows what the ranks print, mpirun, too, is to find one.
        open_end = pty.openpty if sys.stderr.isatty() else os.pipe
        read, write = open_end()
        for number in _PASSED_AS:
            self._previous[number] = signal.signal(number, self._handle)
        self._process = subprocess.Popen(
            self._line,
            stderr=write,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**_ENVIRONMENT, **os.environ},
        )
        os.close(write)
        self._reader = threading.Thread(target=self._pass_on, args=(read,), daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *details: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._process is not None and self._process.poll() is None:
            self._end()

    def wait(self) -> int:
        """Return mpirun's exit status once it and its ranks have ended."""
        assert self._process is not None
        status = self._process.wait()
        self._reader.join(_SECONDS_TO_END)
        return status

    @property
    def who_died(self) -> str:
        """What mpirun said of the rank that ended the job."""
        return who_died(self._tail.decode(errors="replace").replace("\r", ""))

    def _pass_on(self, source: int) -> None:
        """Write what the job writes to standard error there, and keep its end."""
        with suppress(OSError):  # a terminal's other end is closed with an error
            while data := os.read(source, 1 << 16):
                sys.stderr.buffer.write(data)
                sys.stderr.flush()
                self._tail = (self._tail + data)[-_TAIL_BYTES:]
        os.close(source)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.asked_to_stop:
            self.ended_at_once = True
            threading.Thread(target=self._end, daemon=True).start()
            return
        self.asked_to_stop |= number in (signal.SIGINT, signal.SIGTERM)
        for passed in _PASSED_AS[signal.Signals(number)]:
            self._send(passed)

    def _send(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def _end(self) -> None:
        """End mpirun, which ends its ranks; if it does not, end them, too."""
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


def run(line: Sequence[str], restarts: int, again: Callable[[], Sequence[str]]) -> int:
    """Run mpirun; after a failure run it again up to ``restarts`` times, as ``again`` says.

    Returns the exit status: 0, or 130 when a second SIGINT ended the job.  Raises ClusterError,
    with the rank that died, if the last run failed.
    """
    for number in range(restarts + 1):
        with Job(line) as job:
            status = job.wait()
        if job.ended_at_once:
            return 128 + signal.SIGINT
        if status == 0:
            return 0
        died = job.who_died or f"mpirun ended with status {status}"
        if job.asked_to_stop or number == restarts:
            break
        logger.warning("The job failed: %s; restart %d of %d", died, number + 1, restarts)
        line = again()
    raise ClusterError(f"the job failed: {died}")
