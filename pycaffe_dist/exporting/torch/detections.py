"""DetectionOutput and MultiBoxLoss in PyTorch."""

from __future__ import annotations

import math

from pycaffe_dist.exporting.steps import Step
from pycaffe_dist.exporting.torch.register import converts
from pycaffe_dist.exporting.torch.source import Source, arguments
from pycaffe_dist.layers.loss import VALID, normalization_of
from pycaffe_dist.layers.multibox_loss import MultiBoxLoss
from pycaffe_dist.schema import caffe_pb2

_CODES = caffe_pb2.PriorBoxParameter.CodeType
_Parameter = caffe_pb2.MultiBoxLossParameter
_Modes = caffe_pb2.LossParameter.NormalizationMode


@converts("DetectionOutput")
def detection_output(step: Step, source: Source) -> None:
    """The detections of all images."""
    param = step.layer.param.detection_output_param
    nms = param.nms_param
    if nms.eta != 1:
        raise step.error("lowers the threshold of suppression with each box (eta)")
    least = param.confidence_threshold if param.HasField("confidence_threshold") else -math.inf
    limits = (
        'float("-inf")' if least == -math.inf else arguments(least),
        str(nms.top_k if nms.HasField("top_k") else -1),
        arguments(nms.nms_threshold),
        str(param.keep_top_k),
    )
    options = (
        param.num_classes,
        param.background_label_id,
        _CODES.Name(param.code_type),
        param.variance_encoded_in_target,
        param.share_location,
    )
    part = source.part("detection_output")
    call = f"{arguments(*options)}, ({', '.join(limits)})"
    source.let(step, f"{part}({{0}}, {{1}}, {{2}}, {call})")


@converts("MultiBoxLoss")
def multibox_loss(step: Step, source: Source) -> None:
    """The loss of boxes and classes, of one stage with shared boxes."""
    layer, param = step.layer, step.layer.param.multibox_loss_param
    assert isinstance(layer, MultiBoxLoss)
    for wrong, what in (
        (len(step.bottoms) > 4, "the predictions of a first stage"),
        (not param.share_location, "boxes for each class (share_location: false)"),
        (param.HasField("nms_param"), "a suppression of boxes before mining (nms_param)"),
    ):
        if wrong:
            raise step.error(f"has {what}, which the exported loss lacks")
    location, matching, mining = layer.location, layer.matching, layer.mining()
    options = {
        "background": layer.background,
        "code": _CODES.Name(location.code),
        "mode": _Modes.Name(normalization_of(layer.param.loss_param, VALID)),
        "mining": _Parameter.MiningType.Name(layer.mining_type),
        "box_weight": layer.weights[0],
        "class_weight": layer.weights[1],
        "threshold": matching.threshold,
        "ratio": mining.ratio,
        "least": mining.overlap,
        "sample": mining.sample,
    }
    marks = {
        "encoded": location.variance_in_target,
        "squares": location.squares,
        "logistic": layer.logistic,
        "by_prediction": location.decoded,
        "bipartite": not matching.per_prediction,
        "only_inside": matching.inside,
        "corners_inside": location.inside,
        "skip_difficult": not param.use_difficult_gt,
        "agnostic": layer.agnostic,
    }
    options.update((name, True) for name, is_set in marks.items() if is_set)
    call = f"{param.num_classes}, {arguments(**options)}"
    name = source.module(f"{source.part('MultiBoxLoss')}({call})")
    source.let(step, f"{name}({{0}}, {{1}}, {{2}}, {{3}})")
