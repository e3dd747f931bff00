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
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, TextIO

from pycaffe_dist.errors import WRONG_INPUT, ClusterError, UsageError
from pycaffe_dist.log import logger
from pycaffe_dist.schema.reading import read_lines

# Open MPI refuses these two unless told: to run as root, as in containers, and to start more ranks
# than there are cores.
ENVIRONMENT = {
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
# What mpirun says, Open MPI's and then MPICH's, and what it means.
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
    (
        r"PID (?P<pid>\d+) RUNNING AT (?P<host>\S+)(?:.|\n)*?EXIT STRING: (?P<name>[^\n(]+) "
        r"\(signal (?P<signal>\d+)\)",
        "process {pid} on {host} was ended by signal {signal} ({name})",
    ),
    (
        r"PID (?P<pid>\d+) RUNNING AT (?P<host>\S+)\s+=\s+EXIT CODE: (?P<code>\d+)",
        "process {pid} on {host} ended with status {code}",
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
    """Return mpirun's command line for ``pcaffe`` with the arguments ``program``.

    Raises ClusterError when the hostfile cannot be what was meant.
    """
    mpirun = find()
    hosts = read_hostfile(hostfile, ranks) if hostfile else []
    line = [mpirun, "-n", str(ranks)]
    if _is_hydra(mpirun):
        # MPICH's writes hosts in another way, and passes the whole environment on.
        if hosts:
            line += ["-hosts", ",".join(f"{host}:{slots or 1}" for host, slots in hosts)]
    else:
        if hosts:
            line += ["--hostfile", hostfile]
        for name in sorted(filter(_PASSED_ON.match, os.environ)):
            line += ["-x", name]
    return [*line, *extra, sys.executable, "-m", "pycaffe_dist", *program]


def _is_hydra(mpirun: str) -> bool:
    """Tell whether this is the mpirun of MPICH, or of one of those that were made from it."""
    shown = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False)
    return bool(re.search(r"HYDRA|Intel\(R\) MPI", shown.stdout))


def _ranks_below(process: int) -> Iterator[int]:
    """Return the processes of pcaffe that a process, or one that it has started, has started."""
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):  # it has ended
            for child in map(int, task.read_text().split()):
                if b"pycaffe_dist" in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
                    yield child
                else:
                    yield from _ranks_below(child)


def read_hostfile(path: str, ranks: int) -> list[tuple[str, int | None]]:
    """Return the hosts of a hostfile, and on how many ranks each is to have.

    Raises ClusterError, with the line, when it cannot be what was meant.
    """
    lines = read_lines(path, lambda message: ClusterError(f"the hostfile {path} {message}"))
    hosts: list[tuple[str, int | None]] = []
    for number, line in enumerate(lines, 1):
        host, *settings = line.partition("#")[0].split() or [""]
        found = re.search(r"(?:^| )slots *= *(\S*)", " ".join(settings))
        if found and not (found[1].isdigit() and int(found[1])):
            raise ClusterError(
                f"{path}:{number}: slots of {host} is the number of its ranks, not '{found[1]}'"
            )
        if host:
            hosts.append((host, int(found[1]) if found else None))
    if not hosts:
        raise ClusterError(f"the hostfile {path} names no host")
    # A host without a number takes as many ranks as it has cores.
    slots = [number for _, number in hosts]
    known = sum(number for number in slots if number is not None)
    if None not in slots and known < ranks:
        raise ClusterError(
            f"the hostfile {path} has slots for {known} rank{'s' * (known != 1)}, but {ranks} are "
            "to be launched (-n)"
        )
    return hosts


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
        self._is_hydra = _is_hydra(line[0])
        self._previous: dict[signal.Signals, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: list[signal.Signals] = []
        self._passed: set[int] = set()
        self._readers: list[threading.Thread] = []
        self._tails: dict[BinaryIO, bytes] = {}
        self.asked_to_stop = False
        self.ended_at_once = False

    def __enter__(self) -> Job:
        for number in _PASSED_AS:
            self._previous[number] = signal.signal(number, self._handle)
        output, errors = self._passed_to(sys.stdout), self._passed_to(sys.stderr)
        self._process = subprocess.Popen(
            self._line,
            stdout=output,
            stderr=errors,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**ENVIRONMENT, **os.environ},
        )
        os.close(output)
        os.close(errors)
        for number in self._waiting:
            self._send(number)
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
        for reader in self._readers:
            reader.join(_SECONDS_TO_END)
        return status

    def ended_by_what_was_passed(self, status: int) -> bool:
        """Tell by mpirun's exit status whether a signal came before anybody listened to it.

        Until mpirun, and then a rank's Python, have set themselves up, it ends their processes.
        """
        return (-status if status < 0 else status - 128) in self._passed

    @property
    def who_died(self) -> str:
        """What mpirun said of the rank that ended the job."""
        tails = [tail.decode(errors="replace") for tail in self._tails.values()]
        return who_died("\n".join(tails).replace("\r", ""))

    def _passed_to(self, stream: TextIO) -> int:
        """Return a file for the job to write to: a thread passes it on, and keeps its end."""
        # Where a terminal shows what the ranks print, mpirun, too, is to find one.
        read, write = (pty.openpty if stream.isatty() else os.pipe)()
        reader = threading.Thread(target=self._pass_on, args=(read, stream.buffer), daemon=True)
        self._readers.append(reader)
        reader.start()
        return write

    def _pass_on(self, source: int, stream: BinaryIO) -> None:
        with suppress(OSError):  # a terminal's other end is closed with an error
            while data := os.read(source, 1 << 16):
                # Open MPI ends its own messages with a zero byte, which would begin our next line.
                stream.write(data.replace(b"\0", b""))
                stream.flush()
                self._tails[stream] = (self._tails.get(stream, b"") + data)[-_TAIL_BYTES:]
        os.close(source)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.asked_to_stop and self._process is not None:
            self.ended_at_once = True
            threading.Thread(target=self._end, daemon=True).start()
            return
        self.asked_to_stop |= number in (signal.SIGINT, signal.SIGTERM)
        for passed in _PASSED_AS[signal.Signals(number)]:
            self._send(passed)

    def _send(self, number: signal.Signals) -> None:
        if self._process is None:
            self._waiting.append(number)
            return
        self._passed.add(number)
        if not self._is_hydra:
            self._process.send_signal(number)
            return
        # It ends at these signals; but what one rank is asked for, all do.
        for rank in _ranks_below(self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(rank, number)

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

    Returns the exit status: 0, or 130 when a second SIGINT ended the job, or a signal that came
    before the ranks had begun.  Raises ClusterError, with the rank that died, if the last run
    failed, and UsageError for wrong input, which is not tried again.
    """
    for number in range(restarts + 1):
        with Job(line) as job:
            status = job.wait()
        if job.ended_at_once:
            return 128 + signal.SIGINT
        if job.ended_by_what_was_passed(status):
            logger.warning("A signal ended the job before its ranks had begun: nothing is written")
            return 128 + signal.SIGINT
        if status == 0:
            return 0
        died = job.who_died or f"mpirun ended with status {status}"
        if status == WRONG_INPUT:
            hopeless = "; it would fail again, so it is not restarted" if restarts else ""
            raise UsageError(f"the job failed: {died}{hopeless}")
        if job.asked_to_stop or number == restarts:
            break
        logger.warning("The job failed: %s; restart %d of %d", died, number + 1, restarts)
        line = again()
    raise ClusterError(f"the job failed: {died}")
