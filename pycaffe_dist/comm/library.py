"""The MPI library of this process: loaded but not started, and what it can do."""

from __future__ import annotations

from typing import Any

from pycaffe_dist.comm.transports import cuda_aware
from pycaffe_dist.errors import ClusterError
from pycaffe_dist.launch import environment


def load(launch: environment.Launch) -> Any:
    """Return mpi4py's module MPI, not started; raises ClusterError, which names the ``launch``."""
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise ClusterError(
            f"{launch.name} started this process, but MPI cannot be used ({error}): "
            "pip install 'pycaffe-dist[mpi]' brings mpi4py and an MPI, or build mpi4py "
            "with the cluster's MPI (pip install --no-binary mpi4py mpi4py)"
        ) from None
    return MPI


def version() -> str:
    """Return the name and version of the MPI library; raises what importing mpi4py raises."""
    import mpi4py

    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    from mpi4py import MPI

    first = MPI.Get_library_version().strip("\0\n ").split(",")[0].splitlines()[0]
    return " ".join(first.replace("Version:", "").split())


def abilities() -> tuple[str, bool | None]:
    """Return MPI's name of its thread level, and whether it is CUDA-aware.

    Starts and ends MPI if needed, because some libraries answer only while it runs.
    """
    from mpi4py import MPI

    names = {
        MPI.THREAD_SINGLE: "single",
        MPI.THREAD_FUNNELED: "funneled",
        MPI.THREAD_SERIALIZED: "serialized",
        MPI.THREAD_MULTIPLE: "multiple",
    }
    if MPI.Is_initialized():
        return names[MPI.Query_thread()], cuda_aware()
    level = MPI.Init_thread(MPI.THREAD_MULTIPLE)
    aware = cuda_aware()
    MPI.Finalize()
    return names[level], aware
