"""A stand-in for cuDNN's front end: graphs of one convolution, computed on the host in float64.

Tests change `pygraph.plans` and `pygraph.unsupported`.
"""

from __future__ import annotations

import ctypes
import enum
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
from cuda import pathfinder
from cupy._machine import check_stream

from pycaffe_dist.gpu.emulated_graph import change
from pycaffe_dist.precision import bfloat16

__version__ = "1.26.0"
_HANDLE, _WORKSPACE = 7, 100

executed: list[tuple[str, str]] = []  # the operations and plans that ran
streams: list[int] = []  # what `set_stream` was given
clock = SimpleNamespace(seconds=0.0)  # only plans and kernels that a test slows down let it go on

data_type = enum.Enum("data_type", ["FLOAT", "HALF", "BFLOAT16"])
heur_mode = enum.Enum("heur_mode", ["A", "FALLBACK"])
numerical_note = enum.Enum(
    "numerical_note", ["NONDETERMINISTIC", "TENSOR_CORE", "DOWN_CONVERT_INPUTS"]
)
_DTYPES = {
    data_type.FLOAT: np.dtype(np.float32),
    data_type.HALF: np.dtype(np.float16),
    data_type.BFLOAT16: bfloat16(),
}


class cudnnGraphNotSupportedError(Exception):
    """What cuDNN cannot do; it is no RuntimeError."""


def backend_version() -> int:
    return 91002


def create_handle() -> int:
    return _HANDLE


def set_stream(handle: int, stream: int) -> None:
    assert handle == _HANDLE
    check_stream(stream)
    streams.append(stream)


class tensor:
    """An array in a graph."""

    def __init__(self) -> None:
        self.dim: list[int] = []
        self.stride: list[int] = []
        self.kind: Any = None
        self.is_output = False

    def set_output(self, value: bool, /) -> tensor:
        self.is_output = value
        return self

    def set_dim(self, value: list[int], /) -> tensor:
        self.dim = value
        return self

    def set_stride(self, value: list[int], /) -> tensor:
        self.stride = value
        return self

    def set_data_type(self, data_type: Any) -> tensor:
        self.kind = data_type
        return self

    def _array(self, address: int) -> np.ndarray:
        """Return the memory at an address as the described array."""
        assert self.stride == [math.prod(self.dim[i + 1 :]) for i in range(len(self.dim))]
        count, dtype = math.prod(self.dim), _DTYPES[self.kind]
        memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
        return np.frombuffer(memory, dtype).reshape(self.dim)


class pygraph:
    """A graph; its methods must be called in the front end's order."""

    # The operation that no plan can do.
    unsupported = ""
    # Seconds that each plan takes; one that takes for ever cannot be built.
    plans: dict[str, float] = {"only": 0.0}

    def __init__(
        self, *, io_data_type: Any, intermediate_data_type: Any, compute_data_type: Any, handle: int
    ):
        assert io_data_type in _DTYPES
        assert intermediate_data_type == compute_data_type == data_type.FLOAT
        assert handle == _HANDLE
        self.notes: list[Any] = []
        self._steps: list[str] = []
        self._built: int | None = None

    def tensor(self, *, dim: list[int], stride: list[int], data_type: Any, name: str) -> tensor:
        return tensor().set_dim(dim).set_stride(stride).set_data_type(data_type)

    def _make(self, what: str, inputs: tuple, *geometry: list[int]) -> tensor:
        self._what, self._inputs, self._output = what, inputs, tensor()
        self._geometry = tuple(map(tuple, geometry))
        return self._output

    def conv_fprop(
        self, image: tensor, weight: tensor, padding: list, stride: list, dilation: list
    ) -> tensor:
        return self._make("forward", (image, weight), stride, padding, dilation)

    def conv_dgrad(
        self, loss: tensor, filter: tensor, padding: list, stride: list, dilation: list
    ) -> tensor:
        return self._make("data", (loss, filter), stride, padding, dilation)

    def conv_wgrad(
        self, image: tensor, loss: tensor, padding: list, stride: list, dilation: list
    ) -> tensor:
        return self._make("weights", (image, loss), stride, padding, dilation)

    def _follow(self, step: str, before: str) -> None:
        assert (self._steps or [""])[-1] == before, f"{step} does not follow {self._steps}"
        self._steps.append(step)

    def validate(self) -> None:
        self._follow("validate", "")
        assert self._output.is_output

    def build_operation_graph(self) -> None:
        self._follow("build_operation_graph", "validate")

    def create_execution_plans(self, modes: list, /) -> None:
        self._follow("create_execution_plans", "build_operation_graph")
        assert modes == [heur_mode.A, heur_mode.FALLBACK]

    def deselect_numeric_notes(self, notes: list, /) -> None:
        self._follow("deselect_numeric_notes", "create_execution_plans")
        assert set(notes) <= set(numerical_note)
        self.notes = notes

    def check_support(self) -> None:
        self._follow("check_support", "deselect_numeric_notes")
        if "cudart" not in pathfinder.loaded:
            raise RuntimeError("Unable to load any libcudart.so.* library.")
        x, w, _ = self._roles(*self._inputs, self._output)
        sizes = zip(x.dim[2:], w.dim[2:], *self._geometry[1:])
        is_too_large = any(n + 2 * pad < dilation * (k - 1) + 1 for n, k, pad, dilation in sizes)
        if is_too_large or self._what == self.unsupported:
            raise cudnnGraphNotSupportedError("no plan can do this\nof all plans")

    def build_plans(self) -> None:
        self._follow("build_plans", "check_support")

    def get_workspace_size(self) -> int:
        return _WORKSPACE

    def get_execution_plan_count(self) -> int:
        return len(self.plans)

    def get_plan_name_at_index(self, index: int) -> str:
        return list(self.plans)[index]

    def build_plan_at_index(self, index: int) -> None:
        if self.plans[self.get_plan_name_at_index(index)] == math.inf:
            raise cudnnGraphNotSupportedError("this plan needs another device")
        self._built = index

    def get_workspace_size_plan_at_index(self, index: int) -> int:
        assert index == self._built
        return _WORKSPACE

    def execute_plan_at_index(
        self, tensor_to_device_buffer: dict, workspace: int, index: int, handle: int
    ) -> None:
        assert index == self._built
        name = self.get_plan_name_at_index(index)
        executed.append((self._what, name))
        clock.seconds += self.plans[name]
        self.execute(tensor_to_device_buffer, workspace, handle)

    def execute(self, tensor_to_device_buffer: dict, workspace: int, handle: int) -> None:
        assert handle == _HANDLE
        assert self._steps[-1] == "build_plans"
        check_stream(streams[-1])
        places = [*self._inputs, self._output]
        change(self._run, workspace, *(tensor_to_device_buffer[each] for each in places))

    def _run(self, workspace: int, *addresses: int) -> None:
        ctypes.memset(workspace, 0, _WORKSPACE)
        tensors = [*self._inputs, self._output]
        first, second, result = (each._array(at) for each, at in zip(tensors, addresses))
        roles = self._roles(first, second, result)
        with np.errstate(over="ignore"):
            result[...] = _convolution(self._what, *roles, *self._geometry)

    def _roles(self, first: Any, second: Any, result: Any) -> tuple[Any, Any, Any]:
        """Return what belongs to images, weights and outputs."""
        orders = {"forward": (0, 1, 2), "data": (2, 1, 0), "weights": (0, 2, 1)}
        x, w, y = orders[self._what]
        every = first, second, result
        return every[x], every[w], every[y]


def _convolution(
    what: str,
    x: np.ndarray,
    w: np.ndarray,
    y: np.ndarray,
    stride: tuple,
    pad: tuple,
    dilation: tuple,
) -> np.ndarray:
    """Return y, or the gradient that belongs in place of x or w: a sum over the kernel's taps."""
    n, groups, spatial = len(x), x.shape[1] // w.shape[1], y.shape[2:]
    margins = [(0, 0), (0, 0), *((size, size) for size in pad)]
    x = np.pad(x.astype(np.float64), margins)
    inside = tuple(slice(before, -before or None) for before, _ in margins)
    w, y = w.astype(np.float64), y.astype(np.float64)
    {"forward": y, "data": x, "weights": w}[what][...] = 0
    images = x.reshape(n, groups, -1, *x.shape[2:])
    weights = w.reshape(groups, -1, *w.shape[1:])
    outputs = y.reshape(n, groups, weights.shape[1], -1)
    for tap in np.ndindex(w.shape[2:]):
        begins = [place * step for place, step in zip(tap, dilation)]
        ends = [begin + step * (size - 1) + 1 for begin, step, size in zip(begins, stride, spatial)]
        part = images[(..., *map(slice, begins, ends, stride))]
        columns, factors = part.reshape(*part.shape[:3], -1), weights[(..., *tap)]
        if what == "forward":
            outputs += np.einsum("ngcs,goc->ngos", columns, factors)
        elif what == "data":
            part += np.einsum("ngos,goc->ngcs", outputs, factors).reshape(part.shape)
        else:
            factors += np.einsum("ngos,ngcs->goc", outputs, columns)
    return {"forward": y, "data": x[inside], "weights": w}[what]
