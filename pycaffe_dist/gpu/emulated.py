"""An emulated GPU: the same kernel sources, compiled as C++ for the host, on arrays like CuPy's.

For tests and to find errors: it is many times slower than the CPU kernels.  It enqueues nothing, so
it shows wrong results and wrong calls, but no missing wait between streams.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pycaffe_dist.errors import DeviceError
from pycaffe_dist.gpu.arrays import ArrayModule, DeviceArray, guards_are_intact
from pycaffe_dist.gpu.base import GPU, MemoryUse, product
from pycaffe_dist.kernels import caching
from pycaffe_dist.kernels.cuda.source import Signature, Source, c_type, common
from pycaffe_dist.precision import wide
from pycaffe_dist.storage import aligned_zeros

_FLAGS = (
    "-std=c++14",
    "-O1",
    "-shared",
    "-fPIC",
    "-w",
    "-U_FORTIFY_SOURCE",
    "-fno-strict-aliasing",
)
_PROBLEMS = {
    1: "only some threads of a block came to a __syncthreads",
    2: "a __syncthreads that source.py did not find: let no kernel call it through a macro",
}


class _Launch(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("reverse", ctypes.c_int),
        ("error", ctypes.c_int),
    )


def compiler() -> str | None:
    """Return the host's C++ compiler, $CXX or g++ or clang++, or None when there is none."""
    for name in (os.environ.get("CXX", ""), "g++", "clang++", "c++"):
        found = name and shutil.which(name)
        if found:
            return found
    return None


class EmulatedGPU(GPU):
    """The host as a GPU.  ``reverse`` runs blocks and threads in the opposite order."""

    capability = "0"
    most_blocks = 8

    def __init__(self, index: int = 0, reverse: bool = False):
        if compiler() is None:
            raise DeviceError("the emulated GPU needs a C++ compiler: g++, clang++ or $CXX")
        super().__init__()
        self.index, self.reverse = index, reverse
        self.name = "emulated GPU"
        self._xp = ArrayModule()
        self._libraries: dict[Any, ctypes.CDLL] = {}

    @property
    def xp(self) -> ArrayModule:
        """A module with CuPy's functions."""
        return self._xp

    def host_zeros(self, count: int, dtype: Any) -> np.ndarray:
        return aligned_zeros(count, np.dtype(dtype))

    def copy_to_device(self, source: np.ndarray, target: DeviceArray) -> None:
        np.copyto(target.inner.reshape(-1), source.reshape(-1))

    def copy_to_host(self, source: DeviceArray, target: np.ndarray) -> None:
        np.copyto(target.reshape(-1), source.inner.reshape(-1))

    def gemm(
        self,
        a: Any,
        b: Any,
        c: Any,
        trans_a: bool = False,
        trans_b: bool = False,
        alpha: float = 1.0,
        beta: float = 0.0,
        tf32: bool = False,
    ) -> None:
        product(a, b, c, trans_a, trans_b)
        if not all(array.flags.c_contiguous for array in (a, b, c)):
            raise DeviceError("gemm needs contiguous arrays")
        left, right = (array.inner.astype(wide(c.dtype), copy=False) for array in (a, b))
        left = np.swapaxes(left, -1, -2) if trans_a else left
        right = np.swapaxes(right, -1, -2) if trans_b else right
        with np.errstate(all="ignore"):  # a GPU gives no warning of infinities and NaN either
            result = np.matmul(left, right)
        if alpha != 1:
            result *= result.dtype.type(alpha)
        if beta:
            result += result.dtype.type(beta) * c.inner
        c.inner[...] = result

    def stream(self, name: str) -> Any:
        return contextlib.nullcontext()

    def record(self) -> None:
        return None

    def wait(self, event: None) -> None:
        """Do nothing: everything is done at once."""

    def synchronize_event(self, event: None) -> None:
        """Do nothing: everything is done at once."""

    def is_reached(self, event: None) -> bool:
        return True

    def synchronize_stream(self) -> None:
        """Do nothing: everything is done at once."""

    def synchronize(self) -> None:
        """Do nothing: everything is done at once."""

    def libraries(self) -> list[str]:
        return [f"emulated by {compiler()}"]

    @property
    def identity(self) -> str:
        return str(self.index)

    def nccl(self) -> Any:
        from pycaffe_dist.gpu import emulated_nccl

        return emulated_nccl

    def mpi_refusal(self, cuda_aware: bool | None) -> str:
        return ""  # its memory is the host's

    def memory(self) -> MemoryUse:
        return MemoryUse(0, 0, 0, 0)

    def function(
        self, source: Source, signature: Signature, binding: Mapping[str, np.dtype]
    ) -> Callable[..., None]:
        key = source.path, tuple(binding.items())
        if key not in self._libraries:
            self._libraries[key] = ctypes.CDLL(str(_build(source, binding)))
        call = getattr(self._libraries[key], f"emulated_{signature.name}")
        call.restype = None

        def launch(grid: tuple, block: tuple, address: int, shared: int, args: tuple) -> None:
            for parameter, arg in zip(signature.parameters, args):
                if isinstance(arg, DeviceArray) and not arg.flags.c_contiguous:
                    raise DeviceError(f"{signature.name}: {parameter.name} is not contiguous")
            order = _Launch(grid, block, shared, self.reverse, 0)
            call(ctypes.byref(order), ctypes.c_void_p(address))
            if order.error:
                raise DeviceError(f"{signature.name}: {_PROBLEMS[order.error]}")
            for arg in args:
                if isinstance(arg, DeviceArray) and not guards_are_intact(arg.inner):
                    raise DeviceError(f"{signature.name}: wrote beside one of its arrays")

        return launch


def _build(source: Source, binding: Mapping[str, np.dtype]) -> Path:
    """Compile a source for some types, unless that was done before; return the library."""
    program = _program(source, binding)
    tool = compiler()
    digest = hashlib.sha256(" ".join([tool or "", *_FLAGS, program]).encode()).hexdigest()
    path = caching.cache_directory() / "emulated" / f"{source.path.stem}-{digest[:24]}.so"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with caching.exclusive(path.with_suffix(".lock"), path.exists):
        if not path.exists():
            _compile(tool, program, path)
    path.with_suffix(".lock").unlink(missing_ok=True)
    return path


def _compile(tool: str | None, program: str, path: Path) -> None:
    part = path.with_suffix(f".{os.getpid()}.part")
    command = [str(tool), *_FLAGS, "-x", "c++", "-", "-o", str(part)]
    done = subprocess.run(command, input=program, text=True, capture_output=True)
    if done.returncode:
        raise DeviceError(f"{tool} cannot compile {path.stem}.cu:\n{done.stderr.strip()}")
    os.replace(part, path)


def _program(source: Source, binding: Mapping[str, np.dtype]) -> str:
    """Return C++ with one function of plain pointers for each kernel."""
    shim = Path(__file__).parents[1] / "kernels" / "cuda" / "emulation.hpp"
    parts = [shim.read_text(), common().replace("#pragma once", "")]
    parts += [f'#line 1 "{source.path.name}"', source.text]
    for signature in source.signatures.values():
        arguments = [
            f"argument<{c_type(p.type, binding)}{'*' * p.is_array}>(a[{index}])"
            for index, p in enumerate(signature.parameters)
        ]
        waits = "true" if signature.waits else "false"
        call = f"{signature.instance(binding)}({', '.join(arguments)})"
        parts.append(
            f'extern "C" void emulated_{signature.name}(Launch* launch, void** a) {{\n'
            f"  emulate(*launch, {waits}, [=] {{ {call}; }});\n}}"
        )
    return "\n".join(parts) + "\n"
