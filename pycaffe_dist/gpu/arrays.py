"""Arrays of the emulated GPU: NumPy inside, but as separate from host arrays as CuPy's.

They refuse what CuPy refuses: host arrays as operands, implicit conversion to NumPy, functions and
options that CuPy lacks. As in CuPy, reductions and single elements are arrays without axes. Values
may be used only while the GPU is the current device: elsewhere CuPy would use a stream that does
not wait for the streams that compute them.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from pycaffe_dist.device import current_gpu
from pycaffe_dist.gpu.emulated_graph import change, compute, new_array, refuse

# Functions of NumPy that take arrays and that CuPy 14 does not have.
_LACKING = frozenset(
    [
        "block",
        "busday_count",
        "busday_offset",
        "datetime_as_string",
        "einsum_path",
        "geomspace",
        "histogram_bin_edges",
        "insert",
        "is_busday",
        "isnat",
        "matvec",
        "nanpercentile",
        "nanquantile",
        "polyder",
        "polydiv",
        "polyint",
        "spacing",
        "unstack",
        "vecdot",
        "vecmat",
    ]
)
# Options of NumPy's functions and methods that CuPy does not have.
_LACKING_OPTIONS = {
    **dict.fromkeys(("max", "min", "amax", "amin", "sum", "prod"), ("initial", "where")),
    **dict.fromkeys(("all", "any", "mean", "std", "var"), ("where", "correction")),
    **dict.fromkeys(("sort", "argsort", "partition", "argpartition"), ("order", "stable")),
    "take": ("mode",),
    "count_nonzero": ("keepdims",),
}
_METHODS = [
    "all",
    "any",
    "argmax",
    "argmin",
    "argsort",
    "astype",
    "clip",
    "copy",
    "cumsum",
    "diagonal",
    "dot",
    "flatten",
    "max",
    "mean",
    "min",
    "nonzero",
    "prod",
    "ravel",
    "repeat",
    "reshape",
    "round",
    "sort",
    "squeeze",
    "std",
    "sum",
    "swapaxes",
    "take",
    "transpose",
    "var",
    "view",
]
# Functions that change their first argument.
_CHANGING = "copyto", "fill_diagonal", "place", "put", "put_along_axis", "putmask"
# Functions and methods whose result's size depends on values: the host waits for these.
_WAITING = "argwhere", "bincount", "flatnonzero", "nonzero", "unique"
# Functions that CuPy leaves to cuBLAS, which it does not let be captured.
_BLAS = "dot", "einsum", "inner", "matmul", "tensordot", "vdot"
# Functions that CuPy leaves to Thrust, which waits.
_SORTS = "argpartition", "argsort", "lexsort", "partition", "sort"
# Attributes and methods that read no values.
_VIEWS = "reshape", "squeeze", "swapaxes", "transpose", "view", "ravel", "diagonal"


class Pointer(NamedTuple):
    """The beginning of an array, like ``data`` of CuPy's arrays."""

    ptr: int


def _refuse_host(value: Any) -> None:
    if isinstance(value, np.ndarray) and value.ndim:
        raise TypeError(f"a device array cannot be mixed with a host array of shape {value.shape}")


def to_inner(value: Any) -> Any:
    """Return an argument as NumPy needs it; raises TypeError for a host array."""
    if isinstance(value, DeviceArray):
        return value.inner
    if isinstance(value, list | tuple):
        return type(value)(map(to_inner, value))
    if isinstance(value, slice):
        return slice(to_inner(value.start), to_inner(value.stop), to_inner(value.step))
    _refuse_host(value)
    return value


def to_device(result: Any) -> Any:
    """Return NumPy's result as arrays of the device."""
    if isinstance(result, np.ndarray | np.generic):
        return DeviceArray(np.asarray(result))
    if isinstance(result, list | tuple):
        return type(result)(map(to_device, result))
    return result


def check_call(name: str, options: dict[str, Any]) -> None:
    """Raise TypeError for a function or an option that CuPy does not have."""
    if name in _LACKING:
        raise TypeError(f"CuPy has no function '{name}'")
    for option in _LACKING_OPTIONS.get(name, ()):
        if option in options:
            raise TypeError(f"CuPy's '{name}' has no option '{option}'")


class DeviceArray(NDArrayOperatorsMixin):
    """An array of the emulated GPU; ``inner`` is the NumPy array that kernels work on."""

    __slots__ = ("inner",)

    # NumPy's attributes and methods are added below the class.
    shape: tuple[int, ...]
    dtype: np.dtype
    nbytes: int
    flags: Any
    astype: Callable[..., DeviceArray]

    def __init__(self, inner: np.ndarray):
        self.inner = inner

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.inner.shape,
            "typestr": self.inner.dtype.str,
            "data": (self.inner.ctypes.data, False),
            "version": 3,
        }

    @property
    def data(self) -> Pointer:
        """The array's beginning."""
        return Pointer(self.inner.ctypes.data)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise TypeError(
            "Implicit conversion of a device array to a NumPy array is not allowed; use "
            "gpu.to_host(array)"
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        _note(ufunc.__name__, *inputs, *options.get("out", ()))
        out = options.get("out")
        if method == "reduce":
            names = {"add": "sum", "maximum": "max", "minimum": "min", "multiply": "prod"}
            check_call(names.get(ufunc.__name__, ""), options)
        elif method != "__call__" and method != "at":
            raise TypeError(f"CuPy's ufuncs have no '{method}'")
        if out is not None:
            for target in out:
                if target is not None and not isinstance(target, DeviceArray):
                    raise TypeError("the output of an operation on device arrays must be one, too")
        run = change if out is not None or method == "at" else compute
        inner = {key: to_inner(value) for key, value in options.items()}
        result = run(getattr(ufunc, method), *map(to_inner, inputs), **inner)
        return out[0] if out is not None and len(out) == 1 else to_device(result)

    def __array_function__(self, function: Any, types: Any, args: tuple, options: dict) -> Any:
        _note(function.__name__, *args, *options.values())
        given = options
        if function.__name__ in _LACKING_OPTIONS:
            given = inspect.signature(function).bind(*args, **options).arguments
        check_call(function.__name__, given)
        return _called(function, args, options)

    def __getitem__(self, key: Any) -> DeviceArray:
        if not _picks(key):
            return self._view(key)
        _note("getitem", self)
        if any(str(getattr(each, "dtype", "")) == "bool" for each in _keys(key)):
            refuse("the host waits for a value")
        return to_device(compute(operator.getitem, self.inner, to_inner(key)))

    def _view(self, key: Any) -> DeviceArray:
        # With an ellipsis even a single element is a view.
        keys = _keys(key)
        return DeviceArray(self.inner[keys if Ellipsis in map(_plain, keys) else (*keys, ...)])

    def __setitem__(self, key: Any, value: Any) -> None:
        _note("setitem", self._view(key) if not _picks(key) else self, value)
        change(operator.setitem, self.inner, to_inner(key), to_inner(value))

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Any:
        return (self[index] for index in range(len(self.inner)))

    def __bool__(self) -> bool:
        return bool(self._read())

    def __float__(self) -> float:
        return float(self._read())

    def __int__(self) -> int:
        return int(self._read())

    def _read(self) -> np.ndarray:
        """Return the values for the host, which waits for them."""
        current_gpu()
        refuse("the host waits for a value")
        return self.inner

    def __repr__(self) -> str:
        return f"DeviceArray({self.inner!r})"

    @property
    def T(self) -> DeviceArray:
        """The transpose."""
        return DeviceArray(self.inner.T)

    def fill(self, value: Any) -> None:
        """Set all elements."""
        _note("fill", self)
        change(np.ndarray.fill, self.inner, to_inner(value))

    def item(self, *args: Any) -> Any:
        """Return an element as a Python number."""
        return self._read().item(*args)

    def tolist(self) -> Any:
        """Return the elements as Python numbers."""
        return self._read().tolist()

    def get(self, out: np.ndarray | None = None) -> np.ndarray:
        """Return a copy on the host, like CuPy's method."""
        values = self._read()
        if out is None:
            return values.copy()
        np.copyto(out, values)
        return out

    def set(self, array: np.ndarray) -> None:
        """Copy a host array here, like CuPy's method."""
        current_gpu()
        refuse("a host array is copied")
        self.inner[...] = array


def _note(name: str, *values: Any) -> None:
    """Note a launch that reads or writes the arrays among ``values``."""
    moved = sum(value.nbytes for value in values if isinstance(value, DeviceArray))
    current_gpu().note_work("array", name, moved)


def _plain(key: Any) -> Any:
    return key if key is Ellipsis else None


def _picks(key: Any) -> bool:
    """Tell whether an index contains arrays or lists: then the result is a copy."""
    return any(isinstance(each, DeviceArray | list | np.ndarray) for each in _keys(key))


def _keys(key: Any) -> tuple:
    return key if isinstance(key, tuple) else (key,)


def _called(function: Callable[..., Any], args: tuple, options: dict[str, Any]) -> Any:
    """Call a function of NumPy with the inner arrays; return arrays of the device."""
    out, name = options.get("out"), function.__name__
    many = isinstance(function, np.ufunc) and len(args) > function.nin
    if name in _BLAS:
        refuse(f"CuPy's '{name}' calls cuBLAS")
    if name in _SORTS:
        refuse(f"CuPy's '{name}' waits")
    if name in _WAITING:
        refuse("the host waits for a value")
    changes = out is not None or many or name in _CHANGING or function is np.ndarray.sort
    inner = {key: to_inner(value) for key, value in options.items()}
    result = (change if changes else compute)(function, *to_inner(args), **inner)
    return out if isinstance(out, DeviceArray) else to_device(result)


def _attribute(name: str) -> property:
    return property(lambda self: getattr(self.inner, name), doc=f"As NumPy's ``{name}``.")


def _method(name: str) -> Callable[..., Any]:
    def call(self: DeviceArray, *args: Any, **options: Any) -> Any:
        if name not in _VIEWS:
            _note(name, self, *args, *options.values())
        check_call(name, options)
        return _called(getattr(np.ndarray, name), (self, *args), options)

    call.__name__ = name
    call.__doc__ = f"As NumPy's ``{name}``."
    return call


for _name in ("shape", "dtype", "ndim", "size", "nbytes", "itemsize", "strides", "flags"):
    setattr(DeviceArray, _name, _attribute(_name))
for _name in _METHODS:
    setattr(DeviceArray, _name, _method(_name))


class ArrayModule:
    """The emulated GPU's array module, in place of CuPy."""

    ndarray = DeviceArray

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        if name in _LACKING:
            raise AttributeError(f"CuPy has no '{name}'")
        if isinstance(found, type) or not callable(found):
            return found  # dtypes and constants

        def call(*args: Any, **options: Any) -> Any:
            check_call(name, options)
            return _called(found, args, options)

        return call

    @staticmethod
    def empty(shape: Any, dtype: Any = float) -> DeviceArray:
        """Return an array full of NaN."""
        return DeviceArray(new_array(shape, dtype))

    @staticmethod
    def zeros(shape: Any, dtype: Any = float) -> DeviceArray:
        """Return an array of zeros."""
        return DeviceArray(new_array(shape, dtype, fill=0))

    @staticmethod
    def asarray(array: Any, dtype: Any = None) -> DeviceArray:
        """Return an array of the device, which may be ``values``, or a copy of a host array."""
        if isinstance(array, DeviceArray):
            return array if dtype in (None, array.dtype) else array.astype(dtype)
        return ArrayModule.array(array, dtype)

    @staticmethod
    def array(array: Any, dtype: Any = None) -> DeviceArray:
        """Return a copy of numbers, a host array or an array of the device."""
        if isinstance(array, DeviceArray):
            inner = array.inner
        else:
            refuse("a host array is copied")
            inner = np.asarray(array)
        target = new_array(inner.shape, dtype or inner.dtype)
        change(np.copyto, target, inner, casting="unsafe")
        return DeviceArray(target)
