"""The net: layers in order, forward, backward, and its parameters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from pycaffe_dist import device as devices
from pycaffe_dist.blob import Blob
from pycaffe_dist.data.partition import Shard
from pycaffe_dist.errors import NetError
from pycaffe_dist.layers import Layer, LayerContext
from pycaffe_dist.layers.joined import Joined
from pycaffe_dist.log import DETAIL, logger
from pycaffe_dist.net import debug, idle, weights
from pycaffe_dist.net.build import Builder, Node, out_of_memory
from pycaffe_dist.net.diff_sharing import Turns, share_diffs
from pycaffe_dist.net.fusion import Fusing
from pycaffe_dist.net.in_place import check_in_place
from pycaffe_dist.net.parameter import Parameter, by_layer
from pycaffe_dist.net.pending import PendingLoss
from pycaffe_dist.net.rules import filter_layers, kept_layers
from pycaffe_dist.net.splits import insert_splits
from pycaffe_dist.precision import checked_precision
from pycaffe_dist.profiling import Kind, Record
from pycaffe_dist.schema import caffe_pb2, text
from pycaffe_dist.schema.places import Places

if TYPE_CHECKING:
    from pycaffe_dist.net.inference import Inference
    from pycaffe_dist.schema.caffe_pb2 import NetParameter

Hook = Callable[[int], None]


class Net:
    """A net built from a NetParameter, in the phase, level and stages of its ``state``.

    ``dtype`` is the type of all blobs; ``seed`` makes fillers, dropout and crops repeatable;
    ``shard`` selects the records of this rank; ``places`` has the layers' definitions, for errors.
    The layers run on ``device``, by default the current one, except layers for the host only.
    Without ``keep_diffs`` the diffs of most blobs share memory and last only as long as backward
    needs them; diffs of parameters, of blobs with a loss weight and of blobs that no layer writes
    are kept.  Without ``keep_blobs``, for the TEST phase, blobs between the layers share memory and
    have no values after forward; layers are folded into others (see `net.inference`), whose
    parameters are taken at the first forward and after `weights_changed`.  On a GPU all blobs are
    kept.  ``precision`` is one of `PRECISIONS`, for products without ``keep_blobs``.
    ``before_forward``, ``after_forward``, ``before_backward`` and ``after_backward`` are lists of
    callbacks that get a layer's index; ``record`` gets the time of each layer (on a GPU, the time
    to launch it).  Raises NetError, LayerError or UsageError when the net cannot be built.
    """

    def __init__(
        self,
        param: NetParameter,
        *,
        dtype: Any = np.float32,
        seed: int | None = None,
        shard: Shard = Shard(),  # noqa: B008 (frozen)
        places: Places | None = None,
        device: devices.Device | None = None,
        keep_diffs: bool = True,
        keep_blobs: bool = True,
        precision: str = "float32",
    ):
        self.device = device or devices.current()
        kept = kept_layers(param)
        filtered = filter_layers(param, kept)
        _log_definition(filtered)
        self.definition = filtered
        self.dtype = np.dtype(dtype)
        self.name: str = filtered.name
        self.phase: int = filtered.state.phase
        self.before_forward: list[Hook] = []
        self.after_forward: list[Hook] = []
        self.before_backward: list[Hook] = []
        self.after_backward: list[Hook] = []
        self.record: Record | None = None
        self.debug_info: bool = filtered.debug_info
        # The factor on all gradients of backward: see solvers.loss_scale.
        self.loss_scale = 1.0
        # How often layers were reshaped since the net was built.
        self.reshapes = 0
        self.shard = shard
        self.keeps_blobs = keep_blobs or self.device.is_gpu
        context = LayerContext(
            self.phase,
            self.dtype,
            seed,
            shard,
            forward_only=not self.keeps_blobs,
            precision=checked_precision(precision, self.keeps_blobs, self.device.is_gpu),
        )
        self.precision = precision
        self.rank_mean = context.rank_mean
        where = {} if places is None else {param.layer[i].name: places.layer(i) for i in kept}
        builder = self._build(insert_splits(filtered, where), context, where)
        self.blobs: dict[str, Blob] = builder.blobs
        self.blob_losses = builder.blob_losses
        self.parameters: list[Parameter] = builder.parameters
        self.inputs: list[str] = builder.inputs
        self.outputs: list[str] = builder.outputs
        self._seen: list[list[tuple[int, ...]]] = [_shapes(node.bottom) for node in self.nodes]
        # The tops that are part of the loss, with their weights, by layer.
        self._weighted = [_weighted_tops(node) for node in self.nodes]
        with devices.use(self.device):
            self._fusing = Fusing(self.nodes, on_host=not self.device.is_gpu)
            self._turns = Turns() if keep_diffs else share_diffs(self.nodes)
        self._ready_after = by_layer(self.parameters, "ready_after")
        self._begun_by = by_layer(self.parameters, "begun_by")
        self._inference = None if self.keeps_blobs else self._planned_inference()
        logger.log(DETAIL, "Network initialization done.")

    def _build(self, param: NetParameter, context: LayerContext, where: dict[str, str]) -> Builder:
        """Make the nodes; close what layers have opened if that fails."""
        builder = Builder(param, context, where)
        self.nodes = builder.nodes
        try:
            with devices.use(self.device):
                builder.build()
            check_in_place(self.nodes)
        except BaseException:
            self.close()
            raise
        return builder

    def _planned_inference(self) -> Inference:
        if self.phase != caffe_pb2.TEST:
            raise NetError("keep_blobs=False is for the TEST phase: backward needs the blobs")
        # It needs layers, and so Numba.
        from pycaffe_dist.net.inference import Inference

        kept = [self.blobs[name] for name in self.outputs if name in self.blobs]
        return Inference(self.nodes, kept, [*self.inputs, *self.outputs])

    def keep_all_blobs(self) -> None:
        """Keep all blobs from now on; run forward again if it has run.

        Raises NetError if layers would read other data in another run.
        """
        if self._inference is None:
            return
        readers = [node.name for node in self.nodes if not node.bottom and node.layer.computes]
        if readers and self._inference.has_run:
            raise NetError(
                f"net '{self.name}' was made with keep_blobs=False and cannot compute its blobs "
                f"again: layer '{readers[0]}' would read the next data; make it with "
                "keep_blobs=True"
            )
        inference, self._inference, self.keeps_blobs = self._inference, None, True
        inference.end()
        for layer in self.layers:
            layer.context = replace(layer.context, forward_only=False)
        self.reshape()
        if inference.has_run:
            self.forward()

    def weights_changed(self) -> None:
        """Take the parameters anew, if they are folded (without ``keep_blobs``)."""
        if self._inference is not None:
            self._inference.weights_changed()

    @property
    def layers(self) -> list[Layer]:
        """The layers, in forward order."""
        return [node.layer for node in self.nodes]

    @property
    def layer_names(self) -> list[str]:
        """The layers' names, in forward order."""
        return [node.name for node in self.nodes]

    def layer_index(self, name: str) -> int:
        """Return the index of a layer; raises NetError for an unknown name."""
        for index, node in enumerate(self.nodes):
            if node.name == name:
                return index
        raise NetError(f"net '{self.name}' has no layer '{name}'")

    def open_files(self) -> None:
        """Read the files that layers need in forward, so that a missing one ends a run early."""
        for layer in self.layers:
            layer.open_files()

    def forward(
        self,
        start: int = 0,
        end: int | None = None,
        before_layer: Hook | None = None,
    ) -> float:
        """Run layers ``start`` to ``end`` (inclusive) forward; return the weighted loss.

        ``before_layer`` is called before every layer with parameters, with its index.
        """
        return self.start_forward(start, end, before_layer).value()

    def start_forward(
        self,
        start: int = 0,
        end: int | None = None,
        before_layer: Hook | None = None,
    ) -> PendingLoss:
        """Run like `forward`, but do not wait for the loss on a GPU."""
        last = len(self.nodes) - 1 if end is None else end
        if self._inference is not None:
            return self._infer(self._inference, start == 0 and last == len(self.nodes) - 1)
        loss = PendingLoss()
        with devices.use(self.device):
            self.run_forward(loss, start, end, before_layer)
            loss.start_reading()
        return loss

    def _infer(self, inference: Inference, whole: bool) -> PendingLoss:
        if not whole or self.is_observed:
            raise NetError(
                f"net '{self.name}' was made with keep_blobs=False: it runs from the first layer "
                "to the last, without callbacks and debug_info, which read the blobs between"
            )
        loss, started = PendingLoss(), perf_counter()

        def before(index: int) -> None:
            nonlocal started
            started = perf_counter()

        def after(index: int) -> None:
            self._add_loss(index, loss)
            if self.record is not None:
                name = self.nodes[index].name
                self.record((Kind.FORWARD, name, started, perf_counter(), 0))

        inference.forward(before, after, one_by_one=self.record is not None)
        return loss

    def run_forward(
        self,
        loss: PendingLoss,
        start: int = 0,
        end: int | None = None,
        before_layer: Hook | None = None,
        but: Collection[int] = (),
    ) -> None:
        """Run layers ``start`` to ``end`` forward except those in ``but``; add to ``loss``.

        The net's device is the current one.
        """
        last = len(self.nodes) - 1 if end is None else end
        # Looked up once: after a layer, little that Python needs is in a cache.
        record, kind = self.record, Kind.FORWARD
        index = start
        while index <= last:
            if index in but:
                index += 1
                continue
            joined = None if self.is_observed else self._fusing.starting_at(index, last)
            count = len(joined.layers) if joined else 1
            if before_layer is not None:
                for other in range(index, index + count):
                    if self.nodes[other].layer.blobs:
                        _on_host([before_layer], other)
            _on_host(self.before_forward, index)
            node, started = self.nodes[index], perf_counter()
            waited = node.layer.seconds_waited
            self._forward_layer(index, loss, joined)
            if record is not None:
                record((kind, node.name, started, perf_counter(), 0))
                if waited := node.layer.seconds_waited - waited:
                    record((Kind.DATA, node.name, started, started + waited, 0))
            _on_host(self.after_forward, index)
            index += count

    @property
    def is_observed(self) -> bool:
        """Whether callbacks or debug_info read blobs between the layers."""
        hooks = self.before_forward, self.after_forward, self.before_backward, self.after_backward
        return self.debug_info or any(hooks)

    def forward_layer(self, index: int) -> float:
        """Run one layer forward, after a reshape if bottoms changed theirs; return its loss."""
        loss = PendingLoss()
        with devices.use(self.device):
            self._forward_layer(index, loss)
            loss.start_reading()
        return loss.value()

    def _forward_layer(self, index: int, loss: PendingLoss, joined: Joined | None = None) -> None:
        """Run one layer forward, or all layers ``joined`` to it."""
        if self.device.is_gpu and self.nodes[index].layer.host_only:
            with devices.use(devices.HOST):
                self._run_layer(index, joined)
        else:
            self._run_layer(index, joined)
        self._add_loss(index, loss)
        if self.debug_info:
            debug.log_forward(self, index)

    def _add_loss(self, index: int, loss: PendingLoss) -> None:
        for top, weight in self._weighted[index]:
            # A loss layer's backward reads its weight here, as in Caffe.
            devices.current().at_every_pass(partial(self._set_loss_weight, top, weight))
            loss.add(top, weight)

    def _set_loss_weight(self, top: Blob, weight: float) -> None:
        with devices.use(devices.HOST):
            top.diff.fill(weight * self.loss_scale)

    def _run_layer(self, index: int, joined: Joined | None) -> None:
        node = self.nodes[index]
        layer, bottom = node.layer, node.bottom
        changed = layer.reshape_every_forward
        for blob, shape in zip(bottom, self._seen[index]):
            if blob.shape != shape:
                changed = True
        if changed:
            layer.reshape(bottom, node.top)
            self.reshapes += 1
            self._seen[index] = _shapes(bottom)
        try:
            if idle.is_idle(node):
                idle.forward(node)
            else:
                self._fusing.forward(index, joined)
        except MemoryError as error:
            raise out_of_memory(layer, "forward", error) from error

    def backward(
        self,
        start: int | None = None,
        end: int = 0,
        on_gradient_ready: Callable[[Parameter], None] | None = None,
        factored: Collection[str] = (),
        accumulate: bool = True,
    ) -> None:
        """Run layers ``start`` down to ``end`` (inclusive) backward.

        Gradients are added to the parameters' diffs; unless ``accumulate``, they replace them.
        ``on_gradient_ready`` is called for every parameter that receives a gradient, right after
        the backward of the layer with its last contribution.  Layers do not compute the diffs of
        ``factored`` parameters, named by their keys, unless debug_info shows them: the caller does.
        """
        if self._inference is not None:
            raise NetError(f"net '{self.name}' was made with keep_blobs=False: it has no backward")
        self._leave_out_products(factored)
        if not accumulate:
            self._clear_without_gradient()
        first = len(self.nodes) - 1 if start is None else start
        record, kind = self.record, Kind.BACKWARD
        with devices.use(self.device):
            if self.is_observed:
                self._fusing.part_all()
            self._fusing.part_unless_within(end, first)
            for index in range(first, end - 1, -1):
                _on_host(self.before_backward, index)
                started = perf_counter()
                if not accumulate:
                    self._begin_gradients(index, factored)
                self.backward_layer(index)
                self.nodes[index].layer.overwritten.clear()
                if record is not None:
                    record((kind, self.nodes[index].name, started, perf_counter(), 0))
                _on_host(self.after_backward, index)
                if on_gradient_ready is not None:
                    for parameter in self._ready_after.get(index, ()):
                        _on_host([on_gradient_ready], parameter)
        if self.debug_info and start is None and end == 0:
            debug.log_all_parameters(self)

    def _leave_out_products(self, factored: Collection[str]) -> None:
        for parameter in self.parameters:
            factors_only = parameter.layer.factors_only
            factors_only.discard(parameter.index)
            if parameter.key in factored:
                if self.debug_info:
                    parameter.clear_diff()
                else:
                    factors_only.add(parameter.index)

    def _begin_gradients(self, index: int, factored: Collection[str]) -> None:
        """Let a layer's first contributions to gradients replace old values."""
        node = self.nodes[index]
        for parameter in self._begun_by.get(index, ()):
            if parameter.key in factored:
                continue
            places = [place for layer, place in parameter.sharers if layer == index]
            if node.layer.overwrites_gradients and len(places) == 1 and not idle.is_idle(node):
                node.layer.overwritten.add(places[0])
            else:
                parameter.clear_diff()

    def _clear_without_gradient(self) -> None:
        """Set the diffs that no layer's backward sets to zero, unless updates leave them zero."""
        with devices.use(self.device):
            for parameter in self.parameters:
                if not parameter.receives_gradient and parameter.lr_mult != 0:
                    parameter.clear_diff()

    def backward_layer(self, index: int) -> None:
        """Run one layer backward, if it takes part in backward."""
        node = self.nodes[index]
        if node.need_backward:
            self._turns.begin(index)
            try:
                with devices.use(devices.HOST if node.layer.host_only else self.device):
                    if idle.is_idle(node):
                        idle.backward(node)
                    else:
                        self._fusing.backward(index)
            except MemoryError as error:
                raise out_of_memory(node.layer, "backward", error) from error
            self._turns.end(index)
            if self.debug_info:
                debug.log_backward(self, index)

    def reshape(self) -> None:
        """Reshape all layers in order, starting with the inputs."""
        self.reshapes += 1
        if self._inference is not None:
            self._inference.reshape()
            return
        for index, node in enumerate(self.nodes):
            with devices.use(devices.HOST if node.layer.host_only else self.device):
                node.layer.reshape(node.bottom, node.top)
            self._seen[index] = _shapes(node.bottom)

    def clear_parameter_diffs(self) -> None:
        """Set the parameters' diffs to zero."""
        with devices.use(self.device):
            for parameter in self.parameters:
                parameter.clear_diff()

    def share_weights_with(self, other: Net) -> None:
        """Replace parameters by the parameters of the same-named layers of ``other``."""
        mine = {node.name: node.layer for node in self.nodes}
        for node in other.nodes:
            layer = mine.get(node.name)
            if layer is None or not node.layer.blobs:
                continue
            weights.check_fit(layer, [blob.shape for blob in node.layer.blobs], "shared")
            for target, source in zip(layer.blobs, node.layer.blobs):
                target.share_data(source)
        self.weights_changed()

    def load_weights(self, path: str) -> list[str]:
        """Copy the weights of same-named layers from a ``.caffemodel`` or ``.caffemodel.h5``.

        Layers that are not in the file keep their weights; their names are returned.  Raises
        WeightsError when a layer's shapes differ, before anything is copied.
        """
        self.weights_changed()
        return weights.load(self, path)

    def save_weights(self, path: str, write_diff: bool = False, as_hdf5: bool = False) -> None:
        """Write the weights to a ``.caffemodel``, or as HDF5 if requested or if the name ends in
        ``.h5``."""
        weights.save(self, path, write_diff, as_hdf5)

    def first_not_finite(self) -> str:
        """Return a text about the origin of the first NaN or infinity; empty if there is none.

        Runs all layers except data layers forward again, to check each blob before a later layer
        overwrites it.
        """
        return debug.first_not_finite(self)

    def close(self) -> None:
        """Stop the threads and close the files of all layers."""
        for node in self.nodes:
            node.layer.close()


def _on_host(callbacks: list[Callable[[Any], None]], argument: Any) -> None:
    """Call callbacks with the host as the device, so that they get NumPy arrays."""
    if callbacks:
        with devices.use(devices.HOST):
            for callback in callbacks:
                callback(argument)


def _log_definition(definition: NetParameter) -> None:
    if logger.isEnabledFor(DETAIL):
        shown = text.to_text(definition).rstrip()
        logger.log(DETAIL, "Initializing net from parameters: \n%s", shown)


def _weighted_tops(node: Node) -> list[tuple[Blob, float]]:
    return [(top, weight) for top, weight in zip(node.top, node.layer.loss_weights) if weight]


def _shapes(blobs: Iterable[Blob]) -> list[tuple[int, ...]]:
    return [blob.shape for blob in blobs]
