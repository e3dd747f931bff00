"""Builds a net: makes layers, connects blobs, shares parameters, plans backward."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pycaffe_dist import device
from pycaffe_dist.blob import Blob
from pycaffe_dist.errors import LayerError, NetError, PcaffeError, did_you_mean
from pycaffe_dist.layers import Arity, Layer, LayerContext, layer_class, layer_types
from pycaffe_dist.log import DETAIL, logger
from pycaffe_dist.net.parameter import Parameter
from pycaffe_dist.schema import caffe_pb2, forks

AUTOMATIC = "(automatic)"


@dataclass
class Node:
    """One layer in its net: its blobs, and whether each takes part in backward."""

    layer: Layer
    bottom: list[Blob]
    top: list[Blob]
    bottom_names: list[str]
    top_names: list[str]
    propagate_down: list[bool]
    need_backward: bool = False

    @property
    def name(self) -> str:
        """The layer's name."""
        return self.layer.name


class Builder:
    """Makes the nodes of a net, layer by layer, from a filtered and split NetParameter.

    ``where`` has the layers' ``file:line`` by name.  After :meth:`build`: ``nodes``,
    ``blobs`` (by name, in order of creation), ``blob_losses`` (loss weight by blob name),
    ``parameters`` (owners, in layer order), ``inputs`` and ``outputs`` (blob names).
    """

    def __init__(
        self, param: caffe_pb2.NetParameter, context: LayerContext, where: Mapping[str, str]
    ):
        self._param = param
        self._context = context
        self._where = where
        self._need_backward: dict[str, bool] = {}
        self._unread: dict[str, None] = {}
        self._named: dict[str, Parameter] = {}
        self._memory = 0
        self.nodes: list[Node] = []
        self.blobs: dict[str, Blob] = {}
        self.blob_losses: dict[str, float] = {}
        self.parameters: list[Parameter] = []
        self.inputs: list[str] = []
        self.outputs: list[str] = []

    def build(self) -> None:
        """Make all nodes; raises NetError or LayerError with the layer's place."""
        self._check_types()
        for layer_param in self._param.layer:
            self._add(layer_param)
        _skip_what_does_not_reach_the_loss(self.nodes)
        for node in reversed(self.nodes):
            verb = "needs" if node.need_backward else "does not need"
            logger.log(DETAIL, "%s %s backward computation.", node.name, verb)
        if self._param.force_backward:
            _force_backward(self.nodes)
        self._find_contributions()
        self.outputs = sorted(self._unread)
        for name in self.outputs:
            logger.log(DETAIL, "This network produces output %s", name)

    def _error(self, layer_param: caffe_pb2.LayerParameter, message: str) -> LayerError:
        place = self._where.get(layer_param.name, "")
        return LayerError(layer_param.name, layer_param.type, message, place)

    def _add(self, layer_param: caffe_pb2.LayerParameter) -> None:
        if not layer_param.HasField("phase"):
            layer_param.phase = self._param.state.phase
        # The first line is from Caffe's factory, the second from its net.
        logger.log(DETAIL, "Creating layer %s", layer_param.name)
        logger.log(DETAIL, "Creating Layer %s", layer_param.name)
        node = self._connect(layer_param)
        self.nodes.append(node)
        self._set_up(node)
        self._log_set_up(node)
        learns = self._add_parameters(node)
        feeds_back = any(self._need_backward.get(name, False) for name in node.bottom_names) or any(
            node.propagate_down
        )
        node.need_backward = feeds_back or learns
        if node.need_backward:
            self._need_backward.update(dict.fromkeys(node.top_names, True))

    def _connect(self, layer_param: caffe_pb2.LayerParameter) -> Node:
        layer = self._make_layer(layer_param)
        if layer_param.propagate_down and len(layer_param.propagate_down) != len(
            layer_param.bottom
        ):
            raise self._error(
                layer_param,
                f"propagate_down is given {len(layer_param.propagate_down)} times for "
                f"{len(layer_param.bottom)} bottoms; give it once per bottom or not at all",
            )
        bottom, propagate_down = self._take_bottoms(layer_param)
        top_names, top = self._make_tops(layer_param, layer)
        self._check_arity(layer_param, layer, len(bottom), len(top))
        return Node(layer, bottom, top, list(layer_param.bottom), top_names, propagate_down)

    def _make_layer(self, layer_param: caffe_pb2.LayerParameter) -> Layer:
        place = self._where.get(layer_param.name, "")
        context = replace(self._context, phase=layer_param.phase, where=place)
        try:
            kind = layer_class(layer_param.type)
            if kind.host_only:
                context = replace(context, dtype=context.parameter_dtype)
            return kind(layer_param, context)
        except LayerError:
            raise
        except PcaffeError as error:
            where = f"{place}: " if place else ""
            raise NetError(f"{where}layer '{layer_param.name}': {error}") from None

    def _take_bottoms(self, layer_param: caffe_pb2.LayerParameter) -> tuple[list[Blob], list[bool]]:
        bottom, propagate_down = [], []
        for index, name in enumerate(layer_param.bottom):
            logger.log(DETAIL, "%s <- %s", layer_param.name, name)
            del self._unread[name]
            bottom.append(self.blobs[name])
            if layer_param.propagate_down:
                propagate_down.append(layer_param.propagate_down[index])
            else:
                propagate_down.append(self._need_backward[name])
        return bottom, propagate_down

    def _make_tops(
        self, layer_param: caffe_pb2.LayerParameter, layer: Layer
    ) -> tuple[list[str], list[Blob]]:
        names, blobs = list(layer_param.top), []
        for index, name in enumerate(names):
            in_place = index < len(layer_param.bottom) and layer_param.bottom[index] == name
            if in_place:
                if not layer.in_place:
                    raise self._error(
                        layer_param,
                        f"cannot work in place: its top '{name}' is also its bottom; "
                        "give the top another name",
                    )
                logger.log(DETAIL, "%s -> %s (in-place)", layer_param.name, name)
            elif name in self.blobs:
                raise self._error(layer_param, self._why_taken(name))
            else:
                logger.log(DETAIL, "%s -> %s", layer_param.name, name)
                self.blobs[name] = self._new_top(layer, index)
                self._need_backward[name] = False
                if layer_param.type == "Input":
                    self.inputs.append(name)
            blobs.append(self.blobs[name])
            self._unread[name] = None
        if layer.is_loss:
            for _ in range(len(names), layer.tops.least):
                names.append(AUTOMATIC)
                blobs.append(self._new_top(layer, len(blobs)))
        return names, blobs

    def _new_top(self, layer: Layer, index: int) -> Blob:
        exact = layer.is_exact(index)
        return Blob((), self._context.parameter_dtype if exact else self._context.dtype)

    def _why_taken(self, name: str) -> str:
        producer = next(node for node in self.nodes if name in node.top_names)
        hint = ""
        if any(split.startswith(f"{name}_") and "_split_" in split for split in self.blobs):
            hint = f"; it cannot work in place on '{name}', which other layers read too"
        return f"top blob '{name}' is already made by layer '{producer.name}'{hint}"

    def _check_arity(
        self, layer_param: caffe_pb2.LayerParameter, layer: Layer, bottoms: int, tops: int
    ) -> None:
        for what, arity, count in (("bottom", layer.bottoms, bottoms), ("top", layer.tops, tops)):
            if not Arity(*arity).allows(count):
                raise self._error(layer_param, f"takes {arity} {what} blob(s), {count} are given")
        if layer.equal_bottoms_and_tops and bottoms != tops:
            raise self._error(
                layer_param, f"needs as many tops as bottoms; it has {tops} and {bottoms}"
            )

    def _set_up(self, node: Node) -> None:
        layer, layer_param = node.layer, node.layer.param
        layer.loss_weights = layer.first_loss_weights(len(node.top))
        if layer.is_loss and not layer_param.loss_weight and not any(layer.loss_weights):
            _tell_no_weight(layer.name, layer.type, layer.context.where)
        if len(layer_param.loss_weight) not in (0, len(node.top)):
            raise self._error(
                layer_param,
                f"loss_weight is given {len(layer_param.loss_weight)} times for "
                f"{len(node.top)} top(s); give it once per top or not at all",
            )
        if layer_param.blobs:
            from pycaffe_dist.net.weights import blobs_of

            layer.blobs = blobs_of(layer_param, self._context.parameter_dtype)
        try:
            with device.use(device.HOST if layer.host_only else device.current()):
                layer.setup(node.bottom, node.top)
                layer.reshape(node.bottom, node.top)
        except LayerError:
            raise
        except MemoryError as error:
            raise out_of_memory(layer, "setup", error) from error
        except NetError as error:
            raise self._error(layer_param, str(error)) from None

    def _log_set_up(self, node: Node) -> None:
        logger.log(DETAIL, "Setting up %s", node.name)
        for name, blob, weight in zip(node.top_names, node.top, node.layer.loss_weights):
            if weight or name not in self.blob_losses:
                self.blob_losses[name] = weight
            logger.log(DETAIL, "Top shape: %s", blob.shape_string())
            if weight:
                logger.log(DETAIL, "    with loss weight %g", weight)
            self._memory += blob.count
        logger.log(
            DETAIL, "Memory required for data: %d", self._memory * self._context.dtype.itemsize
        )

    def _check_types(self) -> None:
        """Raise NetError if the net has layers of unknown types, unless a type is mistyped."""
        known = layer_types()
        missing = [
            layer
            for layer in self._param.layer
            if layer.type
            and layer.type not in known
            and (layer.type in forks.TYPES or not did_you_mean(layer.type, known))
        ]
        places = [self._where.get(layer.name, "") for layer in missing]
        lines = [int(place.rpartition(":")[2] or 0) if ":" in place else 0 for place in places]
        if missing:
            where = f"{places[0]}: " if places[0] else ""
            kinds = ((layer.type, layer.name, line) for layer, line in zip(missing, lines))
            raise NetError(where + forks.unknown_types(kinds))

    def _add_parameters(self, node: Node) -> bool:
        """Register the layer's parameters; return whether any of them is learnt."""
        layer, specs = node.layer, list(node.layer.param.param)
        if len(specs) > len(layer.blobs):
            raise self._error(
                layer.param, f"has {len(layer.blobs)} parameter(s), {len(specs)} param are given"
            )
        specs += [caffe_pb2.ParamSpec()] * (len(layer.blobs) - len(specs))
        layer.param_propagate_down = [spec.lr_mult != 0 for spec in specs]
        for index, spec in enumerate(specs):
            owner = self._named.get(spec.name) if spec.name else None
            if owner is None:
                parameter = self._new_parameter(layer, index, spec)
                self.parameters.append(parameter)
                if spec.name:
                    self._named[spec.name] = parameter
                continue
            logger.log(
                DETAIL,
                "Sharing parameters '%s' owned by layer '%s', param index %d",
                spec.name,
                owner.layer_name,
                owner.index,
            )
            try:
                owner.share_with(layer, len(self.nodes) - 1, index, spec)
            except NetError as error:
                raise self._error(layer.param, str(error)) from None
        return any(layer.param_propagate_down)

    def _new_parameter(self, layer: Layer, index: int, spec: caffe_pb2.ParamSpec) -> Parameter:
        try:
            return Parameter(layer, len(self.nodes) - 1, index, spec)
        except NetError as error:
            raise self._error(layer.param, str(error)) from None

    def _find_contributions(self) -> None:
        """Set ``ready_after`` and ``begun_by``: backward runs from the last layer to the first, so
        the first sharer contributes last."""
        for parameter in self.parameters:
            contributors = [
                layer_index
                for layer_index, index in parameter.sharers
                if self.nodes[layer_index].need_backward
                and self.nodes[layer_index].layer.param_propagate_down[index]
            ]
            parameter.ready_after = min(contributors, default=None)
            parameter.begun_by = max(contributors, default=None)


@functools.cache
def _tell_no_weight(name: str, kind: str, where: str) -> None:
    logger.warning(
        "%s: layer '%s' (%s) has no loss_weight, which means 0 for this type: it trains nothing; "
        "give loss_weight: 1 to train with it",
        *(where, name, kind),
    )


def _skip_what_does_not_reach_the_loss(nodes: list[Node]) -> None:
    """Disable backward for layers without a path to a loss, also due to propagate_down."""
    under_loss: set[str] = set()
    skipped: set[str] = set()
    for node in reversed(nodes):
        weights = node.layer.loss_weights
        contributes = any(
            weight or name in under_loss for name, weight in zip(node.top_names, weights)
        )
        cut_off = all(name in skipped for name in node.top_names)
        if node.need_backward and cut_off:
            node.need_backward = False
            node.propagate_down = [False] * len(node.bottom)
        if not contributes:
            node.need_backward = False
            node.propagate_down = [False] * len(node.bottom)
        for name, propagates in zip(node.bottom_names, node.propagate_down):
            if contributes:
                under_loss.add(name)
            if not propagates:
                skipped.add(name)


def _force_backward(nodes: list[Node]) -> None:
    for node in nodes:
        if not node.layer.has_backward:
            continue
        node.need_backward = True
        node.propagate_down = [
            propagates or node.layer.allow_force_backward(index)
            for index, propagates in enumerate(node.propagate_down)
        ]
        node.layer.param_propagate_down = [True] * len(node.layer.blobs)


def out_of_memory(layer: Layer, what: str, error: MemoryError) -> MemoryError:
    """Return an error of a layer's method with its name and place."""
    place = f"{layer.context.where}: " if layer.context.where else ""
    reason = str(error) or "no memory is left"
    return MemoryError(f"{place}layer '{layer.name}' ({layer.type}): {what}: {reason}")
