"""The GPU that these tests run on: the emulated one, or a real one with PCAFFE_TEST_GPU=1."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from pycaffe_dist import device
from pycaffe_dist.kernels.cuda import cudnn

for _area in ("layers", "solvers", "parallel"):
    sys.path.append(str(Path(__file__).parents[1] / _area))


@pytest.hookimpl(tryfirst=True)  # before pytest leaves the long ones out
def pytest_collection_modifyitems(items):
    """Leave kernels in float64 to `make test-long`: float32 and float16 have the same sources."""
    for item in items:
        params = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if Path(__file__).parent in item.path.parents and any(p is np.float64 for p in params):
            item.add_marker(pytest.mark.long)


ON_REAL_GPU = bool(os.environ.get("PCAFFE_TEST_GPU"))


def _gpu(reverse: bool):
    if ON_REAL_GPU:
        from pycaffe_dist.gpu.finding import open_gpu

        if os.environ.get("PCAFFE_TEST_NO_POOL"):
            import cupy

            cupy.cuda.set_allocator(None)  # every array is an allocation of CUDA's
        return open_gpu(0)
    from pycaffe_dist.gpu.emulated import EmulatedGPU, compiler

    if compiler() is None:
        pytest.skip("there is no C++ compiler for the emulated GPU")
    return EmulatedGPU(reverse=reverse)


@pytest.fixture(scope="session")
def gpu():
    """The GPU."""
    return _gpu(reverse=False)


@pytest.fixture(scope="session")
def reversed_gpu():
    """The GPU; if emulated, its blocks and threads run in reverse order, which shows races."""
    return _gpu(reverse=True)


@pytest.fixture
def on_gpu(gpu):
    """The GPU as the current device."""
    with device.use(gpu):
        yield gpu


# What `stand_in/` replaces, and the modules that import it.
_REPLACED = "cupy", "cupyx", "cupy_backends", "cuda", "cudnn"
_USERS = "pycaffe_dist.gpu.real", "pycaffe_dist.gpu.cublas"


def _forget_cupy():
    for name in list(sys.modules):
        if name.partition(".")[0] in _REPLACED or name in _USERS:
            del sys.modules[name]


@pytest.fixture(scope="module")
def stand_in():
    """A GPU as real.py makes it, over the stand-ins for CuPy, cuBLAS and cuDNN in stand_in/."""
    if ON_REAL_GPU:
        pytest.skip("a real GPU needs no stand-in for CuPy")
    _gpu(reverse=False)  # skips without a C++ compiler
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ctypes, "CDLL", ctypes.CDLL)  # the stand-in replaces it
        patch.syspath_prepend(Path(__file__).parent / "stand_in")
        _forget_cupy()
        from pycaffe_dist.gpu.real import RealGPU

        yield RealGPU(0)
        _forget_cupy()


@pytest.fixture
def front_end(stand_in):
    """The stand-in for cuDNN's front end, which each test finds anew."""
    found = importlib.import_module("cudnn")
    found.executed.clear()
    found.streams.clear()
    cudnn.library.cache_clear()
    yield found
    cudnn.library.cache_clear()
