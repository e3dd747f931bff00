"""Losses and Accuracy in PyTorch."""

from __future__ import annotations

from typing import Any

from pycaffe_dist.exporting.steps import Step
from pycaffe_dist.exporting.torch.register import converts
from pycaffe_dist.exporting.torch.source import Source, arguments
from pycaffe_dist.layers.loss import BATCH_SIZE, VALID, normalization_of
from pycaffe_dist.schema import caffe_pb2

_LossParameter = caffe_pb2.LossParameter


def _rule(step: Step, default: int) -> dict[str, Any]:
    """Return how a loss is normalized, as the arguments of its part."""
    param = step.layer.param.loss_param
    mode = normalization_of(param, default)
    rule: dict[str, Any] = {"mode": _LossParameter.NormalizationMode.Name(mode)}
    if param.HasField("ignore_label"):
        rule["ignore"] = param.ignore_label
    if mode == _LossParameter.PRE_FIXED:
        rule["fixed"] = param.pre_fixed_normalizer
    return rule


@converts("SoftmaxWithLoss", "SoftmaxWithLossOHEM")
def softmax_loss(step: Step, source: Source) -> None:
    """The loss, the softmax for a second top, and each label's loss for a third."""
    param = step.layer.param
    axis, rule = step.axis(param.softmax_param.axis), _rule(step, VALID)
    if param.loss_param.weight_by_label_freqs:
        weights = ", ".join(arguments(value) for value in param.loss_param.class_weighting)
        call = f"{arguments(axis, **rule)}, weights={{0}}.new_tensor([{weights}])"
    else:
        call = arguments(axis, **rule)
    source.let(step, f"{source.part('softmax_loss')}({{0}}, {{1}}, {call})")
    if len(step.tops) > 1:
        source.let(step, f"{{0}}.softmax({axis})", 1)
    if len(step.tops) > 2:
        ignore = {"ignore": rule["ignore"]} if "ignore" in rule else {}
        losses = f"{source.part('label_losses')}({{0}}, {{1}}, {arguments(axis, **ignore)})[0]"
        source.let(step, f"{losses}.reshape({{1}}.shape).detach()", 2)


@converts("SigmoidCrossEntropyLoss")
def sigmoid_loss(step: Step, source: Source) -> None:
    """The loss of sigmoids."""
    source.call(step, "sigmoid_loss", **_rule(step, BATCH_SIZE))


_PLAIN = {
    "EuclideanLoss": "euclidean_loss",
    "L1Loss": "l1_loss",
    "MultinomialLogisticLoss": "multinomial_loss",
}


@converts(*_PLAIN)
def plain_loss(step: Step, source: Source) -> None:
    """A loss without options."""
    source.call(step, _PLAIN[step.type])


@converts("HingeLoss")
def hinge_loss(step: Step, source: Source) -> None:
    """The hinge loss."""
    squared = step.layer.param.hinge_loss_param.norm == caffe_pb2.HingeLossParameter.L2
    source.call(step, "hinge_loss", squared)


@converts("InfogainLoss")
def infogain_loss(step: Step, source: Source) -> None:
    """The loss with a matrix as its third bottom."""
    rule = _rule(step, VALID)
    if len(step.bottoms) < 3 or rule != {"mode": "VALID"}:
        raise step.error("is exported with a third bottom and the usual normalization only")
    axis = step.axis(step.layer.param.infogain_loss_param.axis)
    source.call(step, "infogain_loss", axis)
    if len(step.tops) > 1:
        source.let(step, f"{{0}}.softmax({axis})", 1)


@converts("ContrastiveLoss")
def contrastive_loss(step: Step, source: Source) -> None:
    """The loss of pairs."""
    param = step.layer.param.contrastive_loss_param
    source.call(step, "contrastive_loss", param.margin, param.legacy_version)


@converts("SmoothL1Loss")
def smooth_l1_loss(step: Step, source: Source) -> None:
    """The loss of boxes."""
    source.call(step, "smooth_l1_loss", sigma=step.layer.param.smooth_l1_loss_param.sigma)


@converts("SmoothL1LossOHEM")
def smooth_l1_losses(step: Step, source: Source) -> None:
    """The loss of boxes, and that of each place."""
    rule = _rule(step, VALID)
    rule.pop("ignore", None)
    if rule["mode"] == "VALID":  # no place is ignored
        rule["mode"] = "FULL"
    source.call(step, "smooth_l1_losses", returns=2, **rule)


@converts("BoxAnnotatorOHEM")
def hardest(step: Step, source: Source) -> None:
    """Labels and weights of the boxes of largest loss."""
    param = step.layer.param.box_annotator_ohem_param
    source.call(step, "hardest", param.roi_per_img, param.ignore_label, returns=2)


@converts("CenterLoss")
def center_loss(step: Step, source: Source) -> None:
    """The distances to centres, which are a parameter."""
    call = arguments(*step.blobs[0].shape)
    name = source.module(f"{source.part('CenterLoss')}({call})", ("weight", step.blobs[0]))
    source.let(step, f"{name}({{0}}, {{1}})")


@converts("Accuracy")
def accuracy(step: Step, source: Source) -> None:
    """The share of right answers."""
    param = step.layer.param.accuracy_param
    if len(step.tops) > 1:
        raise step.error("is exported with one top only")
    ignore = {"ignore": param.ignore_label} if param.HasField("ignore_label") else {}
    source.call(step, "accuracy_of", step.axis(param.axis), param.top_k, **ignore)
