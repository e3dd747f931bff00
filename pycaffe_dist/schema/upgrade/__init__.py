"""Upgrades nets and solvers of all earlier formats to the present one, as Caffe does on reading.

Nets pass through the necessary steps, in this order: V0 layers become V1 layers, image fields of V1
layers move to ``transform_param``, V1 layers become today's, ``input`` fields become an Input
layer, and BatchNorm's statistics get learning rates of zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pycaffe_dist.errors import PrototxtError
from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.schema.upgrade.crops import align_crops
from pycaffe_dist.schema.upgrade.v0 import upgrade_v0_layers
from pycaffe_dist.schema.upgrade.v1 import move_transformations, upgrade_v1_layers

SOLVER_TYPES = {
    caffe_pb2.SolverParameter.SGD: "SGD",
    caffe_pb2.SolverParameter.NESTEROV: "Nesterov",
    caffe_pb2.SolverParameter.ADAGRAD: "AdaGrad",
    caffe_pb2.SolverParameter.RMSPROP: "RMSProp",
    caffe_pb2.SolverParameter.ADADELTA: "AdaDelta",
    caffe_pb2.SolverParameter.ADAM: "Adam",
}


@dataclass(frozen=True)
class Upgrade:
    """The results of an upgrade.

    ``notes`` has a sentence for each kind of old construct in the net.  ``origins`` has, for each
    layer of the upgraded net, its index before the upgrade, None for an added layer.
    """

    notes: tuple[str, ...]
    origins: tuple[int | None, ...]


def upgrade_net(net: caffe_pb2.NetParameter, file: str = "", lines: Sequence[int] = ()) -> Upgrade:
    """Upgrade a net in place, with the values of its blobs if it has any.

    ``file`` and ``lines``, one for each layer, are for errors only.  Raises PrototxtError for
    constructs without a counterpart today.
    """

    def fail(message: str, layer: int = -1) -> PrototxtError:
        return PrototxtError(message, file, lines[layer] if 0 <= layer < len(lines) else 0)

    if net.layers and net.layer:
        raise fail(
            f"has {len(net.layer)} 'layer' and {len(net.layers)} old 'layers' entries; "
            'write them all as layer { type: "Name" ... }'
        )
    notes: list[str] = []
    origins: list[int | None] = list(range(len(net.layers) or len(net.layer)))
    if any(layer.HasField("layer") for layer in net.layers):
        more, kept = upgrade_v0_layers(net, fail)
        notes += ["upgraded V0 layers (layers { layer { ... } })", *more]
        origins = list(kept)
    if move_transformations(net):
        notes.append("moved scale, mean_file, crop_size and mirror to transform_param")
    if net.layers:
        kinds = [layer.type for layer in net.layers]
        upgrade_v1_layers(net)
        crops = [k for k, kind in enumerate(kinds) if kind == caffe_pb2.V1LayerParameter.CROP]
        align_crops(net, crops, lambda message, k: fail(message, origins[k] or 0))
        notes.append("upgraded V1 layers (layers { type: NAME ... })")
    if net.input:
        if _upgrade_inputs(net, fail):
            origins.insert(0, None)
        notes.append("replaced input fields by an Input layer")
    if _rename_holes(net, fail):
        notes.append("replaced hole by dilation")
    if net.bn_stats_batch_size:
        for layer in net.layer:
            if layer.type == "BatchNorm":
                layer.batch_norm_param.stats_batch_size = net.bn_stats_batch_size
        net.ClearField("bn_stats_batch_size")
        notes.append("moved bn_stats_batch_size to batch_norm_param.stats_batch_size")
    if _name_unit_lengths(net):
        notes.append("gave Normalize the normalize_param of happynear/caffe-windows")
    if _freeze_batch_norm(net):
        notes.append("set lr_mult and decay_mult of BatchNorm's three blobs to 0")
    return Upgrade(tuple(notes), tuple(origins))


def _upgrade_inputs(net: caffe_pb2.NetParameter, fail: Callable[[str], PrototxtError]) -> bool:
    """Replace input fields; remove them if they have no shapes, as in old caffemodels."""
    shapes = [list(shape.dim) for shape in net.input_shape]
    if not shapes:
        shapes = [list(net.input_dim[i : i + 4]) for i in range(0, len(net.input_dim), 4)]
    if shapes:
        if len(shapes) != len(net.input) or len(net.input_dim) % 4:
            raise fail(
                f"has {len(net.input)} input fields, which need one input_shape or four input_dim "
                f"each; found {len(net.input_shape)} input_shape and {len(net.input_dim)} input_dim"
            )
        layer = caffe_pb2.LayerParameter(name="input", type="Input", top=net.input)
        for shape in shapes:
            layer.input_param.shape.add(dim=shape)
        net.layer.insert(0, layer)
    for field in ("input", "input_shape", "input_dim"):
        net.ClearField(field)
    return bool(shapes)


def _rename_holes(net: caffe_pb2.NetParameter, fail: Callable[[str], PrototxtError]) -> bool:
    """Turn the hole of convolutions, of DeepLab's first forks, into dilation."""
    renamed = False
    for layer in net.layer:
        param = layer.convolution_param
        given = [name for name in ("hole", "hole_h", "hole_w") if param.HasField(name)]
        if not given:
            continue
        if param.dilation or given not in (["hole"], ["hole_h", "hole_w"]):
            raise fail(
                f"layer '{layer.name}' needs one of dilation, hole, or both hole_h and hole_w"
            )
        param.dilation.extend(getattr(param, name) for name in given)
        for name in given:
            param.ClearField(name)
        renamed = True
    return renamed


# Layer types that only happynear/caffe-windows has.
_HAPPYNEAR = {
    "ChannelScale",
    "GeneralContrastiveLoss",
    "GeneralTripletLoss",
    "InnerDistance",
    "LabelSpecificAdd",
    "LabelSpecificRescale",
}


def _name_unit_lengths(net: caffe_pb2.NetParameter) -> bool:
    """Mark that fork's form of Normalize in its nets, if there are fields of neither form."""
    bare = [
        layer
        for layer in net.layer
        if layer.type == "Normalize"
        and not layer.HasField("norm_param")
        and not layer.HasField("normalize_param")
    ]
    for layer in bare:
        # The fork had normalize_type here before normalize_param.
        if layer.softmax_param.HasField("normalize_type"):
            layer.normalize_param.normalize_type = layer.softmax_param.normalize_type
            layer.ClearField("softmax_param")
    if not bare or not any(
        layer.type in _HAPPYNEAR
        or layer.HasField("normalize_param")
        or layer.inner_product_param.normalize
        for layer in net.layer
    ):
        return False
    for layer in bare:
        layer.normalize_param.SetInParent()
    return True


def _freeze_batch_norm(net: caffe_pb2.NetParameter) -> bool:
    """Stop solvers from updating the statistics that old BatchNorm layers declare as three params.

    Returns whether this changes the training.
    """
    changed = False
    for layer in net.layer:
        if layer.type == "BatchNorm" and len(layer.param) == 3:
            changed |= any(param.lr_mult for param in layer.param)
            for param in layer.param:
                param.lr_mult = param.decay_mult = 0
    return changed


def upgrade_solver(solver: caffe_pb2.SolverParameter, file: str = "") -> tuple[str, ...]:
    """Upgrade a solver and the nets written within it in place; return notes as of `Upgrade`.

    Raises PrototxtError.
    """
    notes: list[str] = []
    if solver.HasField("solver_type"):
        if solver.HasField("type"):
            raise PrototxtError("has both type and the old solver_type; keep only type", file)
        solver.type = SOLVER_TYPES[solver.solver_type]
        solver.ClearField("solver_type")
        notes.append(f'replaced solver_type by type: "{solver.type}"')
    singular = (solver.net_param, solver.train_net_param)  # empty ones have nothing to upgrade
    for net in (*singular, *solver.test_net_param):
        notes += upgrade_net(net, file).notes
    return tuple(notes)
