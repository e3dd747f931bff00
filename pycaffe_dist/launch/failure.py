"""Why a job failed, from the output of mpirun and the ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pycaffe_dist.launch.hostfile import short_name

_LOST_HOST = "host {host} does not answer any more, or mpirun's process there has ended"
# Messages of mpirun, and their meanings.
_SURE = (
    (
        r"process rank (?P<rank>\d+) with PID (?P<pid>\d+) on node (?P<host>\S+)\s+exited on\s+"
        r"signal (?P<signal>\d+(?: \([^)]*\))?)",
        "rank {rank} (process {pid} on {host}) was ended by signal {signal}",
    ),
    (
        r"(?i)lost communication with(?:.|\n)*?Remote daemon\s*: .* on node (?P<host>\S+)",
        _LOST_HOST,
    ),
)
# Open MPI's mpirun says this, too, when its process on a host ends while ranks run there.
_NO_DAEMON = r"daemon failed to report back(?:.|\n)*?Remote host:\s+(?P<host>\S+)"
_NO_START = (
    "no rank could be started on host {host}: is it up, does ssh reach it without a password, "
    "is mpirun there at the same path, and does no firewall keep it from answering?"
)
# More messages of mpirun; a rank's own report says more.  The last two are MPICH's.
_ENDS = (
    (
        r"Process name: \[.*,(?P<rank>\d+)\]\s+Exit code: +(?P<code>\d+)",
        "rank {rank} ended with status {code}",
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
# A rank that ends the job by MPI_Abort: our own code, or MPI itself after an error.
_ABORT = re.compile(
    r"process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+)\s+calling\s+\"abort\""
)
# MPI's message about a broken connection between two ranks.
_BROKEN = re.compile(
    r"peer process has unexpectedly disconnected(?:.|\n)*?"
    r"Local host:\s+(?P<here>\S+)(?:.|\n)*?Peer host:\s+(?P<there>\S+)"
)


def find_cause(output: str, gave_up: Sequence[str] = (), hosts: Sequence[str] = ()) -> str:
    """Return which rank or host ended the job, and how; empty if unknown.

    ``output`` is what mpirun and the ranks printed, ``gave_up`` names the ranks that ended the job
    themselves, in order of time, and ``hosts`` is every rank's host, once they have started.
    """
    sure = (*_SURE, (_NO_DAEMON, _LOST_HOST if hosts else _NO_START))
    if cause := _search(sure, output):
        return cause
    if gave_up:
        return f"{gave_up[0]} gave up; see its error message"
    if not (aborted := _ABORT.search(output)):
        return _search(_ENDS, output)
    rank = f"rank {aborted['rank']} on {aborted['host']}"
    # If a rank dies on another host, MPI ends this rank before mpirun notices.
    suspects = _suspects(output, hosts)
    if suspects:
        return f"{rank} lost its connection to {suspects}, which had probably died before"
    return f"{rank} gave up; see its error message"


def find_lost_host(output: str) -> str:
    """Return the host that mpirun lost while ranks ran there; empty if there is none."""
    for pattern in (_SURE[1][0], _NO_DAEMON):
        if match := re.search(pattern, output):
            return match["host"]
    return ""


def _search(causes: Sequence[tuple[str, str]], output: str) -> str:
    for pattern, words in causes:
        if match := re.search(pattern, output):
            return words.format(**match.groupdict())
    return ""


def _suspects(output: str, hosts: Sequence[str]) -> str:
    """Name the ranks to which connections broke; the dead do not report a broken connection."""
    broken = [
        (short_name(match["here"]), short_name(match["there"]))
        for match in _BROKEN.finditer(output)
    ]
    reporting = {here for here, _ in broken}
    peers = dict.fromkeys(there for _, there in broken)  # in order, each once
    suspected = [peer for peer in peers if peer not in reporting] or list(peers)
    named = []
    for host in suspected:
        ranks = [str(rank) for rank, name in enumerate(hosts) if short_name(name) == host]
        which = f"rank{'s' * (len(ranks) > 1)} {' or '.join(ranks)}" if ranks else "a rank"
        named.append(f"{which} on {host}")
    return " or ".join(named)
