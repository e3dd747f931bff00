"""Ways out: nets for ONNX, PyTorch and NumPy, each checked against the net before it is kept."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from pycaffe_dist.errors import UsageError, did_you_mean
from pycaffe_dist.exporting.options import Options, Report
from pycaffe_dist.exporting.packages import require

if TYPE_CHECKING:
    from pycaffe_dist.api.net import Net as ApiNet
    from pycaffe_dist.net import Net

_MODULES = {"onnx": "onnx.exporting", "torch": "torch.exporting", "numpy": "arrays"}
_PACKAGES = {"onnx": ("onnx", "onnxruntime"), "torch": ("safetensors",)}


def export(net: ApiNet, out: str | os.PathLike[str], to: str = "onnx", **options: Any) -> Report:
    """Write a net of the Python API to ``out``; ``to`` is onnx, torch or numpy.

    The keywords are those of `Options`.  Raises UsageError, or NetError when layers cannot be
    expressed or results differ; nothing is written then.
    """
    return export_net(net._net, out, to, Options(**options))


def export_net(net: Net, out: str | os.PathLike[str], to: str, options: Options) -> Report:
    """Write ``net`` to ``out`` in a format; see `export`."""
    if to not in _MODULES:
        hint = did_you_mean(to, _MODULES) or f"; known are {', '.join(_MODULES)}"
        raise UsageError(f"unknown format '{to}'{hint}")
    require(f"export to {to}", *_PACKAGES.get(to, ()))
    module = importlib.import_module(f"{__name__}.{_MODULES[to]}")
    return module.export(net, os.fspath(out), options)
