"""Which device a run computes on."""

from __future__ import annotations

from pycaffe_dist.errors import DeviceError
from pycaffe_dist.log import logger


def choose_device(gpu: str, solver_mode_is_gpu: bool = False) -> None:
    """Log the device that a ``-gpu`` flag and the solver's ``solver_mode`` lead to: the CPU.

    A ``solver_mode: GPU``, as most published solvers have it, is only a wish; raises DeviceError
    when the flag insists on a GPU.
    """
    if gpu:
        raise DeviceError(
            f"-gpu {gpu}: this version of pcaffe computes on CPUs only; leave the flag away"
        )
    if solver_mode_is_gpu:
        logger.warning("solver_mode is GPU, but this version of pcaffe computes on CPUs only")
    logger.info("Use CPU.")
