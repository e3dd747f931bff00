"""The net as Python programs see it, shaped like pycaffe's."""

from __future__ import annotations

import html
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from pycaffe_dist import net as core
from pycaffe_dist import net_graph
from pycaffe_dist.api import batching
from pycaffe_dist.api.on_demand import OnDemand
from pycaffe_dist.api.process import chosen_device, process
from pycaffe_dist.blob import Blob
from pycaffe_dist.errors import ArgumentError, UsageError, did_you_mean
from pycaffe_dist.layers import Layer
from pycaffe_dist.log import logger
from pycaffe_dist.net.precompile import compile_kernels
from pycaffe_dist.net.rules import with_state
from pycaffe_dist.net.summary import Summary, log_layers, summarize
from pycaffe_dist.schema import caffe_pb2, text

_Path = str | os.PathLike[str]


class Net:
    """A net as Python programs see it; arrays are writable NumPy views into the net.

    ``Net(network_file, phase, level=0, stages=None, weights=None)`` or, in older programs,
    ``Net(network_file, weights, phase)``.  ``keep_blobs=False``, for the TEST phase, makes
    forward faster and smaller, until a program asks for another blob than inputs and outputs, a
    part of forward, backward or a callback: then the net runs once more, and keeps its blobs from
    then on.  ``precision="bfloat16"``, with ``keep_blobs=False`` on a CPU, rounds the factors of
    products where that is faster.  Raises PrototxtError, NetError or WeightsError.
    """

    def __init__(
        self,
        network_file: _Path,
        phase: int | _Path | None = None,
        *args: Any,
        level: int = 0,
        stages: Sequence[str] | None = None,
        weights: _Path | None = None,
        keep_blobs: bool = True,
        precision: str = "float32",
    ):
        if isinstance(phase, str | os.PathLike):
            logger.warning(
                "Net(%r, %r, phase) is deprecated; use Net(%r, phase, weights=%r)",
                *(str(network_file), str(phase)) * 2,
            )
            weights, phase, args = phase, (args[0] if args else None), args[1:]
        if phase not in (caffe_pb2.TRAIN, caffe_pb2.TEST):
            raise UsageError(f"Net needs a phase, TRAIN or TEST; found {phase!r}")
        if len(args) > 3:
            raise UsageError(f"Net takes up to 5 arguments, found {2 + len(args)}")
        given = dict(zip(("level", "stages", "weights"), args))
        level, stages = given.get("level", level), given.get("stages", stages)
        weights = given.get("weights", weights)
        param, places = text.read_net_with_places(os.fspath(network_file))
        param = with_state(param, phase, level, tuple(stages or ()))
        device = chosen_device()
        net = core.Net(
            param,
            seed=process.seed,
            places=places,
            device=device,
            keep_blobs=keep_blobs,
            precision=precision,
        )
        self._adopt(net)
        log_layers(self._net)
        if weights:
            self.copy_from(weights)

    @classmethod
    def of(cls, net: core.Net) -> Net:
        """Return the API's view of a net that a solver owns."""
        view = cls.__new__(cls)
        view._adopt(net)
        view._is_compiled = True
        return view

    def _adopt(self, net: core.Net) -> None:
        self._net = net
        self._last = len(net.nodes) - 1
        self._is_compiled = False
        #: The blobs by name, from input to output.
        self.blobs: OrderedDict[str, Blob] = OrderedDict()
        for node in net.nodes:
            for name, blob in zip(node.top_names, node.top):
                self.blobs.setdefault(name, blob)
        #: The parameters (weights first, then biases) by layer name, for layers with parameters.
        self.params: OrderedDict[str, list[Blob]] = OrderedDict(
            (node.name, node.layer.blobs) for node in net.nodes if node.layer.blobs
        )
        if not net.keeps_blobs:
            sources = [name for node in net.nodes if not node.bottom for name in node.top_names]
            self.blobs = OnDemand(self.blobs, self._keep_blobs, [*sources, *net.outputs])
            self.params = OnDemand(self.params, net.weights_changed)

    @property
    def name(self) -> str:
        """The net's name."""
        return self._net.name

    def summary(self) -> Summary:
        """Return the table of layers, as `pcaffe summarize` prints it; ``layers`` has its rows."""
        return summarize(self._net)

    def __repr__(self) -> str:
        found = self.summary()
        ends = (
            ", ".join(f"{name} {self.blobs[name].shape}" for name in names)
            for names in (self.inputs, self.outputs)
        )
        parameters = sum(row.parameters for row in found.layers)
        return (
            f"<Net '{self.name}' ({found.phase}): {len(found.layers)} layers, "
            f"{parameters:,} parameters, {' → '.join(filter(None, ends))}>"
        )

    def _repr_html_(self) -> str:
        found = self.summary()
        drawing = net_graph.to_html(self._net.definition.layer, found.layers)
        return f"<p>{html.escape(repr(self))}</p>\n{found._repr_html_()}\n{drawing}"

    @property
    def layers(self) -> list[Layer]:
        """The layers in forward order, each with ``type`` and ``blobs``.

        A Python layer is the instance of the user's class.
        """
        return [getattr(layer, "user_layer", layer) for layer in self._net.layers]

    @property
    def layer_dict(self) -> OrderedDict[str, Layer]:
        """The layers by name."""
        return OrderedDict(zip(self._net.layer_names, self.layers))

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
        return OrderedDict((node.name, list(node.bottom_names)) for node in self._net.nodes)

    @property
    def top_names(self) -> OrderedDict[str, list[str]]:
        """Every layer's top names."""
        return OrderedDict((node.name, list(node.top_names)) for node in self._net.nodes)

    @property
    def blob_loss_weights(self) -> OrderedDict[str, float]:
        """The loss weight of every blob."""
        return OrderedDict((name, self._net.blob_losses.get(name, 0.0)) for name in self.blobs)

    # Private names of pycaffe that programs use.

    @property
    def _layer_names(self) -> list[str]:
        return self._net.layer_names

    @property
    def _blob_names(self) -> list[str]:
        return list(self.blobs)

    @property
    def _blob_loss_weights(self) -> list[float]:
        return list(self.blob_loss_weights.values())

    @property
    def _blobs(self) -> list[Blob]:
        return list(self.blobs.values())

    @property
    def _inputs(self) -> list[int]:
        return [self._blob_names.index(name) for name in self.inputs]

    @property
    def _outputs(self) -> list[int]:
        return [self._blob_names.index(name) for name in self.outputs]

    def _bottom_ids(self, index: int) -> list[int]:
        return [self._blob_names.index(name) for name in self._net.nodes[index].bottom_names]

    def _top_ids(self, index: int) -> list[int]:
        return [self._blob_names.index(name) for name in self._net.nodes[index].top_names]

    def _keep_blobs(self) -> None:
        if not self._net.keeps_blobs:
            self._is_compiled = False
            self._net.keep_all_blobs()

    def _forward(self, start: int, end: int) -> float:
        if (start, end) != (0, self._last):
            self._keep_blobs()
        if not self._is_compiled:
            self._is_compiled = True
            compile_kernels([self._net])
        return self._net.forward(start, end)

    def _backward(self, start: int, end: int) -> None:
        self._keep_blobs()
        self._net.backward(start, end)

    def _batch(self, arrays: dict[str, Any]) -> Iterator[dict[str, Any]]:
        return batching.batches(self, arrays)

    def forward(
        self,
        blobs: Iterable[str] | None = None,
        start: str | None = None,
        end: str | None = None,
        **kwargs: np.ndarray,
    ) -> dict[str, np.ndarray]:
        """Run forward from layer ``start`` to layer ``end`` (both included, by name).

        ``kwargs`` gives an array for every input blob.  Returns the data of the net's outputs (of
        ``end``'s tops when it is given) and of the extra ``blobs``.
        """
        net = self._net
        first = 0 if start is None else net.layer_index(start)
        last = self._last if end is None else net.layer_index(end)
        wanted = net.outputs if end is None else net.nodes[last].top_names
        if kwargs:
            self._fill(kwargs, "data", "inputs", net.inputs)
        self._forward(first, last)
        return {name: self._blob(name).data for name in [*wanted, *(blobs or ())]}

    def backward(
        self,
        diffs: Iterable[str] | None = None,
        start: str | None = None,
        end: str | None = None,
        **kwargs: np.ndarray,
    ) -> dict[str, np.ndarray]:
        """Run backward from layer ``start`` down to layer ``end`` (both included, by name).

        ``kwargs`` gives a diff for every output of the net, or of ``start``.  Returns the diffs of
        the net's inputs (of ``end``'s bottoms when it is given) and of the extra ``diffs``.
        """
        net = self._net
        first = self._last if start is None else net.layer_index(start)
        last = 0 if end is None else net.layer_index(end)
        wanted = net.inputs if end is None else net.nodes[last].bottom_names
        if kwargs:
            self._fill(kwargs, "diff", "outputs", net.outputs, net.nodes[first].top_names)
        self._backward(first, last)
        return {name: self._blob(name).diff for name in [*wanted, *(diffs or ())]}

    def _blob(self, name: str) -> Blob:
        try:
            return self.blobs[name]
        except KeyError:
            hint = did_you_mean(name, self.blobs)
            raise UsageError(f"net '{self.name}' has no blob '{name}'{hint}") from None

    def _fill(self, arrays: dict[str, np.ndarray], part: str, what: str, *choices: list) -> None:
        """Write arrays to the data or diffs of blobs, whose names are one of the ``choices``."""
        if not any(set(arrays) == set(names) for names in choices):
            raise UsageError(
                f"arrays are given for {sorted(arrays)}, the net's {what} are {sorted(choices[0])}"
            )
        for name, array in arrays.items():
            blob = self.blobs[name]
            if np.shape(array)[:1] != blob.shape[:1]:
                raise UsageError(
                    f"'{name}' is not batch sized: it has shape {np.shape(array)}, "
                    f"the blob has {blob.shape}"
                )
            try:
                getattr(blob, part)[...] = array
            except ValueError:
                raise ArgumentError(
                    f"'{name}' has shape {np.shape(array)}, which does not fit the blob's "
                    f"{blob.shape}; reshape the blob first"
                ) from None

    def forward_all(
        self, blobs: Iterable[str] | None = None, **kwargs: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Run forward over inputs of any length, batch by batch; return the joined outputs.

        The last batch is padded with zeros, whose results are dropped.
        """
        return batching.forward_all(self, list(blobs or ()), kwargs)

    def forward_backward_all(
        self,
        blobs: Iterable[str] | None = None,
        diffs: Iterable[str] | None = None,
        **kwargs: np.ndarray,
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Run forward and backward batch by batch; return the joined outputs and input diffs.

        ``kwargs`` names inputs (for forward) and outputs (their diffs, for backward).
        """
        return batching.forward_backward_all(self, list(blobs or ()), list(diffs or ()), kwargs)

    def set_input_arrays(self, data: np.ndarray, labels: np.ndarray) -> None:
        """Let a net whose first layer is MemoryData read from two float32 arrays.

        ``data`` is (n, channels, height, width); ``labels`` is (n,) or (n, 1, 1, 1), and n a
        multiple of the batch size.  Raises UsageError or LayerError when they do not fit.
        """
        layer = self._net.layers[0]
        if layer.type != "MemoryData":
            raise UsageError(
                "set_input_arrays needs a net whose first layer is MemoryData; "
                f"'{layer.name}' is {layer.type}"
            )
        if labels.ndim == 1:
            labels = np.ascontiguousarray(labels[:, np.newaxis, np.newaxis, np.newaxis])
        for what, array in (("data", data), ("labels", labels)):
            if array.dtype != np.float32 or array.ndim != 4 or not array.flags.c_contiguous:
                raise UsageError(
                    f"set_input_arrays needs a C-contiguous float32 array with 4 axes for {what}, "
                    f"found {array.dtype} of shape {array.shape}"
                )
        layer.reset(data, labels)  # type: ignore[attr-defined]

    def reshape(self) -> None:
        """Propagate the input blobs' shapes through the net."""
        self._net.reshape()

    def save(self, path: _Path) -> None:
        """Write the weights to a ``.caffemodel``, or as HDF5 when the name ends in ``.h5``."""
        self._net.save_weights(os.fspath(path))

    def save_hdf5(self, path: _Path) -> None:
        """Write the weights to an HDF5 file of any name."""
        self._net.save_weights(os.fspath(path), as_hdf5=True)

    def copy_from(self, path: _Path) -> None:
        """Copy the weights of same-named layers from a file of either kind."""
        self._net.load_weights(os.fspath(path))

    def load_hdf5(self, path: _Path) -> None:
        """Copy the weights of same-named layers from an HDF5 file."""
        self._net.load_weights(os.fspath(path))

    def weights_changed(self) -> None:
        """Tell a net made with ``keep_blobs=False`` of new values in arrays that it gave before.

        It takes new values by itself when they are written through ``params``, loaded or shared.
        """
        self._net.weights_changed()

    def share_with(self, other: Net) -> None:
        """Use the weights of the same-named layers of another net."""
        self._net.share_weights_with(other._net)

    def clear_param_diffs(self) -> None:
        """Set the diffs of all parameters to zero."""
        self._net.clear_parameter_diffs()

    def before_forward(self, run: Callable[[int], Any]) -> None:
        """Call ``run`` with a layer's index before each layer's forward."""
        self._keep_blobs()
        self._net.before_forward.append(run)

    def after_forward(self, run: Callable[[int], Any]) -> None:
        """Call ``run`` with a layer's index after each layer's forward."""
        self._keep_blobs()
        self._net.after_forward.append(run)

    def before_backward(self, run: Callable[[int], Any]) -> None:
        """Call ``run`` with a layer's index before each layer's backward."""
        self._net.before_backward.append(run)

    def after_backward(self, run: Callable[[int], Any]) -> None:
        """Call ``run`` with a layer's index after each layer's backward.

        An NCCL object may be given: gradients travel during backward anyway.
        """
        self._net.after_backward.append(run)
