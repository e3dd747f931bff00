"""The packages that formats of exports need; pcaffe itself does without them."""

from __future__ import annotations

import importlib

from pycaffe_dist.errors import UsageError


def require(purpose: str, *names: str) -> None:
    """Raise UsageError, with the command that installs it, if a package is missing."""
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            # PyTorch has builds for many devices: which one to install is the user's choice.
            what = name if name == "torch" else "'pycaffe-dist[export]'"
            message = f"{purpose} needs the package {name}: pip install {what}"
            raise UsageError(message) from None
