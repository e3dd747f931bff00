"""Safetensors files: a header of names, types, shapes and places, then the arrays."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

import numpy as np

from pycaffe_dist import atomic
from pycaffe_dist.errors import SnapshotError

_ALIGNMENT = 8
_TYPES = {"F32": np.float32, "F64": np.float64, "F16": np.float16, "I64": np.int64}
_LONGEST_HEADER = 100_000_000


def write(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays, as float32, atomically; raises SnapshotError."""
    header, end = {}, 0
    for name, array in arrays.items():
        size = array.size * 4
        header[name] = {"dtype": "F32", "shape": [*array.shape], "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with atomic.replacing(path) as new, new.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array, "<f4").tobytes())


def read(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Return the arrays of a file; raises SnapshotError when it is damaged."""
    try:
        with open(path, "rb") as file:
            content = file.read()
        length = int.from_bytes(content[:8], "little")
        if length > _LONGEST_HEADER:
            raise ValueError(f"a header of {length} bytes")
        header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
        header.pop("__metadata__", None)
        arrays = {}
        for name, about in header.items():
            begin, end = about["data_offsets"]
            flat = np.frombuffer(data[begin:end], _TYPES[about["dtype"]])
            arrays[name] = flat.reshape(about["shape"])
        return arrays
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SnapshotError(f"cannot read {path} as safetensors: {error}") from None
