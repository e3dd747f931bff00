"""The processes of a launched job on this host: found by the job's name, and ended.

mpirun puts ranks into separate process groups, and they outlive it when it is killed.  But every
process of mpirun or a rank inherits the environment, which names the job.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from pycaffe_dist.errors import ClusterError
from pycaffe_dist.launch.messages import VARIABLE

_SECONDS_TO_END = 10.0
_SECONDS_FOR_A_SNAPSHOT = 30.0
_POLL_SECONDS = 0.02


def ranks_of(job: str) -> list[int]:
    """Return the processes of a job on this host that run pcaffe."""
    found = []
    for process in _processes_of({job}):
        with suppress(OSError):  # it has ended
            if b"pycaffe_dist" in Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0"):
                found.append(process)
    return found


def ask_to_end(job: str) -> None:
    """Let the ranks of a job on this host end, which may write a snapshot first."""
    deadline = time.monotonic() + _SECONDS_FOR_A_SNAPSHOT
    for process in ranks_of(job):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGTERM)
    while ranks_of(job) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def end(jobs: Collection[str]) -> None:
    """End all processes of some jobs on this host, and return when they have ended.

    Without Linux's /proc it finds none.  Raises ClusterError when a process does not end, for
    example because its file system does not answer.
    """
    deadline = time.monotonic() + _SECONDS_TO_END
    while left := list(_processes_of(jobs)):
        if time.monotonic() > deadline:
            raise ClusterError(
                f"process {left[0]} of the last attempt does not end on {os.uname().nodename}: a "
                "file system that does not answer may hold it"
            )
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)


def end_earlier_attempts() -> None:
    """End the processes of earlier attempts on this host.

    Their mpirun may have been killed, or have lost its connection to this host.  Raises
    ClusterError when a process does not end.
    """
    launch, _, attempt = os.environ.get(VARIABLE, "").rpartition(".")
    if attempt.isdigit() and int(attempt):
        end({job_name(launch, earlier) for earlier in range(int(attempt))})


def job_name(launch: str, attempt: int) -> str:
    """Return the name of a launch's first, second, … job, counted from 0."""
    return f"{launch}.{attempt}"


def launch_name() -> str:
    """Return the common prefix of the names of this launch's jobs; empty without a launch."""
    return os.environ.get(VARIABLE, "").rpartition(".")[0]


def _processes_of(jobs: Collection[str]) -> Iterator[int]:
    wanted = {f"{VARIABLE}={job}".encode() for job in jobs}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # another user's, or it has ended
            if not wanted.isdisjoint((folder / "environ").read_bytes().split(b"\0")):
                yield int(folder.name)
