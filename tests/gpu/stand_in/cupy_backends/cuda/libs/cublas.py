"""cuBLAS: what CuPy has of it, and the library that ``ctypes`` opens once this is imported."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from cupy._machine import check_stream, new_address, streams
from cupy.cuda import runtime

from pycaffe_dist.gpu.emulated import multiply
from pycaffe_dist.gpu.emulated_graph import change
from pycaffe_dist.precision import bfloat16

CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_64F, CUBLAS_COMPUTE_32F_FAST_TF32 = 68, 70, 77
CUBLAS_GEMM_DEFAULT = -1
_NAME = "libcublas.so.13"
_OK, _INVALID_VALUE, _NOT_SUPPORTED = 0, 7, 15

_DTYPES = {
    runtime.CUDA_R_16F: np.dtype(np.float16),
    runtime.CUDA_R_16BF: bfloat16(),
    runtime.CUDA_R_32F: np.dtype(np.float32),
    runtime.CUDA_R_64F: np.dtype(np.float64),
}
# For each type of computing, the types of the factors and of the product.
_HALF = [(kind, to) for kind in (runtime.CUDA_R_16F, runtime.CUDA_R_16BF) for to in (kind, 0)]
_SUPPORTED = {
    CUBLAS_COMPUTE_32F: [*_HALF, (runtime.CUDA_R_32F, runtime.CUDA_R_32F)],
    CUBLAS_COMPUTE_32F_FAST_TF32: [(runtime.CUDA_R_32F, runtime.CUDA_R_32F)],
    CUBLAS_COMPUTE_64F: [(runtime.CUDA_R_64F, runtime.CUDA_R_64F)],
}

# The stream of each handle, 0 before one is set.
_handles: dict[int, int] = {}


def create() -> int:
    handle = new_address()
    _handles[handle] = 0
    return handle


def setStream(handle: int, stream: int) -> None:
    check_stream(stream)
    if streams[stream]._is_recorded:
        raise NotImplementedError("calling cuBLAS API during stream capture is unsupported")
    _handles[handle] = stream


class _Function:
    """A function of C: it must be declared with its true types before it is called."""

    argtypes: list[Any] | None = None

    def __init__(self, function: Callable[..., int], types: list[Any]):
        self._function, self._types = function, types

    def __call__(self, *args: Any) -> int:
        if self.argtypes != self._types or len(args) != len(self._types):
            raise TypeError(f"the C function takes {self._types}, not {self.argtypes}")
        return self._function(*(kind(arg).value for kind, arg in zip(self._types, args)))


_INT, _LONG, _POINTER = ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p


class _Library:
    """The functions of the library."""

    def __init__(self) -> None:
        head = [_POINTER, _INT, _INT, _INT, _INT, _INT, _POINTER]
        matrix = [_POINTER, _INT, _INT]
        strided = [*matrix, _LONG]
        tail = [_INT, _INT]
        self.cublasSetWorkspace_v2 = _Function(
            _set_workspace, [_POINTER, _POINTER, ctypes.c_size_t]
        )
        self.cublasGemmEx = _Function(_gemm, [*head, *matrix, *matrix, _POINTER, *matrix, *tail])
        self.cublasGemmStridedBatchedEx = _Function(
            _gemm_strided, [*head, *strided, *strided, _POINTER, *strided, _INT, *tail]
        )


def _set_workspace(handle: int, workspace: int, size: int) -> int:
    return _OK if workspace % 256 == 0 and size and _handles[handle] else _INVALID_VALUE


def _gemm(*args: Any) -> int:
    head, a, b, beta, c, tail = args[:7], args[7:10], args[10:13], args[13], args[14:17], args[17:]
    return _product(head, (*a, None), (*b, None), beta, (*c, None), 1, *tail)


def _gemm_strided(*args: Any) -> int:
    head, a, b, beta, c = args[:7], args[7:11], args[11:15], args[15], args[16:20]
    return _product(head, a, b, beta, c, *args[20:])


def _product(
    head: tuple, a: tuple, b: tuple, beta: int, c: tuple, stack: int, compute: int, algorithm: int
) -> int:
    handle, trans_a, trans_b, m, n, k, alpha = head
    check_stream(_handles[handle])
    if (a[1], c[1]) not in _SUPPORTED.get(compute, []) or a[1] != b[1]:
        return _NOT_SUPPORTED
    rows = k if trans_a else m, n if trans_b else k, m
    columns = m if trans_a else k, k if trans_b else n, n
    if min(m, n, k, stack) < 1 or algorithm != CUBLAS_GEMM_DEFAULT:
        return _INVALID_VALUE
    if any(matrix[2] < count for matrix, count in zip((a, b, c), rows)):
        return _INVALID_VALUE
    # The scalars are read in the call, the matrices when the graph runs.
    number = ctypes.c_double if compute == CUBLAS_COMPUTE_64F else ctypes.c_float
    scalars = [number.from_address(address).value for address in (alpha, beta)]
    places = [(*each, stack) for each in zip((a, b, c), rows, columns)]
    change(_multiply, places, bool(trans_a), bool(trans_b), *scalars)
    return _OK


def _multiply(places: list, trans_a: bool, trans_b: bool, alpha: float, beta: float) -> None:
    # A matrix by columns is its transpose by rows, so that the factors change places.
    a, b, c = (_transposed(*place) for place in places)
    multiply(b, a, c, trans_b, trans_a, alpha, beta)


def _transposed(matrix: tuple, rows: int, columns: int, stack: int) -> np.ndarray:
    """Return the transposes of matrices by columns, without a copy."""
    address, kind, distance, stride = matrix
    dtype = _DTYPES[kind]
    size = dtype.itemsize
    count = (stack - 1) * (stride or 0) + (columns - 1) * distance + rows
    memory = (ctypes.c_char * (count * size)).from_address(address)
    shape, strides = (columns, rows), (distance * size, size)
    if stride is not None:
        shape, strides = (stack, *shape), (stride * size, *strides)
    return np.ndarray(shape, dtype, memory, strides=strides)


class _Loader(ctypes.CDLL):
    """Opens libraries like ``ctypes.CDLL``, but this one in place of cuBLAS."""

    def __new__(cls, name: str, *args: Any, **options: Any) -> Any:
        return _Library() if name == _NAME else super().__new__(cls)


ctypes.CDLL = _Loader
