"""Binary nets of Caffe's forks, which give one field number to different parameters of layers.

A prototxt names fields, a binary net only numbers them.  What a number means is told by the type
of its layer: a field that the type reads, or that some fork gives it under this number.
"""

from __future__ import annotations

from collections.abc import Callable

from pycaffe_dist.errors import PcaffeError
from pycaffe_dist.schema import caffe_pb2, wire

# From this number on, forks have fields of their own; the numbers below are the same everywhere,
# but for some that Caffe 1.0 does not use.
_FIRST_CONTESTED = 137
_ALSO_CONTESTED = (12, 42, 43, 44, 45)

# The other numbers that forks give the fields of LayerParameter.
_NUMBERS = {
    "annotated_data_param": (217,),
    "bbox_reg_param": (150,),
    "bn_param": (42, 45, 137, 144, 200),
    "box_annotator_ohem_param": (150, 151, 152, 241),
    "center_loss_param": (147,),
    "chnwise_param": (149,),
    "connectivity_mode": (12,),
    "dense_image_data_param": (138,),
    "detection_accuracy_param": (150,),
    "detection_data_param": (151,),
    "detection_evaluate_param": (161,),
    "detection_loss_param": (149,),
    "detection_output_param": (219,),
    "eltwise_accuracy_param": (43,),
    "eval_data_param": (152,),
    "illum_image_data_param": (147,),
    "interp_param": (143, 205, 334),
    "largemargin_inner_product_param": (202,),
    "lstm_param": (140,),
    "margin_inner_product_param": (147,),
    "multibox_loss_param": (215,),
    "mvno_param": (148,),
    "noise_param": (207,),
    "norm_param": (209,),
    "permute_param": (210, 224),
    "prior_box_param": (211,),
    "proposal_param": (219,),
    "proposal_target_param": (152,),
    "psroi_pooling_param": (148, 149, 153, 220, 240),
    "relu6_param": (211,),
    "reorg_param": (147, 159),
    "reverse_param": (143, 151),
    "roi_pooling_param": (147, 150, 154, 164, 201, 204),
    "scale_route_param": (154,),
    "seg_accuracy_param": (144,),
    "shuffle_channel_param": (145,),
    "smooth_l1_loss_param": (148, 149, 150, 163, 202),
    "transpose_param": (142, 150),
    "unpooling_param": (44,),
    "upsample_param": (137,),
    "video_data_param": (140, 203, 6660),
}

_MOVES = ("bbox_reg_param",)
# The fields, from _FIRST_CONTESTED on, that types of layers read; other types read NAME_param.
_READ = {
    "BN": ("bn_param",),
    "BboxAccuracy": _MOVES,
    "BoxAnnotatorOHEM": ("box_annotator_ohem_param",),
    "BoxGroupOutput": ("box_group_output_param", *_MOVES),
    "BoxOutput": ("box_output_param", *_MOVES),
    "DecodeBBox": ("decode_bbox_param", *_MOVES),
    "DetectionAccuracy": ("detection_accuracy_param", *_MOVES),
    "DetectionGroupAccuracy": ("detection_group_accuracy_param", *_MOVES),
    "DetectionGroupLoss": ("detection_group_loss_param", *_MOVES),
    "DetectionLoss": ("detection_loss_param", *_MOVES),
    "DetectNetTransformation": ("detectnet_groundtruth_param", "detectnet_augmentation_param"),
    "FrcnnOutput": ("frcnn_output_param", *_MOVES),
    "LSTM": ("recurrent_param",),
    "Lstm": ("lstm_param",),
    "MultiBoxLoss": ("multibox_loss_param",),
    "Normalize": ("norm_param", "normalize_param"),
    "ProposalTarget": ("proposal_target_param", *_MOVES),
    "RNN": ("recurrent_param",),
    "ROIAlign": ("roi_pooling_param",),
    "ReLU6": ("relu6_param",),
    "SmoothL1LossOHEM": ("smooth_l1_loss_param",),
}

_Fail = Callable[[str], PcaffeError]


def unified(data: bytes, fail: _Fail) -> bytes:
    """Return an encoded NetParameter whose layers have this schema's numbers.

    Raises ``fail`` for a layer with a field that its type does not explain.  V1 layers stay as they
    are.
    """
    number_of_layers = caffe_pb2.NetParameter.LAYER_FIELD_NUMBER
    parts: list[wire.Part] = []
    for field in wire.fields(data):
        is_layer = field.number == number_of_layers and field.is_bytes
        parts += wire.nested(field.number, _layer(field.value, fail)) if is_layer else [field.whole]
    return b"".join(parts)


def _layer(data: bytes, fail: _Fail) -> list[wire.Part]:
    kept = {1: "", 2: ""}  # name and type
    fields = list(wire.fields(data))
    for field in fields:
        if field.number in kept and field.is_bytes:
            kept[field.number] = field.value.decode(errors="replace")
    name, kind = kept.values()
    parts: list[wire.Part] = []
    for field in fields:
        meaning = _meaning(field.number, kind)
        if not meaning or (meaning > 0 and not field.is_bytes):
            raise fail(
                f"layer '{name}' is of type '{kind}' and has field {field.number}, "
                f"{_known(field.number)}: which it is cannot be told; use the prototxt instead"
            )
        same = meaning in (-1, field.number)
        parts += [field.whole] if same else wire.nested(meaning, [field.value])
    return parts


def _meaning(number: int, kind: str) -> int:
    """Return our number of a layer's field; -1 if it is the same everywhere, 0 if unknown."""
    ours = caffe_pb2.LayerParameter.DESCRIPTOR.fields_by_name
    read = _fields_read(kind)
    for name in read:
        if number == ours[name].number or number in _NUMBERS.get(name, ()):
            return int(ours[name].number)
    return -1 if number < _FIRST_CONTESTED and number not in _ALSO_CONTESTED else 0


def _fields_read(kind: str) -> tuple[str, ...]:
    """Return the contested fields that layers of a type read."""
    ours = caffe_pb2.LayerParameter.DESCRIPTOR.fields
    by_short = {field.name.replace("_", ""): field.name for field in ours}
    own = by_short.get(f"{kind.lower()}param")
    return _READ.get(kind, (own,) if own else ())


def _known(number: int) -> str:
    """Return what a number means, as far as is known."""
    ours = caffe_pb2.LayerParameter.DESCRIPTOR.fields_by_number.get(number)
    names = [ours.name] if ours is not None else []
    names += [name for name, numbers in _NUMBERS.items() if number in numbers]
    if not names:
        return "which no fork known here has"
    return f"which is {' or '.join(dict.fromkeys(names))}"
