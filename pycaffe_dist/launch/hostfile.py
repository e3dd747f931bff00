"""The hosts of a job: a file that may change while the job runs, and hosts that are lost."""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from pycaffe_dist.errors import ClusterError
from pycaffe_dist.launch import environment
from pycaffe_dist.log import logger
from pycaffe_dist.schema.reading import read_lines


class Hosts:
    """The hosts of the file ``path``, for ``ranks`` ranks; at least ``least`` are to be left.

    When the file changes, or a host is lost, there are as many ranks as slots.  Raises ClusterError
    when the file is wrong.
    """

    def __init__(self, path: str, ranks: int, least: int):
        self.path, self.ranks, self._file, self._least = path, ranks, path, least
        self._hosts = read_hostfile(path, ranks)
        self._seen = self._modified()
        self._rest: tempfile._TemporaryFileWrapper[str] | None = None

    def has_changed(self) -> bool:
        """Read the file if it has changed; tell whether the job is to run on its hosts now."""
        modified = self._modified()
        if modified in (0, self._seen):
            return False
        self._seen = modified
        try:
            hosts = read_hostfile(self._file, 0)
        except ClusterError as error:
            logger.warning("The hosts stay: %s", error)
            return False
        return hosts != self._hosts and self._use(hosts, self._file)

    def ranks_of_running(self, running: Sequence[str]) -> dict[str, int] | None:
        """Return the number of ranks on each host, if a running job can be asked for them.

        ``running`` are its ranks' hosts, whose names the result has; this host must be one of them.
        """
        names = {short_name(host): host for host in running}
        own = environment.host_name()
        if own not in running:
            return None
        names |= {"localhost": own, "127.0.0.1": own}
        wanted: Counter[str] = Counter()
        for host, slots in self._hosts:
            wanted[names.get(short_name(host), host)] += slots or 0
        return dict(wanted)

    def lose(self, host: str) -> bool:
        """Leave a host out; tell whether the job can go on without."""
        hosts = [(name, slots) for name, slots in self._hosts if name != host]
        if hosts == self._hosts:
            return False
        lines = [name if slots is None else f"{name} slots={slots}" for name, slots in hosts]
        self._rest = tempfile.NamedTemporaryFile("w", prefix="pcaffe-hosts-")  # noqa: SIM115
        self._rest.write("\n".join([*lines, ""]))
        self._rest.flush()
        return self._use(hosts, self._rest.name)

    def _use(self, hosts: list[tuple[str, int | None]], path: str) -> bool:
        slots = [number for _, number in hosts]
        ranks = sum(number for number in slots if number is not None)
        if None in slots or ranks < self._least:
            found = "a host without slots" if None in slots else f"slots for {ranks} rank(s)"
            logger.warning(
                "The other hosts have %s: to go on, the job needs slots for %d", found, self._least
            )
            return False
        self._hosts, self.path, self.ranks = hosts, path, ranks
        return True

    def _modified(self) -> int:
        with suppress(OSError):
            return os.stat(self._file).st_mtime_ns
        return 0


def short_name(host: str) -> str:
    """Return a host's name without its domain; MPI and the system may disagree about domains."""
    return host if host.replace(".", "").isdigit() else host.partition(".")[0]


def read_hostfile(path: str, ranks: int) -> list[tuple[str, int | None]]:
    """Return the hosts of a hostfile, and the number of ranks on each.

    Raises ClusterError, with the line, when the hostfile is wrong.
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
