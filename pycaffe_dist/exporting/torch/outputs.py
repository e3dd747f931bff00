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


@converts("SoftmaxWithLoss")
def softmax_loss(step: Step, source: Source) -> None:
    """The loss, and the softmax for a second top."""
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


@converts("SigmoidCrossEntropyLoss")
def sigmoid_loss(step: Step, source: Source) -> None:
    """The loss of sigmoids."""
    call = arguments(**_rule(step, BATCH_SIZE))
    source.let(step, f"{source.part('sigmoid_loss')}({{0}}, {{1}}, {call})")


_PLAIN = {
    "EuclideanLoss": "euclidean_loss",
    "L1Loss": "l1_loss",
    "MultinomialLogisticLoss": "multinomial_loss",
}


@converts(*_PLAIN)
def plain_loss(step: Step, source: Source) -> None:
    """A loss without options."""
    source.let(step, f"{source.part(_PLAIN[step.type])}({{0}}, {{1}})")


@converts("HingeLoss")
def hinge_loss(step: Step, source: Source) -> None:
    """The hinge loss."""
    squared = step.layer.param.hinge_loss_param.norm == caffe_pb2.HingeLossParameter.L2
    source.let(step, f"{source.part('hinge_loss')}({{0}}, {{1}}, {squared})")


@converts("InfogainLoss")
def infogain_loss(step: Step, source: Source) -> None:
    """The loss with a matrix as its third bottom."""
    rule = _rule(step, VALID)
    if len(step.bottoms) < 3 or rule != {"mode": "VALID"}:
        raise step.error("is exported with a third bottom and the usual normalization only")
    axis = step.axis(step.layer.param.infogain_loss_param.axis)
    source.let(step, f"{source.part('infogain_loss')}({{0}}, {{1}}, {{2}}, {axis})")
    if len(step.tops) > 1:
        source.let(step, f"{{0}}.softmax({axis})", 1)


@converts("ContrastiveLoss")
def contrastive_loss(step: Step, source: Source) -> None:
    """The loss of pairs."""
    param = step.layer.param.contrastive_loss_param
    call = arguments(param.margin, param.legacy_version)
    source.let(step, f"{source.part('contrastive_loss')}({{0}}, {{1}}, {{2}}, {call})")


@converts("SmoothL1Loss")
def smooth_l1_loss(step: Step, source: Source) -> None:
    """The loss of boxes."""
    names = ", ".join(f"{{{index}}}" for index in range(len(step.bottoms)))
    sigma = arguments(sigma=step.layer.param.smooth_l1_loss_param.sigma)
    source.let(step, f"{source.part('smooth_l1_loss')}({names}, {sigma})")


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
    call = arguments(step.axis(param.axis), param.top_k, **ignore)
    source.let(step, f"{source.part('accuracy_of')}({{0}}, {{1}}, {call})")
