"""Jobs whose ranks run one program after the other: most programs take less time than a start.

What is about a rank's start, its end or its failure needs a job of its own: `start_program`.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import pytest
from running import TIMEOUT_SECONDS, Finished, Job

FOLDER = Path(__file__).parent
PROGRAMS = FOLDER / "programs"
START_SECONDS = 60
# The number of jobs that wait for their next program; others start again when needed.
MOST_JOBS = 8


def program_words(words: Sequence[object]) -> list[str]:
    """Return a program and its arguments; one of programs/ may be given by its name alone."""
    program, *rest = map(str, words)
    return [str(PROGRAMS / program) if (PROGRAMS / program).exists() else program, *rest]


def start_program(ranks: int, words: Sequence[object]) -> Job:
    """Start a Python program on several ranks or, with 0, without mpirun."""
    paths = f"{FOLDER}{os.pathsep}{FOLDER.parent}"
    command = [sys.executable, *program_words(words)]
    return Job(command, None, ranks, PYTHONPATH=paths)


class KeptJob:
    """A job of some ranks under mpirun or, with 0 ranks, of one process without it.

    The ranks end when this side of their sockets is closed, at the latest with this process.
    """

    def __init__(self, ranks: int):
        self._sockets: list[socket.socket] = []
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(START_SECONDS)
            self._job = start_program(ranks, ("keeping.py", str(server.getsockname()[1])))
            while len(self._sockets) < max(1, ranks):
                try:
                    self._sockets.append(server.accept()[0])
                except TimeoutError:
                    self._fail(f"{ranks} ranks did not start")

    def run(self, words: list[str], folder: Path, timeout: float) -> Finished:
        """Run a program, or pcaffe, in a folder on all ranks; after a failure they end."""
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as outputs:
            order = json.dumps([words, str(folder), outputs]) + "\n"
            for rank in self._sockets:
                rank.sendall(order.encode())
            try:
                done = all(self._succeeds(rank, started + timeout) for rank in self._sockets)
            except TimeoutError:
                self._fail(f"{words} had not ended after {timeout:g} s", outputs)
            output = _read(outputs)
        seconds = time.monotonic() - started
        return Finished(int(not done), output if done else output + self._kill(), seconds)

    def dismiss(self) -> None:
        """Let the ranks end."""
        for rank in self._sockets:
            rank.close()

    def close(self) -> None:
        """Let the ranks end, and wait for it."""
        self.dismiss()
        self._job.finish(START_SECONDS)

    @staticmethod
    def _succeeds(rank: socket.socket, deadline: float) -> bool:
        """Wait for a rank's answer, its status; a dead rank gives none."""
        rank.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            return rank.recv(1) == b"0"
        except ConnectionResetError:
            return False

    def _kill(self) -> str:
        """Kill the ranks; return what they have printed between programs."""
        self._job.kill()
        return self._job.finish(START_SECONDS).output

    def _fail(self, message: str, outputs: str = "") -> None:
        output = self._kill()
        pytest.fail(f"{message}; printed was:\n{_read(outputs) if outputs else ''}{output}")


def _read(outputs: str) -> str:
    """Return what all ranks have printed, in their order."""
    paths = sorted(Path(outputs).iterdir(), key=lambda path: int(path.name))
    return "".join(path.read_text(errors="replace") for path in paths)


_jobs: OrderedDict[tuple[int, str], KeptJob] = OrderedDict()


def run_kept(
    ranks: int,
    words: Sequence[object],
    folder: Path,
    timeout: float = TIMEOUT_SECONDS,
    process: str = "",
) -> Finished:
    """Run a program, or pcaffe, in a folder on a job that has run others before, if possible.

    Programs with different ``process`` names share no job.  With 0 ranks there is no mpirun.
    """
    key = (ranks, process)
    job = _jobs.pop(key, None) or KeptJob(ranks)
    while len(_jobs) >= MOST_JOBS:
        _jobs.popitem(last=False)[1].close()
    finished = job.run(program_words(words), folder, timeout)
    if finished.status == 0:
        _jobs[key] = job
    return finished


def run_pcaffe(ranks: int, arguments: list[str], folder: Path, process: str = "") -> str:
    """Run ``pcaffe arguments`` on such a job; return its output.  One rank needs no mpirun."""
    words = ["pcaffe", *arguments]
    finished = run_kept(ranks if ranks > 1 else 0, words, folder, process=process)
    assert finished.status == 0, finished.output[-4000:]
    return finished.output


@atexit.register
def close_jobs() -> None:
    """End all ranks that wait for a program."""
    for job in _jobs.values():
        job.dismiss()
    while _jobs:
        _jobs.popitem()[1].close()
