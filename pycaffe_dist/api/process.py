"""pycaffe's settings of the whole process: mode, device, random seed, ranks, log, timer."""

from __future__ import annotations

import logging
import os
import sys
import time
from dataclasses import dataclass

from pycaffe_dist import log as logs
from pycaffe_dist.device import HOST, Device
from pycaffe_dist.errors import DeviceError, UsageError
from pycaffe_dist.launch import environment


@dataclass
class Process:
    """The process's settings: one object, as in Caffe, changed by the functions below."""

    seed: int | None = None
    # Whether nets and solvers made from now on run on a GPU, and on which.
    on_gpu: bool = False
    device_id: int = 0
    # install_as_caffe(cpu=True): programs that request a GPU get the CPU.
    cpu_instead: bool = False


process = Process()


def set_mode_cpu() -> None:
    """Let nets and solvers made from now on run on the CPU, the default."""
    process.on_gpu = False


def set_mode_gpu() -> None:
    """Let nets and solvers made from now on run on a GPU; raises DeviceError if there is none.

    Existing ones do not move.  With ``python -m pycaffe_dist.as_caffe --cpu`` programs use the CPU.
    """
    if process.cpu_instead:
        logs.logger.warning("set_mode_gpu: computing on the CPU, as asked for by --cpu")
        return
    from pycaffe_dist.gpu.finding import count

    try:
        count()
    except DeviceError as error:
        raise DeviceError(
            f"{error}; call set_mode_cpu(), or run the program by python -m pycaffe_dist.as_caffe "
            "--cpu"
        ) from None
    process.on_gpu = True


def set_device(device_id: int) -> None:
    """Choose the GPU for set_mode_gpu; no effect on the CPU.

    Raises UsageError for a negative number.
    """
    if device_id < 0:
        raise UsageError(f"set_device needs a device number of 0 or more, not {device_id}")
    process.device_id = device_id


def chosen_device() -> Device:
    """Return the device for mode and number; raises DeviceError if it is missing."""
    if not process.on_gpu:
        return HOST
    from pycaffe_dist.gpu.finding import open_gpu

    return open_gpu(process.device_id)


def set_random_seed(seed: int) -> None:
    """Make the fillers, dropout and crops of nets and solvers built from now on repeatable."""
    process.seed = int(seed)


def solver_count() -> int:
    """Return the number of ranks that train together: mpirun's, or 1 without mpirun."""
    from pycaffe_dist.training.trainer import launched_cluster

    return launched_cluster().size


def solver_rank() -> int:
    """Return this rank's number, from 0."""
    from pycaffe_dist.training.trainer import launched_cluster

    return launched_cluster().rank


def set_solver_count(count: int) -> None:
    """Raise UsageError, which names the right command, unless ``count`` ranks were started."""
    found = solver_count()
    if count != found:
        raise UsageError(
            f"the program wants {count} solver(s), but {found} rank(s) were started: with pcaffe "
            f"each rank is a separate process; start them with mpirun -n {count}"
        )


def set_solver_rank(rank: int) -> None:
    """Raise UsageError unless ``rank`` is this process's."""
    found = solver_rank()
    if rank != found:
        raise UsageError(
            f"the program calls this process rank {rank}, but mpirun started it as rank {found}: "
            "take the number from solver_rank()"
        )


def set_multiprocess(multiprocess: bool) -> None:
    """Accept the call: with pcaffe every solver has its own process anyway."""


def has_nccl() -> bool:
    """Return True: :class:`NCCL` works, because MPI averages gradients over ranks."""
    return True


def init_log(level: int | None = None, stderr: bool = True) -> None:
    """Show Caffe's log on standard error, from severity ``level`` on.

    0 shows all, 1 warnings, 2 errors, 3 only fatal errors; the default level is GLOG_minloglevel,
    or else 1 in a notebook and 0 elsewhere.
    ``stderr`` False sends the log to a file in GLOG_log_dir or the temporary folder instead.
    Raises UsageError for another level.
    """
    if level is None:
        given = os.environ.get("GLOG_minloglevel", "")  # noqa: SIM112 (glog's name)
        level = int(given) if given.isdigit() else int(_in_notebook())
    if not 0 <= level < len(logs.SEVERITIES):
        raise UsageError(f"a log level goes from 0 to {len(logs.SEVERITIES) - 1}, not {level}")
    folder = "" if stderr else _log_folder()
    details = os.environ.get("GLOG_v", "")  # noqa: SIM112
    logs.start(
        logs.SEVERITIES[level],
        None,
        environment.rank(),
        folder,
        to_stream=stderr,
        verbosity=int(details) if details.isdigit() else 0,
    )


def _in_notebook() -> bool:
    """Tell whether the program is cells that a kernel of Jupyter runs."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def _log_folder() -> str:
    import tempfile

    return os.environ.get("GLOG_log_dir") or tempfile.gettempdir()  # noqa: SIM112


def show_log() -> None:
    """Start the log for a training program, unless it has its own handlers."""
    if not logs.logger.hasHandlers() and logs.logger.level == logging.NOTSET:
        init_log()


class Timer:
    """Measures wall-clock time between ``start`` and ``stop``."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._seconds = 0.0

    def start(self) -> None:
        """Start, or start again."""
        self._began = time.perf_counter()

    def stop(self) -> None:
        """Stop, if started."""
        if self._began is not None:
            self._seconds = time.perf_counter() - self._began
            self._began = None

    @property
    def ms(self) -> float:
        """The milliseconds between the last start and stop, or so far; 0 before the first."""
        if self._began is not None:
            return (time.perf_counter() - self._began) * 1e3
        return self._seconds * 1e3
