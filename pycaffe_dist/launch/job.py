"""Runs mpirun in its own session, passes signals on to its ranks, and restarts it."""

from __future__ import annotations

import itertools
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

from pycaffe_dist import log
from pycaffe_dist.errors import WRONG_INPUT, ClusterError, UsageError
from pycaffe_dist.launch import failure, messages, processes
from pycaffe_dist.launch.hostfile import Hosts
from pycaffe_dist.launch.messages import MessageFilter
from pycaffe_dist.launch.mpirun import ENVIRONMENT, is_hydra
from pycaffe_dist.launch.output import Output
from pycaffe_dist.launch.resizing import RequestFile
from pycaffe_dist.log import logger

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
_SECONDS_BETWEEN_LOOKS = 1.0
# Seconds for mpirun to end a job after a rank has given up.
_SECONDS_AFTER_FAILURE = 15.0


class Job:
    """One run of mpirun.  While entered, this process's signals go to the ranks instead.

    ``name`` identifies its processes.  A second SIGINT ends the job at once.  Enter it in the main
    thread.
    """

    def __init__(self, line: Sequence[str], name: str):
        self._line, self._name = line, name
        self._is_hydra = is_hydra(line[0])
        self._is_elastic = any(word.startswith("--elastic=") for word in line)
        self._previous: dict[signal.Signals, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: list[signal.Signals] = []
        self._passed: set[int] = set()
        self._outputs: list[Output] = []
        self._request_file = RequestFile(name)
        self._done = False
        self._gave_up: list[str] = []
        self._hosts: list[str] = []
        self._former_hosts: set[str] = set()
        self._end_timer: threading.Timer | None = None
        self.asked_to_stop = False
        self.ended_at_once = False
        self.moves = False

    def __enter__(self) -> Job:
        for number in _PASSED_AS:
            self._previous[number] = signal.signal(number, self._handle)
        self._outputs = [
            Output(name, stream, MessageFilter(self._name, self._receive, self._is_elastic))
            for name, stream in (("standard output", sys.stdout), ("standard error", sys.stderr))
        ]
        output, errors = self._outputs
        self._process = subprocess.Popen(
            self._line,
            stdout=output.target,
            stderr=errors.target,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**ENVIRONMENT, **os.environ, messages.VARIABLE: self._name},
        )
        output.close()
        errors.close()
        for number in self._waiting:
            self._send(number)
        return self

    def __exit__(self, *details: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._end_timer is not None:
            self._end_timer.cancel()
        if self._process is not None and self._process.poll() is None:
            self._end()
            processes.end({self._name})
        self._request_file.remove()

    def wait(self, hosts: Hosts | None = None) -> int:
        """Return mpirun's exit status once it and its ranks on this host have ended.

        When the ``hosts`` change, ranks join or leave; if they cannot, the job stops after a
        snapshot: it ``moves``.  Raises ClusterError when a rank does not end.
        """
        assert self._process is not None
        while True:
            try:
                status = self._process.wait(_SECONDS_BETWEEN_LOOKS if hosts else None)
                break
            except subprocess.TimeoutExpired:
                if self._hosts and hosts is not None and hosts.has_changed():
                    self._change(hosts)
        if self._is_elastic and not self._done:
            # When it loses a host, mpirun ends at once, and leaves the ranks.
            processes.ask_to_end(self._name)
        if status:
            processes.end({self._name})
        for output in self._outputs:
            output.wait(_SECONDS_TO_END)
        log.status("")
        if not self._done:
            processes.end({self._name})
        return status

    def _change(self, hosts: Hosts) -> None:
        """Let ranks join or leave, or the job stop, because the hosts have changed."""
        ranks = hosts.ranks_of_running(self._hosts) if self._is_elastic else None
        cause = "no rank runs on this host"
        if ranks is not None and (left := ranks.keys() & self._former_hosts - {*self._hosts}):
            # Open MPI 5.0 ends the job then.
            cause = f"{', '.join(sorted(left))} cannot join a second time"
        elif ranks is not None:
            logger.warning("The hosts have changed: %d rank(s) are to go on", hosts.ranks)
            try:
                self._request_file.write(ranks)
                return
            except OSError as error:
                cause = f"the ranks cannot be asked ({error})"
        self.moves = True
        logger.warning("The hosts have changed, and %s: stopping with a snapshot", cause)
        for number in _PASSED_AS[signal.SIGTERM]:
            self._send(number)

    def has_succeeded(self, status: int) -> bool:
        """Tell whether mpirun's exit status is 0 and rank 0 has reported that its work is done.

        The status alone is not enough: it is also 0 after Open MPI's mpirun has lost a host.  A job
        that goes on when ranks are lost may have their status.
        """
        return self._done and (status == 0 or self._is_elastic)

    def ended_by_what_was_passed(self, status: int) -> bool:
        """Tell by mpirun's exit status whether a signal came before anybody handled it.

        Until mpirun, and then a rank's Python, have installed handlers, a signal ends their
        processes.
        """
        return (-status if status < 0 else status - 128) in self._passed

    @property
    def _said(self) -> str:
        return "\n".join(output.tail for output in self._outputs)

    def lost_host(self) -> str:
        """Return the name of the host that does not answer any more; empty if all do."""
        return failure.find_lost_host(self._said) if self._hosts else ""

    def cause_of_failure(self, status: int) -> str:
        """Return which rank or host ended the job, from the reports of mpirun and the ranks."""
        said = self._said
        if self._is_elastic and self._gave_up and not failure.find_lost_host(said):
            said = ""  # it tells of ranks whose loss the job has survived
        if cause := failure.find_cause(said, self._gave_up, self._hosts):
            return cause
        if status < 0:
            return f"mpirun was ended by signal {-status}"
        if status:
            return f"mpirun ended with status {status}"
        return (
            "mpirun ended with status 0, but rank 0 has not said that it was done (has a flag of "
            "mpirun sent its standard error elsewhere?)"
        )

    def _receive(self, kind: str, details: str) -> None:
        """Take a rank's message; an output's thread calls this."""
        if kind == messages.DONE:
            self._done = True
        elif kind == messages.PROGRESS:
            log.status(details)
        elif kind == messages.HOSTS:
            self._hosts = details.split()
            self._former_hosts |= {*self._hosts}
        elif kind == messages.FAILED:
            self._gave_up.append(details)
            if self._end_timer is None:
                # mpirun ends the other ranks, but waits for a host that does not answer.
                self._end_timer = threading.Timer(_SECONDS_AFTER_FAILURE, self._end)
                self._end_timer.daemon = True
                self._end_timer.start()

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
        # mpirun ends at these signals; but a request to one rank reaches all.
        for rank in processes.ranks_of(self._name):
            with suppress(ProcessLookupError):
                os.kill(rank, number)

    def _end(self) -> None:
        """End mpirun, which ends its ranks; if it does not, end them, too."""
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()


def run(
    line: Sequence[str],
    restarts: int,
    again: Callable[[], Sequence[str]],
    hosts: Hosts | None = None,
) -> int:
    """Run mpirun; after a failure run it again up to ``restarts`` times, as ``again`` says.

    It also runs again when ``hosts`` have changed, or one of them is lost.  Returns the exit
    status: 0, or 130 when a second SIGINT ended the job, or a signal that came before the ranks had
    begun.  Raises ClusterError, with the rank that died, if the last run failed, and UsageError for
    wrong input, which is not tried again.
    """
    launch = secrets.token_hex(8)
    failures = 0
    for number in itertools.count():
        with Job(line, processes.job_name(launch, number)) as job:
            status = job.wait(hosts)
        if job.ended_at_once:
            return 128 + signal.SIGINT
        succeeded = job.has_succeeded(status)
        moves = job.moves and succeeded and not job.asked_to_stop
        if job.ended_by_what_was_passed(status) and not job.moves:
            logger.warning("A signal ended the job before its ranks had begun: nothing is written")
            return 128 + signal.SIGINT
        if succeeded and not moves:
            return 0
        cause = ""
        if not moves:
            cause = job.cause_of_failure(status)
            if status == WRONG_INPUT:
                hopeless = "; it would fail again, so it is not restarted" if restarts else ""
                raise UsageError(f"the job failed: {cause}{hopeless}")
            if job.asked_to_stop:
                break
            moves = hosts is not None and hosts.lose(job.lost_host())
            if not moves and failures == restarts:
                break
        words = "The hosts have changed" if job.moves else f"The job failed: {cause}"
        if moves and hosts is not None:
            logger.warning(
                "%s; going on from the last snapshot with %d rank(s)", words, hosts.ranks
            )
        else:
            failures += 1
            logger.warning("%s; restart %d of %d", words, failures, restarts)
        line = again()
    raise ClusterError(f"the job failed: {cause}")
