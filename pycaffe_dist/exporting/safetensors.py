"""Safetensors files: named arrays, as the package of that name writes and reads them."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from pycaffe_dist import atomic
from pycaffe_dist.errors import SnapshotError


def write(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays, as float32, atomically; raises SnapshotError."""
    from safetensors.numpy import save_file

    whole = {name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items()}
    with atomic.replacing(path) as new:
        save_file(whole, new)


def read(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Return the arrays of a file; raises SnapshotError when it is damaged."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise SnapshotError(f"cannot read {path} as safetensors: {error}") from None
