"""The GPU that these tests run on: the emulated one, or a real one with PCAFFE_TEST_GPU=1."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pycaffe_dist import device

for _area in ("layers", "solvers", "parallel"):
    sys.path.append(str(Path(__file__).parents[1] / _area))

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
