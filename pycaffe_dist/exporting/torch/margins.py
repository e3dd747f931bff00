"""Margins at the label in PyTorch: of inner products and of scores."""

from __future__ import annotations

from pycaffe_dist.exporting.steps import Step
from pycaffe_dist.exporting.torch.register import converts
from pycaffe_dist.exporting.torch.source import Source, arguments
from pycaffe_dist.layers.base import is_test
from pycaffe_dist.layers.label_margins import LabelSpecificAdd
from pycaffe_dist.layers.margin_products import MarginProduct


@converts("MarginInnerProduct", "LargeMarginInnerProduct")
def margin_product(step: Step, source: Source) -> None:
    """An inner product with a margin at the label."""
    layer = step.layer
    assert isinstance(layer, MarginProduct)
    margin = layer.margin_options()
    decay = arguments(margin.base, margin.gamma, margin.power, margin.lambda_min)
    unit = {"unit": True} if step.type == "MarginInnerProduct" else {}
    outputs, inputs = step.blobs[0].shape
    sizes = arguments(inputs, outputs, step.axis(margin.axis), 1 + margin.type)
    call = f"{sizes}, ({decay}), {arguments(layer.iteration, **unit)}"
    name = source.module(f"{source.part('MarginProduct')}({call})", ("weight", step.blobs[0]))
    source.let_first(step, f"{name}({{0}}, {{1}})", 2)


@converts("LabelSpecificAdd")
def label_margin(step: Step, source: Source) -> None:
    """A bias at the label, in training."""
    layer, param = step.layer, step.layer.param.label_specific_add_param
    assert isinstance(layer, LabelSpecificAdd)
    if is_test(layer.phase):
        call = arguments(0.0)
    elif not param.HasField("bias_base"):
        call = arguments(param.bias)
    else:
        growth = arguments(param.bias_gamma, param.bias_power, param.bias_min, param.bias_max)
        call = f"{arguments(param.bias_base)}, ({growth}), {layer.iteration}"
    name = source.module(f"{source.part('LabelMargin')}({call})")
    source.let_first(step, f"{name}({{0}}, {{1}})", 2)


@converts("LabelSpecificRescale")
def label_rescale(step: Step, source: Source) -> None:
    """Factors of the label's score and of others, in training."""
    param = step.layer.param.label_specific_rescale_param
    if is_test(step.layer.phase) and not param.rescale_test:
        source.let(step, "{0}")
    else:
        source.call(step, "label_rescale", param.positive_weight, param.negative_weight)
