"""Layers that enlarge images: Upsample, Unpooling and Interp."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.device import xp
from pycaffe_dist.kernels.interpolation import Bilinear, Window
from pycaffe_dist.kernels.upsampling import repeat, repeat_gradient, unpool, unpool_gradient
from pycaffe_dist.layers.base import Arity, Layer, Need, register
from pycaffe_dist.layers.checking import (
    describe,
    report,
    require_axes,
    require_same_shape,
)


def _planes(array: Any) -> Any:
    """Return (N, C, H, W) as (N·C, H, W)."""
    return array.reshape(-1, *array.shape[2:])


@register("Upsample")
class Upsample(Layer):
    """Enlarges images: repeats pixels, or puts them where a pooling's mask, a second bottom, says.

    With one bottom pixels are repeated ``scale`` times both ways (eric612/MobileNet-YOLO).  With a
    mask, the second top of a MAX Pooling, the rest is 0, and the image has the size upsample_h by
    upsample_w, or scale (or scale_h and scale_w) times the bottom's, less 1 with pad_out_h and
    pad_out_w (alexgkendall/caffe-segnet).  As there, every value gets the gradient of its place,
    even if a later value overwrote it.
    """

    bottoms = Arity(1, 2)
    # The fields that set the size of the top.
    size_fields = "upsample_h and upsample_w"

    @property
    def backward_needs_bottom(self) -> Need:  # type: ignore[override]
        """The mask."""
        return Need.VALUE if len(self.param.bottom) > 1 else Need.NONE

    def allow_force_backward(self, bottom_index: int) -> bool:
        """A mask has no gradient."""
        return bottom_index == 0

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.upsample_param
        default = param.scale if len(bottom) > 1 or param.HasField("scale") else 1
        given = [param.HasField(field) for field in ("scale_h", "scale_w")]
        self._scale = (param.scale_h, param.scale_w) if all(given) else (default,) * 2
        self._size = param.upsample_h, param.upsample_w
        self._cut = int(param.pad_out_h), int(param.pad_out_w)
        if len(bottom) == 1 and (any(given) or any(self._size) or any(self._cut)):
            raise self.error("takes scale only, unless a second bottom is a pooling's mask")
        if any(given) and (not all(given) or param.HasField("scale")):
            raise self.error("needs either scale or both scale_h and scale_w")
        if 0 in self._scale:
            raise self.error(f"needs scales of at least 1, found {self._scale}")
        if 0 in self._size and any(self._size):
            raise self.error(f"needs both upsample_h and upsample_w, found {self._size}")
        if any(cut and scale != 2 for cut, scale in zip(self._cut, self._scale)):
            raise self.error(f"has pad_out_h and pad_out_w for scale 2 only, found {self._scale}")

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        require_axes(self, bottom, 0, 4)
        if len(bottom) > 1:
            require_same_shape(self, bottom, 0, 1)
        sizes = zip(bottom[0].shape[2:], self._scale, self._cut)
        scaled = [size * scale - cut for size, scale, cut in sizes]
        top[0].reshape(*bottom[0].shape[:2], *(self._size if any(self._size) else scaled))

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        if len(bottom) == 1:
            repeat(_planes(bottom[0].data), _planes(top[0].data), self._scale[0])
            return
        wrong, planes = xp().empty(1, np.uint64), bottom[0].count_of(0, 2)
        x, mask, y = (b.data.reshape(planes, b.count_of(2)) for b in (*bottom, top[0]))
        unpool(x, mask, y, wrong)
        report(wrong, self._wrong_index(bottom, top))

    def _wrong_index(self, bottom: list[Blob], top: list[Blob]) -> Any:
        height, width = top[0].shape[2:]
        name = describe(self, bottom, 1)

        def error(position: int, value: float) -> Exception:
            return self.error(
                f"index {value:g} at {position} of mask {name} is not in the top's images of "
                f"{height} by {width}: they need the size of the pooling's bottom; set "
                f"{self.size_fields}"
            )

        return error

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if len(bottom) > 1 and propagate_down[1]:  # pooling's tops all ask for one
            bottom[1].diff.fill(0)
        if not propagate_down[0]:
            return
        if len(bottom) == 1:
            repeat_gradient(_planes(top[0].diff), _planes(bottom[0].diff), self._scale[0])
            return
        arrays = top[0].diff, bottom[1].data, bottom[0].diff
        planes = bottom[0].count_of(0, 2)
        unpool_gradient(*(a.reshape(planes, a.shape[2] * a.shape[3]) for a in arrays))


@register("Unpooling")
class Unpooling(Upsample):
    """Puts pixels where a pooling's mask, the second bottom, says; the rest is 0.

    The size is unpool_size, or unpool_h and unpool_w; kernel and stride have no effect.  As in the
    fork (HyeonwooNoh/caffe), every value gets the gradient of its place.  The V1 type is UNPOOLING.
    """

    bottoms = Arity(2, 2)
    size_fields = "unpool_size, or unpool_h and unpool_w"

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.unpooling_param
        if param.unpool != param.MAX:
            raise self.error("does only MAX: its other methods spread pixels without a mask")
        if param.pad or param.pad_h or param.pad_w:
            raise self.error("takes no pad: the mask says where pixels go")
        both = param.unpool_h, param.unpool_w
        if not any(both):
            both = (param.unpool_size,) * 2
        elif param.unpool_size:
            raise self.error(f"takes {self.size_fields}, not both")
        if not all(both):
            raise self.error(f"needs {self.size_fields}, above 0")
        self._size = both
        self._scale, self._cut = (1, 1), (0, 0)  # which the size replaces


@register("Interp")
class Interp(Layer):
    """Bilinear interpolation that keeps the corners, to another size.

    shrink_factor or zoom_factor alone sets the size; otherwise height and width do, or both factors
    together.  pad_beg and pad_end, 0 or less, first cut off pixels.  (hszhao/PSPNet.)  With
    use_blob_size a second bottom sets the size (soeaver/caffe-model).
    """

    bottoms = Arity(1, 2)

    backward_needs_bottom = Need.NONE

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.interp_param
        self._key: Any = None
        if param.pad_beg > 0 or param.pad_end > 0:
            raise self.error(
                "needs a pad_beg and a pad_end of at most 0, which cut off pixels; found "
                f"{param.pad_beg} and {param.pad_end}"
            )
        if min(param.shrink_factor, param.zoom_factor) < 1:
            raise self.error("needs a shrink_factor and a zoom_factor of at least 1")
        if param.use_blob_size != (len(bottom) == 2):
            raise self.error(
                f"takes a second bottom, and only then use_blob_size; found {len(bottom)} bottom(s)"
            )

    def _output(self, size: tuple[int, int]) -> tuple[int, int]:
        param = self.param.interp_param
        shrinks, zooms = param.HasField("shrink_factor"), param.HasField("zoom_factor")
        given = param.HasField("height") and param.HasField("width")
        if given and shrinks == zooms:
            return param.height, param.width
        if not shrinks and not zooms:
            raise self.error("needs height and width, or a shrink_factor or a zoom_factor")
        shrink, zoom = param.shrink_factor, param.zoom_factor
        height, width = (((n - 1) // shrink) * zoom + 1 for n in size)
        return height, width

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        require_axes(self, bottom, 0, 4)
        param = self.param.interp_param
        num, channels, height, width = bottom[0].shape
        rest = param.pad_beg + param.pad_end
        window = Window((height, width), -param.pad_beg, (height + rest, width + rest))
        if min(window.size) < 1:
            raise self.error(f"leaves no pixels of bottom {describe(self, bottom, 0)}")
        if param.use_blob_size:
            require_axes(self, bottom, 1, 4)
            height, width = bottom[1].shape[2:]
            output = height, width
        else:
            output = self._output(window.size)
        if min(output) < 1:
            raise self.error(f"needs a height and a width of at least 1, found {output}")
        top[0].reshape(num, channels, *output)
        if self._key != (window, output):
            self._key = window, output
            self._bilinear = Bilinear(window, output, self.context.parameter_dtype)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._bilinear.run(_planes(bottom[0].data), _planes(top[0].data))

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if propagate_down[0]:
            self._bilinear.gradient(_planes(top[0].diff), _planes(bottom[0].diff))
        if len(bottom) > 1 and propagate_down[1]:
            bottom[1].diff.fill(0)
