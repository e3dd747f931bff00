"""Traces of a GPU's work: launches of kernels, calls of libraries, and the bytes that they move.

``class TracedGPU(Traced, RealGPU)`` traces a real GPU, `DryGPU` traces without any GPU.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pycaffe_dist.gpu.arrays import ArrayModule, DeviceArray
from pycaffe_dist.gpu.emulated import EmulatedGPU
from pycaffe_dist.kernels.cuda.source import Parameter, Signature, Source, functions

# Copy a part of one of two arrays: the bytes are those of the smaller one.
_PARTIAL = "copy_columns", "copy_wide_columns"


class Work(NamedTuple):
    """One launch or call.

    ``kind`` is kernel, product (cuBLAS), library (cuDNN), array (a function of NumPy on arrays,
    seen in an emulation only) or copy (between the host and the GPU).
    """

    kind: str
    name: str
    nbytes: int


if TYPE_CHECKING:
    _Base = EmulatedGPU  # any GPU that has what is abstract in the interface
else:
    _Base = object


class Traced(_Base):
    """A part of a GPU's class, named before it: ``work`` lists what the GPU is given to do.

    Every array counts once for reading and once for writing, as if no cache kept anything.
    """

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.work: list[Work] = []

    def note_work(self, kind: str, name: str, nbytes: int) -> None:
        self.work.append(Work(kind, name, nbytes))

    def function(
        self, source: Source, signature: Signature, binding: Mapping[str, np.dtype]
    ) -> Callable[..., None]:
        launch = super().function(source, signature, binding)
        passes = _passes(source)[signature.name]

        def noted(grid: tuple, block: tuple, address: int, shared: int, args: tuple) -> None:
            # Behind the arguments are arrays from tables, which a kernel reads and writes.
            times = passes + (2,) * (len(args) - len(passes))
            moved = [n * arg.nbytes for n, arg in zip(times, args) if n and arg is not None]
            total = 2 * min(moved) if signature.name in _PARTIAL else sum(moved)
            self.note_work("kernel", signature.name, total)
            launch(grid, block, address, shared, args)

        return noted

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
        self.note_work("product", "gemm", a.nbytes + b.nbytes + c.nbytes * (2 if beta else 1))
        super().gemm(a, b, c, trans_a, trans_b, alpha, beta, tf32)

    def copy_to_device(self, source: np.ndarray, target: Any) -> None:
        self.note_work("copy", "to the GPU", target.nbytes)
        super().copy_to_device(source, target)

    def copy_to_host(self, source: Any, target: np.ndarray) -> None:
        self.note_work("copy", "to the host", source.nbytes)
        super().copy_to_host(source, target)


@functools.cache
def _passes(source: Source) -> dict[str, tuple[int, ...]]:
    """Return for each kernel how often its launch passes over each argument: 2 to read and write.

    Arrays that are not const are written; they are read, too, unless the kernel only stores.
    """
    bodies = dict(functions(source.text))
    return {
        name: tuple(_passes_over(parameter, bodies[name]) for parameter in signature.parameters)
        for name, signature in source.signatures.items()
    }


def _passes_over(parameter: Parameter, body: str) -> int:
    if not parameter.is_array or parameter.is_const:
        return int(parameter.is_array)
    names = [parameter.name]
    for name in names:  # grows: pointers into the array
        names += re.findall(rf"(?<!const )\bT\* (\w+) = {name}\b", body)
    every = f"(?:{'|'.join(names)})"
    # A test for null, a store, the beginning of a pointer into the array, a step of it; outputs of
    # `each_few` are only stored to.
    no_reads = [
        rf"\bif \({every}\)",
        rf"\b{every} \?",
        rf"\b(?:store|set_each)\({every},",
        rf"\b{every}\[[^\]]*\] = ",
        rf"\bT\* {every} = {every}?",
        rf"\b{every} \+= \w+\)",
        r"\bare_aligned\([^)]*\)",
        r"\beach_few<T>\([^;]*;",
    ]
    rest = re.sub("|".join(no_reads), "", body)
    return 2 if re.search(rf"\b{every}\b", rest) else 1


class _LazyModule(ArrayModule):
    """Arrays whose memory the system provides where it is written, so mostly never."""

    @staticmethod
    def empty(shape: Any, dtype: Any = float) -> DeviceArray:
        return DeviceArray(np.empty(shape, dtype))

    @staticmethod
    def zeros(shape: Any, dtype: Any = float) -> DeviceArray:
        return DeviceArray(np.zeros(shape, dtype))


class _IdleGPU(EmulatedGPU):
    """A GPU that launches and copies nothing; ``has_cudnn``: convolutions call for cuDNN."""

    def __init__(self, has_cudnn: bool = False):
        super().__init__()
        self.name = "dry run"
        self._has_cudnn = has_cudnn
        self._xp = _LazyModule()

    def cuda_stream(self) -> int | None:
        return 0 if self._has_cudnn else None

    def function(
        self, source: Source, signature: Signature, binding: Mapping[str, np.dtype]
    ) -> Callable[..., None]:
        return lambda grid, block, address, shared, args: None

    def gemm(self, *args: Any, **options: Any) -> None:
        """Do nothing."""

    def copy_to_device(self, source: np.ndarray, target: Any) -> None:
        """Do nothing."""

    def copy_to_host(self, source: Any, target: np.ndarray) -> None:
        """Do nothing."""

    def check_later(self, array: Any, check: Callable[[np.ndarray], None]) -> None:
        """Copy the values, which no kernel has set, and never check them."""
        self.copy_to_host(array, self.host_zeros(array.size, array.dtype))


class DryGPU(Traced, _IdleGPU):
    """Traces the work of a program without doing it: values are undefined, shapes are right."""
