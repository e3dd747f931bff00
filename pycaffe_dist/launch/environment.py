"""The environment that a launcher gives this process: ranks, cores, settings of its MPI."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

# The variable that each launcher sets in its processes; its value is the number of ranks.
_SIZE_VARIABLES = {
    "OMPI_COMM_WORLD_SIZE": "Open MPI's mpirun",
    "PMI_SIZE": "a PMI launcher (MPICH, Intel MPI, Slurm)",
    "MV2_COMM_WORLD_SIZE": "MVAPICH's mpirun",
    "SLURM_STEP_NUM_TASKS": "Slurm's srun",
}
# Ours, for processes whose rank is not the launcher's, since ranks were lost.
CHANGED_RANK = "PCAFFE_RANK"
_RANK_VARIABLES = (
    CHANGED_RANK,
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "MV2_COMM_WORLD_RANK",
    "SLURM_PROCID",
)
# Open MPI reads these when it starts.  A process of ours never waits inside MPI, but MPI_Init does.
_OPEN_MPI = {
    "mpi_yield_when_idle": "1",
    # Open MPI's own choice takes about twice as long for large arrays.
    "coll_libnbc_iallreduce_algorithm": "1",
}
# More for the Open MPI of pip; a cluster's own Open MPI keeps its settings.
_EMBEDDED_OPEN_MPI = {
    # A search for libfabric devices takes a second at every start, and only one-sided calls use
    # them.
    "btl": "^ofi",
    # Without InfiniBand, one-sided calls over UCX print a warning for every window.
    "osc": "^ucx",
    # With the default, large messages over TCP go in one direction at a time.
    "btl_tcp_flags": "send",
}

# Variables for ranks on other hosts; mpirun passes on its own.
_PASSED_ON = re.compile(r"PYTHON|PCAFFE_|GLOG_|NUMBA_|OMP_|OPENBLAS_|LD_LIBRARY_PATH$")


@dataclass(frozen=True)
class Launch:
    """The launcher of this process: its name for messages and its number of ranks, 0 if unknown."""

    name: str
    size: int


def find() -> Launch | None:
    """Return the MPI launcher that started this process, or None without one."""
    for variable, name in _SIZE_VARIABLES.items():
        value = os.environ.get(variable, "")
        # A job script of Slurm itself, or one task of srun, is an ordinary process.
        alone = variable.startswith("SLURM") and value == "1"
        if value.isdigit() and not alone:
            return Launch(name, int(value))
    if "PMIX_RANK" in os.environ:
        return Launch("a PMIx launcher", 0)
    return None


def rank() -> int:
    """Return the rank that a launcher gave this process, 0 without one; known before MPI starts."""
    for variable in _RANK_VARIABLES:
        if os.environ.get(variable, "").isdigit():
            return int(os.environ[variable])
    return 0


def is_replacement() -> bool:
    """Tell whether this process takes a lost rank's place; to be asked before MPI starts."""
    return CHANGED_RANK in os.environ


def set_rank(rank: int) -> None:
    """Change what `rank` returns, after other ranks were lost."""
    os.environ[CHANGED_RANK] = str(rank)


def passed_on() -> dict[str, str]:
    """Return the variables of this process's environment that all ranks need."""
    return {name: value for name, value in os.environ.items() if _PASSED_ON.match(name)}


def prepare_mpi() -> None:
    """Set Open MPI's parameters for one communication thread, unless they are set already.

    Must run before MPI is initialised.
    """
    settings = dict(_OPEN_MPI)
    # Open MPI's mpirun names the folder of its libraries.
    libraries = os.environ.get("OMPI_LIBDIR_LOC", "")
    if libraries and Path(libraries).resolve().is_relative_to(Path(sys.prefix).resolve()):
        settings |= _EMBEDDED_OPEN_MPI
    for name, value in settings.items():
        os.environ.setdefault(f"OMPI_MCA_{name}", value)


def host_name() -> str:
    """Return this host's name."""
    return socket.gethostname()


def usable_cpus() -> set[int]:
    """Return the numbers of the logical processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def cores(cpus: Iterable[int]) -> set[int]:
    """Return the cores of logical processors: each is named by its first hardware thread."""
    return {_first_sibling(cpu) for cpu in cpus}


def _first_sibling(cpu: int) -> int:
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return int(path.read_text().replace("-", ",").split(",")[0])
    except (OSError, ValueError):
        return cpu


def share_of_cores(mine: Collection[int], of_all: Iterable[Collection[int]]) -> int:
    """Return the number of threads, at least 1, for a rank that may use the cores ``mine``.

    ``of_all`` holds the cores of every rank on the host; each core is divided among its users.
    """
    users = [set(theirs) for theirs in of_all]
    return max(1, int(sum(1 / sum(core in theirs for theirs in users) for core in mine) + 1e-9))


def undo_default_binding(ranks: int) -> bool:
    """Let this process run on all of its launcher's processors; tell whether that changed anything.

    By default Open MPI's mpirun binds each of at most two ranks to a single core, and leaves the
    other cores of a host idle.  A rank with several cores keeps them.
    """
    if (
        "OMPI_COMM_WORLD_SIZE" not in os.environ
        or ranks > 2
        or not Path("/proc/self/task").exists()
    ):
        return False
    own = os.sched_getaffinity(0)
    allowed = os.sched_getaffinity(os.getppid())
    if len(cores(own)) > 1 or not own < allowed:
        return False
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), allowed)
    return True
