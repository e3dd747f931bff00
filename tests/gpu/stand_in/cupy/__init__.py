"""A stand-in for CuPy on a machine without a GPU, for tests of pycaffe_dist/gpu/real.py.

It has the part of CuPy that pcaffe uses, with CuPy's names and arguments; everything else is an
error. Its arrays, kernels and graphs are those of the emulated GPU, with the same rules. It runs
everything at once, in the order of the calls.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import pycaffe_dist.kernels
from cupy import cuda
from pycaffe_dist.gpu.arrays import ArrayModule, DeviceArray
from pycaffe_dist.kernels.cuda.source import C_TYPES, Source, common, parse
from pycaffe_dist.precision import bfloat16

__version__ = "14.2.0"
ndarray = DeviceArray
_arrays = ArrayModule()
_default_pool = cuda.MemoryPool()


def __getattr__(name: str) -> Any:
    return getattr(_arrays, name)


def get_default_memory_pool() -> cuda.MemoryPool:
    """Return a pool; arrays outside of `using_allocator` come from the host's memory instead."""
    return _default_pool


class RawModule:
    """A source of pcaffe's kernels, compiled for the types of ``name_expressions``."""

    def __init__(self, *, code: str, options: tuple, name_expressions: tuple):
        if options != ("--std=c++17",):
            raise ValueError(f"unknown options {options}")
        self._source = _source(code)
        self._names, self._binding = name_expressions, dict[str, np.dtype]()
        for name in name_expressions:
            kernel, _, types = name.rstrip(">").partition("<")
            signature = self._source.signatures[kernel]
            for parameter, type_ in zip(signature.types, types.split(", "), strict=bool(types)):
                self._binding[parameter] = _dtype(type_)

    def get_function(self, name: str) -> RawKernel:
        """Compile the source; return one of its kernels."""
        if name not in self._names:
            raise KeyError(f"{name} is none of the name expressions")
        signature = self._source.signatures[name.partition("<")[0]]
        return RawKernel(cuda.Function(self._source, signature, self._binding))


class RawKernel:
    """A kernel that `RawModule` has compiled; ``kernel`` is the function for the current GPU."""

    def __init__(self, kernel: cuda.Function):
        self.kernel = kernel


def _source(code: str) -> Source:
    """Return the source that is CUDA's text ``code``, behind what all sources have in common."""
    head, _, rest = code.partition('\n#line 1 "')
    name, _, text = rest.partition('"\n')
    source = parse(Path(pycaffe_dist.kernels.__file__).parent / name)
    if (head, text) != (common(), source.text):
        raise ValueError(f"the text is not that of {name}")
    return source


def _dtype(c_type: str) -> np.dtype:
    (name,) = [name for name, known in C_TYPES.items() if known == c_type]
    return bfloat16() if name == "bfloat16" else np.dtype(name)
