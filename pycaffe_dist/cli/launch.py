"""Run a command on several ranks: launch -n 4 train --solver=FILE.

Starts mpirun with suitable flags and forwards signals to the ranks, which mpirun does not: SIGINT
(Ctrl-C) as SIGUSR1, SIGHUP as SIGUSR2, SIGTERM as both; after both, training writes a snapshot and
stops.  A second SIGINT ends the job at once.

The job succeeds when mpirun's status is 0 and rank 0 has reported that its work is done.  Otherwise
pcaffe names the rank or host that failed first, if it is known, and with --restarts training
continues from its newest snapshot, after the old ranks have ended.  With --elastic, training
survives lost ranks: the others repeat the iteration that was under way, and read no file.  When the
hostfile changes, ranks join or leave; when a host is lost, the job goes on from a snapshot on the
others.  A host that does not answer counts as failed after a minute, or with --elastic after
--failure_timeout; train --stall_shutdown ends a job whose ranks wait for each other.  When nobody
reads the output any more (… | head), lines are dropped, and the job continues.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pycaffe_dist.cli.flags import FlagParser, add_flag, require_not_negative
from pycaffe_dist.errors import UsageError


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags; it does not parse flags of the launched command."""
    parser.flags_first = True
    add_flag(parser, "n", int, default=0, metavar="N", help="the number of ranks")
    add_flag(
        parser,
        "hostfile",
        metavar="FILE",
        help="the hosts to run on, one per line: NAME slots=RANKS",
    )
    add_flag(
        parser,
        "restarts",
        int,
        default=0,
        metavar="N",
        help="start training again after a failure, up to N times, from its newest snapshot",
    )
    add_flag(
        parser,
        "elastic",
        int,
        default=0,
        metavar="MIN",
        alone="1",
        help="when ranks die, training goes on with the others, as long as MIN are left, and with "
        "new ranks in their places (train --norespawn: without); needs Open MPI 5",
    )
    add_flag(
        parser,
        "failure_timeout",
        int,
        default=15,
        metavar="SECONDS",
        help="with --elastic: a host that has not answered for this long is lost (at least 5)",
    )
    add_flag(
        parser,
        "mpirun_flags",
        metavar="FLAGS",
        help="more flags for mpirun, in quotes; none that redirects the ranks' output",
    )
    parser.add_argument(
        "command", nargs="*", metavar="COMMAND …", help="the command, with its flags"
    )


def run(options: argparse.Namespace) -> int:
    """Launch as the flags say; raises PcaffeError."""
    if options.n < 1:
        raise UsageError("need the number of ranks to launch: -n N, before the command")
    if not options.command:
        raise UsageError("need a command to launch: pcaffe launch -n 4 train --solver=FILE")
    require_not_negative(options, ("restarts", "elastic"))
    if options.failure_timeout < 5:
        raise UsageError(
            f"--failure_timeout is at least 5 seconds, found {options.failure_timeout}"
        )
    command = options.command
    if options.restarts and command[0] != "train":
        raise UsageError(f"only train can be restarted from a snapshot, not {command[0]}")
    if options.elastic and command[0] != "train":
        raise UsageError(f"only train can go on without a rank, not {command[0]}")
    if options.elastic > options.n:
        raise UsageError(f"--elastic={options.elastic} is more than the {options.n} ranks of -n")
    from pycaffe_dist.launch import job, mpirun
    from pycaffe_dist.launch.hostfile import Hosts

    extra = options.mpirun_flags.split()
    mpirun.check_flags(extra)
    if options.elastic:
        extra = [*mpirun.fault_tolerance(options.failure_timeout), *extra]
        command += [f"--elastic={options.elastic}"]

    hosts = None
    if options.elastic and options.hostfile:
        hosts = Hosts(options.hostfile, options.n, options.elastic)

    def line(program: Sequence[str]) -> list[str]:
        ranks, hostfile = (hosts.ranks, hosts.path) if hosts else (options.n, options.hostfile)
        return mpirun.command(ranks, hostfile, extra, program)

    return job.run(line(command), options.restarts, lambda: line(_resumed(options)), hosts)


def _resumed(options: argparse.Namespace) -> list[str]:
    """Return the command that continues training: the last of equal flags counts.

    The run's own newest snapshot is used, or before the first one the snapshot that the run started
    from, if any.  Other snapshots of earlier runs are used only if the command requests them.
    """
    words = [word.lstrip("-") if word.startswith("-") else "" for word in options.command]
    begun_from = ""
    for number, word in enumerate(words):
        name, is_set, value = word.partition("=")
        if name == "snapshot":
            begun_from = value if is_set else "".join(options.command[number + 1 : number + 2])
    own = ["latest@launch"] if begun_from.partition(",")[0] != "latest" else []
    return [*options.command, f"--snapshot={','.join([*own, *filter(None, [begun_from])])}"]
