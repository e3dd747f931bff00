"""mpirun's command line, environment and hostfile."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pycaffe_dist.errors import ClusterError, UsageError
from pycaffe_dist.launch import environment, messages
from pycaffe_dist.launch.hostfile import read_hostfile

ENVIRONMENT = {
    # Open MPI needs these to run as root, as in containers, and to start more ranks than cores;
    # without "slot" it then starts all of them on the first host.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": "slot:oversubscribe",
    # mpirun gives up a host without answers after 20 + 4 x 10 seconds, not after eight minutes as
    # by default.  A restarting switch may take half a minute.
    "PRTE_MCA_oob_tcp_keepalive_time": "20",
    "PRTE_MCA_oob_tcp_keepalive_intvl": "10",
    "PRTE_MCA_oob_tcp_keepalive_probes": "4",
}
# Flags of Open MPI 5 that let a job go on without a rank.  Without state_base_recoverable, mpirun
# ends all ranks that joined together when one of them ends.
FAULT_TOLERANCE = ("--with-ft", "ulfm", "--prtemca", "state_base_recoverable", "1")
# Open MPI's flags, of versions 5 and 4, and MPICH's.
_ELSEWHERE = re.compile(
    r"(?:^| )--?(?:output[ =]\S*(?:file|dir|xml)|output-filename|xml|outfile|errfile)\S*"
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


def check_flags(flags: Sequence[str]) -> None:
    """Raise UsageError for flags that send the ranks' standard error elsewhere.

    It must reach the launcher: in it rank 0 reports that its work is done.
    """
    if found := _ELSEWHERE.search(" ".join(flags)):
        raise UsageError(
            f"flag --mpirun_flags has '{found[0].strip()}', which would keep rank 0's reports from "
            "pcaffe launch: redirect what pcaffe launch prints instead (2>FILE), or let training "
            "write a log itself (--log_dir)"
        )


def command(ranks: int, hostfile: str, extra: Sequence[str], program: Sequence[str]) -> list[str]:
    """Return mpirun's command line for ``pcaffe`` with the arguments ``program``.

    Raises ClusterError when the hostfile is wrong.
    """
    mpirun = find()
    hosts = read_hostfile(hostfile, ranks) if hostfile else []
    line = [mpirun, "-n", str(ranks)]
    if is_hydra(mpirun):
        # MPICH's takes hosts in another form, and passes the whole environment on.
        if hosts:
            line += ["-hosts", ",".join(f"{host}:{slots or 1}" for host, slots in hosts)]
    else:
        if hosts:
            line += ["--hostfile", hostfile]
        for name in sorted({*environment.passed_on(), messages.VARIABLE}):
            line += ["-x", name]
    return [*line, *extra, sys.executable, "-m", "pycaffe_dist", *program]


def fault_tolerance(timeout: int) -> list[str]:
    """Return the flags that let a job go on without a rank; raises ClusterError if there are none.

    Open MPI has them since version 5.  Without an answer of a host for ``timeout`` seconds, mpirun
    ends.
    """
    mpirun = find()
    shown = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False)
    version = re.search(r"Open MPI\D*(\d+)", shown.stdout)
    if version is None or int(version[1]) < 5:
        found = shown.stdout.strip().splitlines()[:1]
        raise ClusterError(
            f"--elastic needs mpirun of Open MPI 5 or newer, and {mpirun} is "
            f"{found[0] if found else 'another one'}: pip install 'pycaffe-dist[mpi]' brings one; "
            "--restarts works with any MPI"
        )
    tests = timeout // 5
    checks = {"time": timeout - 4 * tests, "intvl": tests, "probes": 4}
    settings = [
        word
        for name, value in checks.items()
        for word in ("--prtemca", f"oob_tcp_keepalive_{name}", str(value))
    ]
    return [*FAULT_TOLERANCE, *settings]


def is_hydra(mpirun: str) -> bool:
    """Tell whether this is the mpirun of MPICH, or of an MPI derived from it."""
    shown = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False)
    return bool(re.search(r"HYDRA|Intel\(R\) MPI", shown.stdout))
