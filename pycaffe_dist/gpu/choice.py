"""Which device a run computes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pycaffe_dist.device import HOST, Device
from pycaffe_dist.errors import DeviceError, UsageError
from pycaffe_dist.log import logger

if TYPE_CHECKING:
    from pycaffe_dist.gpu.base import GPU


def choose_device(
    gpu: str,
    solver_mode_is_gpu: bool = False,
    *,
    device_id: int = 0,
    local_rank: int = 0,
    local_size: int = 1,
) -> Device:
    """Return the device for a ``-gpu`` flag and the solver's ``solver_mode``; log it.

    The ranks of a host take the flag's GPUs in turn; without the flag, GPUs from ``device_id`` on.
    Most published solvers have ``solver_mode: GPU``, so it is only a wish: without a GPU the run
    continues on the CPU. Raises DeviceError when a flag asks for a missing GPU, UsageError for a
    flag that names none.
    """
    if not gpu and not solver_mode_is_gpu:
        logger.info("Use CPU.")
        return HOST
    from pycaffe_dist.gpu.finding import count, open_gpu

    if not gpu:
        try:
            number = count()
        except DeviceError as error:
            if local_rank == 0:  # one rank of a host speaks for all
                logger.warning("solver_mode is GPU, but the run is on the CPU: %s", error)
            logger.info("Use CPU.")
            return HOST
        return _logged(open_gpu((device_id + local_rank) % number))
    try:
        known = count()
    except DeviceError as error:
        raise DeviceError(f"--gpu={gpu}: {error}") from None
    numbers = list(range(known)) if gpu == "all" else gpu_numbers(gpu)
    if len(numbers) > local_size and gpu != "all":
        logger.warning(
            "-gpu %s names %d GPUs for %d rank(s) on this host: start one rank for each GPU, as by "
            "mpirun -n %d",
            *(gpu, len(numbers), local_size, len(numbers)),
        )
    elif len(numbers) < local_size:
        logger.warning("%d ranks of this host share %d GPU(s)", local_size, len(numbers))
    return _logged(open_gpu(numbers[local_rank % len(numbers)]))


def gpu_numbers(text: str) -> list[int]:
    """Return the numbers in ``0,1``; raises UsageError for anything else."""
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if not word.isdecimal():
            raise UsageError(f"flag --gpu takes numbers like 0,1 or 'all', not '{text}'")
    return [int(word) for word in words]


def _logged(gpu: GPU) -> Device:
    logger.info("Using GPU %d: %s", gpu.index, gpu.name)
    return gpu
