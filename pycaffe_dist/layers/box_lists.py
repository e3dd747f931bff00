"""Data layers of forks of which only the tops' shapes are known, to build the nets with them."""

from __future__ import annotations

from typing import Any

from pycaffe_dist.blob import Blob
from pycaffe_dist.layers.base import Arity, Layer, Need, register

_CHANNELS = 3


class _BoxList(Layer):
    """The base: images and labels from a list of images.

    Only the shapes are known here: the list is not read, so forward is an error.
    """

    host_only = True
    bottoms = Arity(0, 0)
    tops = Arity(1, None)
    has_backward = False
    backward_needs_bottom = Need.NONE
    # Numbers in a row of the top with boxes.
    columns: int

    @property
    def channels(self) -> int:
        """The images' channels."""
        return _CHANNELS

    @property
    def own_param(self) -> Any:
        """The parameter of this type of layer."""
        raise NotImplementedError

    def size(self, param: Any) -> tuple[int, int] | None:
        """Return height and width of the images, None if the list decides."""
        if param.HasField("resize_width") and param.HasField("resize_height"):
            return param.resize_height, param.resize_width
        return None

    def shapes(self, param: Any, size: tuple[int, int]) -> list[tuple[int, ...]]:
        """Return the shapes of the tops after the first."""
        raise NotImplementedError

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.own_param
        size = self.size(param)
        if not param.batch_size or size is None or min(size) < 1:
            raise self.error("needs a batch_size, and fields for the size of its images")
        shapes = [(param.batch_size, self.channels, *size), *self.shapes(param, size)]
        if len(top) != len(shapes):
            raise self.error(f"needs {len(shapes)} tops, {len(top)} are given")
        for blob, shape in zip(top, shapes):
            blob.reshape(*shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        raise self.error(
            f"cannot read '{self._source()}': pcaffe builds nets with this layer of a fork, "
            "but has no reader for its lists; bring the data in with a Python layer"
        )

    def _source(self) -> str:
        source = self.own_param.source
        return source if isinstance(source, str) else ", ".join(source)


def _label_maps(
    param: Any, size: tuple[int, int], strides: Any, rounds: bool
) -> list[tuple[int, ...]]:
    """Return the shapes of maps of labels, one for each stride; sides are rounded or cut."""
    sides = [
        tuple(int(side / stride + 0.5) if rounds else side // stride for side in size)
        for stride in strides
    ]
    return [(param.batch_size, 2 + param.coord_num, *each) for each in sides]


@register("ImageGtData")
class ImageGtData(_BoxList):
    """Images, maps of labels and boxes of zhaoweicai/mscnn: shapes only, it cannot read.

    Tops: images (N, 3, h, w), for each downsample_rate labels (N, 6, h/rate, w/rate) as
    DetectionLoss takes them, and with output_gt_boxes boxes (1, 7, 1, 1).
    """

    columns = 7

    @property
    def own_param(self) -> Any:
        return self.param.image_gt_data_param

    def size(self, param: Any) -> tuple[int, int] | None:
        """The crop's, or the resized image's."""
        if param.crop_width and param.crop_height:
            return param.crop_height, param.crop_width
        return super().size(param)

    def shapes(self, param: Any, size: tuple[int, int]) -> list[tuple[int, ...]]:
        """Labels and boxes."""
        boxes = [(1, self.columns, 1, 1)] if param.output_gt_boxes else []
        return [*_label_maps(param, size, param.downsample_rate, False), *boxes]


@register("DetectionData")
class DetectionData(_BoxList):
    """Images, maps of labels and boxes of zhaoweicai/cascade-rcnn: shapes only, it cannot read.

    Tops: images (N, 3, h, w), for each stride labels (N, 6, h/stride, w/stride) as
    DetectionGroupLoss takes them, and with output_gt_boxes boxes (1, 8, 1, 1).
    """

    columns = 8

    @property
    def own_param(self) -> Any:
        return self.param.detection_data_param

    def size(self, param: Any) -> tuple[int, int] | None:
        """The crop's, the resized image's, or those of an upright image."""
        if param.crop_width and param.crop_height:
            return param.crop_height, param.crop_width
        if param.HasField("crop_short_size") and param.HasField("crop_long_size"):
            return param.crop_long_size, param.crop_short_size
        if param.HasField("short_size") and param.HasField("long_size"):
            return param.long_size, param.short_size
        return super().size(param)

    def shapes(self, param: Any, size: tuple[int, int]) -> list[tuple[int, ...]]:
        """Labels and boxes."""
        boxes = [(1, self.columns, 1, 1)] if param.output_gt_boxes else []
        return [*_label_maps(param, size, param.stride, True), *boxes]


@register("EvalData")
class EvalData(_BoxList):
    """Images, boxes and sizes of zhaoweicai/cascade-rcnn: shapes only, it cannot read.

    Tops: images (N, 3, h, w), boxes (1, 8, 1, 1), and maybe heights and widths (N, 2, 1, 1).
    """

    columns = 8

    @property
    def own_param(self) -> Any:
        return self.param.eval_data_param

    def size(self, param: Any) -> tuple[int, int] | None:
        """The resized image's, or that of an upright image."""
        if param.HasField("short_size") and param.HasField("long_size"):
            return param.long_size, param.short_size
        return super().size(param)

    def shapes(self, param: Any, size: tuple[int, int]) -> list[tuple[int, ...]]:
        """Boxes and sizes."""
        shapes: list[tuple[int, ...]] = [(1, self.columns, 1, 1), (param.batch_size, 2, 1, 1)]
        return shapes[: max(1, len(self.param.top) - 1)]


@register("IllumImageData")
class IllumImageData(_BoxList):
    """Parts of images and their light's colour, of swift-n-brutal/caffe: shapes only, cannot read.

    Tops: parts of images (N, label_dim, crop_size, crop_size), since a light's colour has a value
    for each channel, and labels (N, label_dim, 1, 1).
    """

    @property
    def channels(self) -> int:
        return int(self.own_param.label_dim)

    @property
    def own_param(self) -> Any:
        return self.param.illum_image_data_param

    def size(self, param: Any) -> tuple[int, int] | None:
        """The crop's."""
        return param.crop_size, param.crop_size

    def shapes(self, param: Any, size: tuple[int, int]) -> list[tuple[int, ...]]:
        """Labels."""
        return [(param.batch_size, param.label_dim, 1, 1)]
