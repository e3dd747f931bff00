"""Proposal and BoxOutput in PyTorch."""

from __future__ import annotations

import math

from pycaffe_dist.exporting.steps import Step
from pycaffe_dist.exporting.torch.register import converts
from pycaffe_dist.exporting.torch.source import Source, arguments
from pycaffe_dist.layers.box_output import BoxOutput
from pycaffe_dist.layers.box_regression import mean_and_std
from pycaffe_dist.layers.proposal import Proposal


@converts("Proposal")
def proposal(step: Step, source: Source) -> None:
    """The best boxes that anchors become."""
    layer, param = step.layer, step.layer.param.proposal_param
    assert isinstance(layer, Proposal)
    anchors = source.buffer(layer.anchors)
    limits = param.pre_nms_topn, param.post_nms_topn, param.nms_thresh
    call = arguments(param.feat_stride, param.min_size, *limits)
    text = f"{source.part('proposals')}({{0}}, {{1}}, {{2}}, {anchors}, {call})"
    source.let_first(step, text, 2)


@converts("BoxOutput")
def box_output(step: Step, source: Source) -> None:
    """The best boxes of maps."""
    layer = step.layer
    assert isinstance(layer, BoxOutput)
    options = layer.options
    maps = "".join(f"{{{index}}}, " for index in range(len(step.bottoms)))
    fields = "".join(
        f"(({width:g}, {height:g}), {stride:g}), "
        for width, height, stride in zip(options.field_w, options.field_h, options.downsample_rate)
    )
    mean, std = (each.reshape(-1).tolist() for each in mean_and_std(layer))
    moves = mean, std, 1 / options.field_xyr, math.log(options.field_whr)
    limits = options.max_nms_num or None, options.max_post_nms_num or None, options.iou_thr
    call = f"{moves}, {arguments(options.fg_thr, options.min_size, *limits)}"
    text = f"{source.part('box_output')}(({maps}), ({fields}), {call})"
    source.let_first(step, text, 2)
