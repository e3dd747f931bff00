"""The GPUs that this process may use; CuPy is imported when the first of them is asked for."""

from __future__ import annotations

import functools
import os

from pycaffe_dist.errors import DeviceError
from pycaffe_dist.gpu.base import GPU

# The number of emulated GPUs in place of real ones: to find errors without a GPU.
EMULATE = "PCAFFE_EMULATE_GPU"
# Which float32 products may round to TF32.
TF32 = "PCAFFE_TF32"
_TF32_CHOICES = ("none", "convolutions", "all")
# Which plans of cuDNN run: the fastest by measurement, or the first in cuDNN's ranking.
PLANS = "PCAFFE_CUDNN_PLANS"
_PLANS_CHOICES = ("timed", "first")


def emulated_gpus() -> int:
    """Return how many GPUs to emulate; 0 for the real ones."""
    wanted = os.environ.get(EMULATE, "")
    if wanted and not wanted.isdecimal():
        raise DeviceError(f"{EMULATE} must be a number of GPUs, found '{wanted}'")
    return int(wanted or 0)


@functools.cache
def count() -> int:
    """Return the number of GPUs; raises DeviceError with the reason when there is none."""
    if emulated_gpus():
        return emulated_gpus()
    try:
        import cupy
    except ImportError as error:
        missing = getattr(error, "name", None) == "cupy"
        raise DeviceError(
            "a GPU needs CuPy: pip install 'pycaffe-dist[gpu]'"
            if missing
            else f"CuPy cannot be used: {_first_line(error)}"
        ) from None
    try:
        found = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DeviceError(f"there is no usable GPU: {_first_line(error)}") from None
    if not found:
        raise DeviceError("there is no GPU that CUDA shows to this process")
    return found


@functools.cache
def open_gpu(index: int) -> GPU:
    """Return GPU ``index``, always the same object; raises DeviceError when there is none."""
    tf32, plans = _choice(TF32, _TF32_CHOICES), _choice(PLANS, _PLANS_CHOICES)
    gpu = _open(index)
    gpu.tf32_convolutions, gpu.tf32_products = tf32 != "none", tf32 == "all"
    gpu.times_plans = plans == "timed"
    return gpu


def _choice(variable: str, choices: tuple[str, ...]) -> str:
    """Return a choice from the environment, by default the first one."""
    choice = os.environ.get(variable) or choices[0]
    if choice not in choices:
        raise DeviceError(f"{variable} must be one of {', '.join(choices)}, found '{choice}'")
    return choice


def _open(index: int) -> GPU:
    number = count()
    if not 0 <= index < number:
        raise DeviceError(f"there is no GPU {index}; known are 0 to {number - 1}")
    if emulated_gpus():
        from pycaffe_dist.gpu.emulated import EmulatedGPU

        return EmulatedGPU(index)
    try:
        from pycaffe_dist.gpu.real import RealGPU

        return RealGPU(index)
    except ImportError as error:  # CuPy is installed, but CUDA's libraries are not
        raise DeviceError(f"CUDA's libraries cannot be loaded: {_first_line(error)}") from None
    except RuntimeError as error:  # CuPy's errors, too: a GPU in exclusive use, say
        raise DeviceError(f"GPU {index} cannot be used: {_first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
