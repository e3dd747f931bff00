"""The Python API, shaped like pycaffe's: Net, solvers and mode functions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pycaffe_dist import net as core
from pycaffe_dist.blob import Blob
from pycaffe_dist.errors import DeviceError, UsageError
from pycaffe_dist.layers import Layer, layer_types
from pycaffe_dist.net.rules import with_state
from pycaffe_dist.schema import caffe_pb2, text
from pycaffe_dist.solvers import Solver, method_types

TRAIN: int = caffe_pb2.TRAIN
TEST: int = caffe_pb2.TEST

# As in Caffe, the seed that set_random_seed leaves behind counts for nets built afterwards.
_seed: int | None = None


class Net:
    """A net as Python programs see it; arrays are writable NumPy views into the net.

    ``Net(path, phase, level=0, stages=None, weights=None)`` or, as older programs write it,
    ``Net(path, weights, phase)``.  Raises PrototxtError, NetError or WeightsError.
    """

    def __init__(
        self,
        network_file: str,
        phase: int | str | None = None,
        *args: Any,
        level: int = 0,
        stages: Sequence[str] | None = None,
        weights: str | None = None,
    ):
        if isinstance(phase, str):
            weights, phase, args = phase, (args[0] if args else None), args[1:]
        if phase not in (TRAIN, TEST):
            raise UsageError(f"Net needs a phase, TRAIN or TEST; found {phase!r}")
        for name, value in zip(("level", "stages", "weights"), args):
            if name == "level":
                level = value
            elif name == "stages":
                stages = value
            else:
                weights = value
        param, places = text.read_net_with_places(str(network_file))
        param = with_state(param, phase, level, tuple(stages or ()))
        self._adopt(core.Net(param, seed=_seed, places=places))
        if weights:
            self.copy_from(weights)

    @classmethod
    def _of(cls, net: core.Net) -> Net:
        """Return the API's view of a net that a solver owns."""
        view = cls.__new__(cls)
        view._adopt(net)
        return view

    def _adopt(self, net: core.Net) -> None:
        self._net = net
        self.blobs: OrderedDict[str, Blob] = OrderedDict(net.blobs)
        self.params: OrderedDict[str, list[Blob]] = OrderedDict(
            (node.name, node.layer.blobs) for node in net.nodes if node.layer.blobs
        )

    @property
    def name(self) -> str:
        """The net's name."""
        return self._net.name

    @property
    def layers(self) -> list[Layer]:
        """The layers in forward order, each with ``type`` and ``blobs``."""
        return self._net.layers

    @property
    def layer_dict(self) -> OrderedDict[str, Layer]:
        """The layers by name."""
        return OrderedDict((node.name, node.layer) for node in self._net.nodes)

    @property
    def _layer_names(self) -> list[str]:
        return self._net.layer_names

    @property
    def inputs(self) -> list[str]:
        """The names of the net's input blobs."""
        return list(self._net.inputs)

    @property
    def outputs(self) -> list[str]:
        """The names of the blobs that no layer reads."""
        return list(self._net.outputs)

    @property
    def bottom_names(self) -> OrderedDict[str, list[str]]:
        """Every layer's bottom names."""
        return OrderedDict((node.name, node.bottom_names) for node in self._net.nodes)

    @property
    def top_names(self) -> OrderedDict[str, list[str]]:
        """Every layer's top names."""
        return OrderedDict((node.name, node.top_names) for node in self._net.nodes)

    @property
    def blob_loss_weights(self) -> OrderedDict[str, float]:
        """The loss weight of every blob."""
        return OrderedDict((name, self._net.blob_losses.get(name, 0.0)) for name in self.blobs)

    def forward(
        self,
        blobs: Iterable[str] | None = None,
        start: str | None = None,
        end: str | None = None,
        **inputs: np.ndarray,
    ) -> dict[str, np.ndarray]:
        """Run forward from layer ``start`` to layer ``end`` (both included, by name).

        ``inputs`` gives an array for every input blob.  Returns the data of the net's outputs (of
        ``end``'s tops when it is given) and of the extra ``blobs``.
        """
        first = self._net.layer_index(start) if start else 0
        last = self._net.layer_index(end) if end else len(self._net.nodes) - 1
        wanted = list(self._net.nodes[last].top_names if end else self._net.outputs)
        if inputs:
            self._fill(inputs, self._net.inputs, "data", "inputs")
        self._net.forward(first, last)
        return {name: self.blobs[name].data for name in [*wanted, *(blobs or ())]}

    def backward(
        self,
        diffs: Iterable[str] | None = None,
        start: str | None = None,
        end: str | None = None,
        **output_diffs: np.ndarray,
    ) -> dict[str, np.ndarray]:
        """Run backward from layer ``start`` down to layer ``end`` (both included, by name).

        ``output_diffs`` gives a diff for output blobs.  Returns the diffs of the net's inputs (of
        ``end``'s bottoms when it is given) and of the extra ``diffs``.
        """
        first = self._net.layer_index(start) if start else len(self._net.nodes) - 1
        last = self._net.layer_index(end) if end else 0
        wanted = list(self._net.nodes[last].bottom_names if end else self._net.inputs)
        if output_diffs:
            heads = self._net.nodes[first].top_names if start else self._net.outputs
            self._fill(output_diffs, heads, "diff", "outputs")
        self._net.backward(first, last)
        return {name: self.blobs[name].diff for name in [*wanted, *(diffs or ())]}

    def _fill(self, arrays: dict[str, np.ndarray], names: list[str], part: str, what: str) -> None:
        if set(arrays) != set(names):
            raise UsageError(
                f"arrays are given for {sorted(arrays)}, the net's {what} are {sorted(names)}"
            )
        for name, array in arrays.items():
            blob = self.blobs[name]
            if np.ndim(array) == 0 or np.shape(array)[0] != (blob.shape or (1,))[0]:
                raise UsageError(
                    f"'{name}' is not batch sized: it has shape {np.shape(array)}, "
                    f"the blob has {blob.shape}"
                )
            getattr(blob, part)[...] = array

    def reshape(self) -> None:
        """Propagate the input blobs' shapes through the net."""
        self._net.reshape()

    def save(self, path: str) -> None:
        """Write the weights to a ``.caffemodel``."""
        self._net.save_weights(str(path))

    def copy_from(self, path: str) -> None:
        """Copy the weights of same-named layers from a file."""
        self._net.load_weights(str(path))

    def share_with(self, other: Net) -> None:
        """Use the weights of the same-named layers of another net."""
        self._net.share_weights_with(other._net)

    def clear_param_diffs(self) -> None:
        """Set the diffs of all parameters to zero."""
        self._net.clear_parameter_diffs()


class SolverView:
    """A solver as Python programs see it: the net, the test nets, and step by step training."""

    method: str | None = None

    def __init__(self, solver_file: str):
        from pycaffe_dist.runtime.trainer import make_solver

        param = text.read_solver(str(solver_file))
        if self.method is not None:
            param.type = self.method
        if param.random_seed < 0 and _seed is not None:
            param.random_seed = _seed
        self._solver: Solver = make_solver(param)
        self.net = Net._of(self._solver.net)
        self.test_nets = [Net._of(net) for net in self._solver.test_nets]

    @property
    def iter(self) -> int:
        """The number of iterations done."""
        return self._solver.iteration

    @property
    def param(self) -> Any:
        """The SolverParameter."""
        return self._solver.param

    def step(self, iterations: int) -> None:
        """Run ``iterations`` iterations."""
        self._solver.step(iterations)

    def solve(self, resume_file: str = "") -> None:
        """Train up to ``max_iter`` iterations, from a solver state if one is given."""
        self._solver.solve(str(resume_file))

    def snapshot(self) -> None:
        """Write weights and solver state now."""
        self._solver.snapshot()

    def restore(self, path: str) -> None:
        """Continue from a solver state."""
        self._solver.restore(str(path))


def get_solver(solver_file: str) -> SolverView:
    """Return a solver of the type that the file names."""
    return SolverView(solver_file)


def _solver_class(method: str) -> type[SolverView]:
    doc = f"A solver that uses {method}, whatever type its file names."
    return type(f"{method}Solver", (SolverView,), {"method": method, "__doc__": doc})


SGDSolver = _solver_class("SGD")
NesterovSolver = _solver_class("Nesterov")
AdaGradSolver = _solver_class("AdaGrad")
RMSPropSolver = _solver_class("RMSProp")
AdaDeltaSolver = _solver_class("AdaDelta")
AdamSolver = _solver_class("Adam")


def set_mode_cpu() -> None:
    """Compute on the CPU, as pcaffe does anyway."""


def set_mode_gpu() -> None:
    """Refuse: raises DeviceError, since there are no GPU kernels in this version."""
    raise DeviceError("this version of pcaffe computes on CPUs only; call set_mode_cpu()")


def set_random_seed(seed: int) -> None:
    """Make the fillers, dropout and crops of nets built from now on repeatable."""
    global _seed
    _seed = seed


def layer_type_list() -> list[str]:
    """Return the names of all layer types."""
    return layer_types()


def solver_type_list() -> list[str]:
    """Return the names of all solver types."""
    return method_types()
