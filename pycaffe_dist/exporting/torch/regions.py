"""ROIPooling, PSROIPooling and ROIAlign in PyTorch."""

from __future__ import annotations

from pycaffe_dist.exporting.steps import Step
from pycaffe_dist.exporting.torch.register import converts
from pycaffe_dist.exporting.torch.source import Source


@converts("ROIPooling")
def roi_pooling(step: Step, source: Source) -> None:
    """The maxima of bins."""
    param = step.layer.param.roi_pooling_param
    source.call(step, "roi_pool", param.spatial_scale, param.pooled_h, param.pooled_w)


@converts("PSROIPooling")
def psroi_pooling(step: Step, source: Source) -> None:
    """The means of bins, each in its own channels."""
    param = step.layer.param.psroi_pooling_param
    source.call(step, "psroi_pool", param.spatial_scale, param.output_dim, param.group_size)


@converts("ROIAlign")
def roi_align(step: Step, source: Source) -> None:
    """Values between the cells."""
    param = step.layer.param.roi_pooling_param
    sizes = param.pooled_h, param.pooled_w
    source.call(step, "roi_align", param.spatial_scale, param.pad_ratio, *sizes)
