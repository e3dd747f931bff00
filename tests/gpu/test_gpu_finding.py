"""Error messages about GPUs that cannot be used."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from pycaffe_dist.errors import DeviceError
from pycaffe_dist.gpu import finding


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("cudaErrorDevicesUnavailable: busy\nor unavailable"), "GPU 0 cannot be used"),
        (ImportError("libcublas.so.12: not found"), "CUDA's libraries cannot be loaded"),
    ],
)
def test_the_error_has_the_first_line_of_the_reason(monkeypatch, error, words):
    def open_it(index):
        raise error

    monkeypatch.delenv(finding.EMULATE, raising=False)
    monkeypatch.setattr(finding, "count", lambda: 1)
    monkeypatch.setitem(sys.modules, "pycaffe_dist.gpu.real", SimpleNamespace(RealGPU=open_it))
    with pytest.raises(DeviceError) as found:
        finding.open_gpu.__wrapped__(0)
    assert str(found.value) == f"{words}: {str(error).splitlines()[0]}"
