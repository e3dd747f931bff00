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
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pycaffe_dist.errors import DeviceError
from pycaffe_dist.gpu import emulated_graph
from pycaffe_dist.gpu.arrays import ArrayModule, DeviceArray
from pycaffe_dist.gpu.base import GPU, MemoryUse, product
from pycaffe_dist.gpu.emulated_graph import Recording, change, refuse
from pycaffe_dist.gpu.emulated_memory import Pool, allocating_from, guards_are_intact
from pycaffe_dist.kernels import caching
from pycaffe_dist.kernels.cuda.arguments import Arguments
from pycaffe_dist.kernels.cuda.source import Signature, Source, argument_types, c_type, common
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
        # Pinned memory, by its identity.
        self._pinned: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    @property
    def xp(self) -> ArrayModule:
        """A module with CuPy's functions."""
        return self._xp

    def host_zeros(self, count: int, dtype: Any) -> np.ndarray:
        self.refuse_in_capture("pinned memory is allocated")
        zeros = aligned_zeros(count, np.dtype(dtype))
        self._pinned[id(zeros.base)] = zeros.base
        return zeros

    def _is_pinned(self, array: np.ndarray) -> bool:
        while isinstance(array.base, np.ndarray):
            array = array.base
        return self._pinned.get(id(array)) is array

    def copy_to_device(self, source: np.ndarray, target: DeviceArray) -> None:
        self.refuse_in_capture("a host array is copied")
        _check_copy(source, target)
        _copy_flat(target.inner, source)

    def copy_to_host(self, source: DeviceArray, target: np.ndarray) -> None:
        if emulated_graph.recording() is not None and not self._is_pinned(target):
            raise DeviceError("values are copied to memory that is not pinned in a graph")
        _check_copy(source, target)
        change(_copy_flat, target, source.inner)

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
        inner = a.inner, b.inner, c.inner
        change(multiply, *inner, trans_a, trans_b, alpha, beta)

    def graph_memory(self) -> Pool:
        return Pool()

    def allocating_from(self, memory: Pool) -> contextlib.AbstractContextManager[None]:
        return allocating_from(memory)

    @contextlib.contextmanager
    def _captured(self, memory: Pool) -> Iterator[Callable[[], Recording]]:
        with Recording(memory) as graph:
            yield lambda: graph

    def stream(self, name: str) -> Any:
        if name != "compute":
            self.refuse_in_capture(f"the {name} stream is used")
        return contextlib.nullcontext()

    def record(self) -> Event:
        return Event(emulated_graph.recording() is not None)

    def wait(self, event: Event) -> None:
        """Check the event: everything is done at once."""
        if event.in_graph != (emulated_graph.recording() is not None):
            raise DeviceError("work in a graph waits for an event outside of it, or the reverse")

    def synchronize_event(self, event: Event) -> None:
        """Check the event: everything is done at once."""
        self.synchronize_stream()
        self.wait(event)

    def is_reached(self, event: Event) -> bool:
        self.synchronize_event(event)
        return True

    def synchronize_stream(self) -> None:
        """Check that the host may wait: everything is done at once."""
        refuse("the host waits")

    def synchronize(self) -> None:
        self.synchronize_stream()

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
        types = argument_types(signature, binding)

        def run(order: _Launch, address: int, *arrays: np.ndarray) -> None:
            call(ctypes.byref(order), ctypes.c_void_p(address))
            if order.error:
                raise DeviceError(f"{signature.name}: {_PROBLEMS[order.error]}")
            if not all(map(guards_are_intact, arrays)):
                raise DeviceError(f"{signature.name}: wrote beside one of its arrays")

        def launch(grid: tuple, block: tuple, address: int, shared: int, args: tuple) -> None:
            for parameter, arg in zip(signature.parameters, args):
                if isinstance(arg, DeviceArray) and not arg.flags.c_contiguous:
                    raise DeviceError(f"{signature.name}: {parameter.name} is not contiguous")
            order = _Launch(grid, block, shared, self.reverse, 0)
            arrays = [arg.inner for arg in args if isinstance(arg, DeviceArray)]
            recording = emulated_graph.recording()
            if recording is None:
                run(order, address, *arrays)
            else:
                recording.add(_run_with, run, order, _kept(types, args[: len(types)]), *arrays)

        return launch


class Event(NamedTuple):
    """An event; ``in_graph``: of a graph that was being captured."""

    in_graph: bool


def _kept(types: list[str], args: tuple) -> Arguments:
    """Return a launch's arguments in memory of their own."""
    kept = Arguments(types)
    values = [arg.data.ptr if isinstance(arg, DeviceArray) else arg for arg in args]
    kept.put([0 if value is None else value for value in values])
    return kept


def _run_with(run: Callable[..., None], order: _Launch, kept: Arguments, *arrays: Any) -> None:
    run(order, kept.address, *arrays)


def _check_copy(source: Any, target: Any) -> None:
    both = [(each.dtype, each.size, each.flags.c_contiguous) for each in (source, target)]
    if both[0] != both[1] or not both[0][2]:
        raise DeviceError(f"a copy needs contiguous arrays of one type and size, found {both}")


def _copy_flat(target: np.ndarray, source: np.ndarray) -> None:
    np.copyto(target.reshape(-1), source.reshape(-1))


def multiply(
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    trans_a: bool,
    trans_b: bool,
    alpha: float,
    beta: float,
) -> None:
    """Set c to alpha·op(a)·op(b) + beta·c."""
    left, right = (array.astype(wide(c.dtype), copy=False) for array in (a, b))
    left = np.swapaxes(left, -1, -2) if trans_a else left
    right = np.swapaxes(right, -1, -2) if trans_b else right
    with np.errstate(all="ignore"):  # a GPU gives no warning of infinities and NaN either
        result = np.matmul(left, right)
    if alpha != 1:
        result *= result.dtype.type(alpha)
    if beta:
        result += result.dtype.type(beta) * c
    c[...] = result


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
