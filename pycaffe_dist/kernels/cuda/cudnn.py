"""Convolutions through cuDNN's Python front end, if it is installed.

This is all that pcaffe uses of cuDNN: graphs of one convolution each, on plain NCHW arrays. Our own
kernels do what a graph cannot do, or is slower at, and run on every GPU without cuDNN.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from pycaffe_dist.kernels.cuda.bias_add import finish
from pycaffe_dist.kernels.cuda.casting import add_to, cast
from pycaffe_dist.kernels.cuda.inner_product import like
from pycaffe_dist.kernels.cuda.plans import choose
from pycaffe_dist.kernels.im2col import ConvolutionGeometry
from pycaffe_dist.log import logger

Shape = tuple[int, ...]


class Library:
    """cuDNN on one GPU: the front end's module and a handle."""

    def __init__(self, module: Any, gpu: Any):
        self.module, self.gpu = module, gpu
        self.handle = module.create_handle()
        # What the front end raises for a graph that no plan can run, or that it does not accept.
        self.refusals = module.cudnnGraphNotSupportedError, RuntimeError, ValueError

    def data_type(self, dtype: np.dtype) -> Any:
        """Return cuDNN's name of float16, bfloat16 or float32."""
        types = self.module.data_type
        return {"float16": types.HALF, "bfloat16": types.BFLOAT16}.get(dtype.name, types.FLOAT)


@functools.cache
def library(gpu: Any) -> Library | None:
    """Return cuDNN for a GPU, or None if there is none; log which, once for a GPU."""
    if gpu.cuda_stream() is None:
        return None
    try:
        _load_runtime()
        import cudnn

        found = Library(cudnn, gpu)
    except (ImportError, OSError, RuntimeError) as error:
        logger.info("Convolutions run on our own kernels: no cuDNN (%s)", error)
        return None
    logger.info("Convolutions run on cuDNN %s, unless their engine is CAFFE", version(cudnn))
    return found


def _load_runtime() -> None:
    """Load CUDA's runtime library: CuPy has its own inside, and the front end seeks it by name.

    It may lie in a package that the system's loader does not know. Without it, the front end
    refuses every graph.
    """
    with contextlib.suppress(ImportError, RuntimeError):
        from cuda import pathfinder  # CuPy requires it

        pathfinder.load_nvidia_dynamic_lib("cudart")


def version(module: Any) -> str:
    """Return the version of the library behind the front end, as ``9.1.0``."""
    number = module.backend_version()
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


class Operation:
    """A graph of one operation, built for some shapes.

    ``make`` is the name of the front end's function; ``inputs`` are its arguments' names with the
    shapes, ``output`` is the shape of the result; all arrays are contiguous.  Raises one of
    ``refusals`` when cuDNN cannot do it.  ``key`` names everything that a choice of a plan depends
    on.
    """

    def __init__(
        self,
        library: Library,
        make: str,
        inputs: dict[str, Shape],
        output: Shape,
        dtype: np.dtype,
        **options: Any,
    ):
        self._library, self._make, module = library, make, library.module
        self.gpu, self.refusals = library.gpu, library.refusals
        precision = "TF32" if self.gpu.tf32_convolutions and dtype == np.float32 else dtype.name
        what = f"{make} {inputs} {output} {options} {precision}"
        self.key = f"{self.gpu.name}, cuDNN {version(module)}: {what}"
        self._plan: int | None = None  # cuDNN's choice
        kind, float32 = library.data_type(dtype), module.data_type.FLOAT
        graph = module.pygraph(
            io_data_type=kind,
            intermediate_data_type=float32,
            compute_data_type=float32,
            handle=library.handle,
        )
        self._inputs = {
            name: graph.tensor(name=name, dim=list(shape), stride=_strides(shape), data_type=kind)
            for name, shape in inputs.items()
        }
        self._output = getattr(graph, make)(**self._inputs, **options)
        self._output.set_output(True)
        self._output.set_data_type(kind)
        self._output.set_dim(list(output))
        self._output.set_stride(_strides(output))
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([module.heur_mode.A, module.heur_mode.FALLBACK])
        graph.deselect_numeric_notes(self._unwanted(dtype))
        graph.check_support()
        graph.build_plans()
        self._graph = graph

    def _unwanted(self, dtype: np.dtype) -> list[Any]:
        """Return the properties that no plan may have: varying results, unwanted rounding."""
        notes = self._library.module.numerical_note
        unwanted = [notes.NONDETERMINISTIC]
        if dtype == np.float32 and not self._library.gpu.tf32_convolutions:
            unwanted += [notes.TENSOR_CORE, notes.DOWN_CONVERT_INPUTS]
        return unwanted

    def plans(self) -> list[str]:
        """Return the names of cuDNN's plans in its ranking; it may refuse some."""
        count = self._graph.get_execution_plan_count()
        return [self._graph.get_plan_name_at_index(index) for index in range(count)]

    def select(self, plan: str) -> None:
        """Use a plan from now on; raises one of ``refusals`` if that is impossible."""
        index = self.plans().index(plan)
        self._graph.build_plan_at_index(index)
        self._plan = index

    def run(self, output: Any, **inputs: Any) -> None:
        """Enqueue the operation on the current stream."""
        module, handle = self._library.module, self._library.handle
        module.set_stream(handle=handle, stream=self.gpu.cuda_stream())
        moved = output.nbytes + sum(array.nbytes for array in inputs.values())
        self.gpu.note_work("library", self._make, moved)
        pointers = {self._inputs[name]: array.data.ptr for name, array in inputs.items()}
        pointers[self._output] = output.data.ptr
        graph, plan = self._graph, self._plan
        if plan is None:
            workspace = self._workspace(graph.get_workspace_size())
            graph.execute(pointers, workspace.data.ptr, handle=handle)
        else:
            workspace = self._workspace(graph.get_workspace_size_plan_at_index(plan))
            graph.execute_plan_at_index(pointers, workspace.data.ptr, plan, handle=handle)

    def _workspace(self, size: int) -> Any:
        return self.gpu.empty(max(1, size), np.uint8)


class LibraryWays:
    """A convolution by cuDNN, or by ``ours``; each direction is built at its first use.

    ``ours`` has the same methods.
    """

    def __init__(
        self,
        library: Library,
        ours: Any,
        x_shape: Shape,
        w_shape: Shape,
        geometry: ConvolutionGeometry,
    ):
        y_shape = (x_shape[0], w_shape[0], *geometry.output_shape(x_shape[2:]))
        self._library, self._ours = library, ours
        self._x, self._w, self._y = map(_with_two_axes, (x_shape, w_shape, y_shape))
        # An inserted axis has a kernel of 1.
        one = (1,) * (len(self._x) - len(x_shape))
        zero = (0,) * len(one)
        self._options = {
            "padding": [*zero, *geometry.pad],
            "stride": [*one, *geometry.stride],
            "dilation": [*one, *geometry.dilation],
        }
        self._operations: dict[tuple[str, np.dtype], Operation | None] = {}
        self._refused: dict[tuple[str, np.dtype], str] = {}

    @property
    def scratch_bytes(self) -> int:
        return self._ours.scratch_bytes

    def _operation(
        self,
        make: str,
        inputs: dict[str, tuple[Shape, Any]],
        output: tuple[Shape, Any],
        ours: Callable[[], None],
    ) -> Operation | None:
        """Return an operation, or None if cuDNN cannot do it, or our own kernels are faster.

        ``inputs`` and ``output`` are shapes with arrays; ``ours`` runs our own kernels on them.
        """
        gpu, dtype = self._library.gpu, output[1].dtype
        key = make, dtype
        if key not in self._operations:
            shapes = {name: shape for name, (shape, _) in inputs.items()}
            try:
                found = Operation(self._library, make, shapes, output[0], dtype, **self._options)
            except self._library.refusals as error:
                self._operations[key] = None
                reason = str(error).strip().partition("\n")[0]
                self._refused[key] = f"{make} of {self._x} by {self._w} in {dtype}: {reason}"
                logger.info("Our own kernels run %s", self._refused[key])
            else:
                arrays = {name: array for name, (_, array) in inputs.items()}

                def run() -> None:
                    found.run(output[1], **arrays)

                is_best = not gpu.times_plans or choose(found, run, ours)
                self._operations[key] = found if is_best else None
        if key in self._refused:
            gpu.fallbacks[self._refused[key]] += 1
        return self._operations[key]

    def forward(self, x: Any, w: Any, b: Any, y: Any, slope: float) -> None:
        factor = like(w, x)
        operation = self._operation(
            "conv_fprop",
            {"image": (self._x, x), "weight": (self._w, factor)},
            (self._y, y),
            lambda: self._ours.forward(x, w, None, y, 1.0),
        )
        if operation is None:
            self._ours.forward(x, w, b, y, slope)
            return
        operation.run(y, image=x, weight=factor)
        if b is not None or slope != 1:
            finish(y, b, slope)

    def backward_data(self, dy: Any, w: Any, dx: Any) -> None:
        factor = like(w, dy)
        operation = self._operation(
            "conv_dgrad",
            {"loss": (self._y, dy), "filter": (self._w, factor)},
            (self._x, dx),
            lambda: self._ours.backward_data(dy, w, dx),
        )
        if operation is None:
            self._ours.backward_data(dy, w, dx)
            return
        operation.run(dx, loss=dy, filter=factor)

    def backward_weights(self, x: Any, dy: Any, dw: Any, add: bool) -> None:
        gpu, direct = self._library.gpu, not add and dw.dtype == x.dtype
        gradient = dw if direct else gpu.empty(dw.shape, x.dtype)
        operation = self._operation(
            "conv_wgrad",
            {"image": (self._x, x), "loss": (self._y, dy)},
            (self._w, gradient),
            lambda: self._ours.backward_weights(x, dy, gpu.empty(dw.shape, dw.dtype), False),
        )
        if operation is None:
            self._ours.backward_weights(x, dy, dw, add)
            return
        operation.run(gradient, image=x, loss=dy)
        if add:
            add_to(gradient, dw)
        elif not direct:
            cast(gradient, dw)


def can_do(x_shape: Shape, dtype: Any) -> bool:
    """Tell whether cuDNN may do it: one to three spatial axes, but not float64."""
    return len(x_shape) <= 5 and np.dtype(dtype) != np.float64


def _with_two_axes(shape: Shape) -> Shape:
    """Return the shape; insert an axis of 1 if it has a single spatial axis."""
    return shape if len(shape) > 3 else (*shape[:2], 1, *shape[2:])


def _strides(shape: Shape) -> list[int]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * size)
    return strides[::-1]
