"""The GPU that these tests run on: the emulated one, or with PCAFFE_TEST_GPU=1 the real one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pycaffe_dist import device
from pycaffe_dist.gpu.emulated import EmulatedGPU, compiler

sys.path.insert(0, str(Path(__file__).parents[1] / "layers"))


@pytest.fixture(scope="session", params=["in order", "reversed"])
def gpu(request):
    """The GPU; emulated, its threads run in order or the other way round."""
    if compiler() is None:
        pytest.skip("there is no C++ compiler for the emulated GPU")
    return EmulatedGPU(reverse=request.param == "reversed")


@pytest.fixture
def on_gpu(gpu):
    """The GPU as the current device."""
    with device.use(gpu):
        yield gpu
