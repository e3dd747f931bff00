"""PriorBox and PriorBoxClustered: boxes of given sizes and shapes around positions of a map."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.device import xp
from pycaffe_dist.layers.base import Arity, Constant, register
from pycaffe_dist.layers.checking import require_axes
from pycaffe_dist.schema import caffe_pb2

DEFAULT_VARIANCE = 0.1
# Aspect ratios that differ by less are one.
SAME_RATIO = 1e-6

Pair = tuple[float, float]  # height, width


class Form(NamedTuple):
    """One of the boxes of each position: its size and place in pixels.

    ``shift`` moves it down and right.  ``lower`` puts it at the lower border of the cell.
    """

    size: Pair
    shift: Pair = (0.0, 0.0)
    lower: bool = False


def _all_positive(values: Sequence[float]) -> bool:
    return all(0 < value < math.inf for value in values)


@register("PriorBox")
class PriorBox(Constant):
    """Boxes around the positions of the first bottom's map, relative to the image, with variances.

    The top is (1, 2, 4·H·W·A): corners (x1, y1, x2, y2) of A boxes per position, then their
    variances.  A has for each min_size: its square, a square of sqrt(min_size·max_size), and one
    box for each other aspect ratio.  The image's size is that of the second bottom, which may be
    missing where img_size, or img_h and img_w, give it.  Follows weiliu89/caffe, which cuts
    min_size and max_size to whole numbers.

    With denser_prior_boxes each box has a second one at the cell's lower border, for offset 0.5
    half a step below (MhLiao/TextBoxes_plusplus).  fixed_size takes the place of min_size
    (zihaozhang9/FaceBoxes): boxes of this size at density × density places around the centre, and
    so for each other aspect ratio; they end at the image's border.
    """

    bottoms = Arity(1, 2)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.prior_box_param
        self._forms = self._box_forms(param)
        self._variance = self._variances(param)
        self._image = self._pair(param, "img_size", "img_h", "img_w")
        self._step = self._pair(param, "step", "step_h", "step_w")
        if self._image is None and len(bottom) < 2:
            raise self.error(
                "needs the image as its second bottom, or img_size, or img_h and img_w"
            )
        self._made_for: tuple[Pair, Pair] | None = None

    def _box_forms(self, param: caffe_pb2.PriorBoxParameter) -> list[Form]:
        """Return the boxes of one position."""
        if param.fixed_size or param.density:
            return self._dense_forms(param)
        copies = (False, True) if param.denser_prior_boxes else (False,)
        return [Form(size, lower=low) for size in self._box_sizes(param) for low in copies]

    def _dense_forms(self, param: caffe_pb2.PriorBoxParameter) -> list[Form]:
        """Return the boxes of fixed_size and density."""
        sizes, densities = list(param.fixed_size), list(param.density)
        if param.min_size or param.max_size or param.denser_prior_boxes:
            raise self.error("takes fixed_size or min_size, not both")
        if len(sizes) != len(densities) or not _all_positive(sizes):
            raise self.error(
                "needs fixed_size above 0, and density as often, found "
                f"fixed_size {sizes} and density {densities}"
            )
        forms = []
        for size, density in zip(sizes, densities):
            if density < 1 or density != int(density):
                raise self.error(f"needs whole numbers of at least 1 as density, found {density:g}")
            step, side = int(size / density), float(int(size))
            places = [step / 2 + i * step - int(size) // 2 for i in range(int(density))]
            roots = np.sqrt(self._ratios(param)).tolist()
            shapes = [(side, side), *((size / root, size * root) for root in roots)]
            forms += [Form(s, (down, right)) for s in shapes for down in places for right in places]
        return forms

    def _box_sizes(self, param: caffe_pb2.PriorBoxParameter) -> list[Pair]:
        """Return height and width of the boxes of min_size and max_size, in pixels."""
        least, most = list(param.min_size), list(param.max_size)
        if not least or not _all_positive(least):
            raise self.error(f"needs min_size above 0 at least once, found {least or 'none'}")
        if most and len(most) != len(least):
            raise self.error(
                f"needs max_size as often as min_size, {len(least)} times, found {len(most)} times"
            )
        sizes: list[Pair] = []
        for index, size in enumerate(least):
            side = float(int(size))
            sizes.append((side, side))
            if most:
                if not size < most[index] < math.inf:
                    raise self.error(
                        f"needs max_size above min_size {size:g}, found {most[index]:g}"
                    )
                middle = float(np.sqrt(side * int(most[index])))
                sizes.append((middle, middle))
            sizes += [(side / root, side * root) for root in np.sqrt(self._ratios(param)).tolist()]
        return sizes

    def _ratios(self, param: caffe_pb2.PriorBoxParameter) -> list[float]:
        """Return the aspect ratios other than 1."""
        ratios = [1.0]
        for ratio in param.aspect_ratio:
            if not _all_positive([ratio]):
                raise self.error(f"needs aspect ratios above 0, found {ratio:g}")
            if all(abs(ratio - known) >= SAME_RATIO for known in ratios):
                ratios += [ratio, 1 / ratio] if param.flip else [ratio]
        return [ratio for ratio in ratios if abs(ratio - 1) >= SAME_RATIO]

    def _variances(self, param: caffe_pb2.PriorBoxParameter) -> list[float]:
        found = list(param.variance) or [DEFAULT_VARIANCE]
        if len(found) not in (1, 4) or not _all_positive(found):
            raise self.error(f"needs variance once or four times, all above 0, found {found}")
        return found * (4 // len(found))

    def _pair(
        self, param: caffe_pb2.PriorBoxParameter, both: str, height: str, width: str
    ) -> Pair | None:
        """Return the value for height and width that one field or two fields give, or None."""
        if param.HasField(both) and (param.HasField(height) or param.HasField(width)):
            raise self.error(f"takes {both}, or {height} and {width}, not both")
        names = (height, width) if param.HasField(height) or param.HasField(width) else (both, both)
        pair = getattr(param, names[0]), getattr(param, names[1])
        if names[0] == both and not param.HasField(both):
            return None
        if not _all_positive(pair):
            raise self.error(
                f"needs {height} and {width} above 0, found {pair[0]:g} and {pair[1]:g}"
            )
        return pair

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        for index in range(1 if self._image else 2):
            require_axes(self, bottom, index, 4)
        height, width = bottom[0].shape[2:]
        top[0].reshape(1, 2, 4 * height * width * len(self._forms))
        image: Pair = self._image or (bottom[1].shape[2], bottom[1].shape[3])
        if self._made_for != ((height, width), image):
            self._made_for = (height, width), image
            values = np.empty((2, height, width, len(self._forms), 4))
            values[0] = self._boxes((height, width), image)
            values[1] = self._variance
            self.values = xp().asarray(values.reshape(top[0].shape).astype(top[0].dtype))

    def _boxes(self, cells: tuple[int, int], image: Pair) -> np.ndarray:
        """Return the corners of all boxes (height, width, boxes, 4)."""
        step = self._step or (image[0] / max(1, cells[0]), image[1] / max(1, cells[1]))
        boxes, param = np.empty((*cells, len(self._forms), 4)), self.param.prior_box_param
        halves = np.array([form.size for form in self._forms]).T / 2
        shifts = np.array([form.shift for form in self._forms]).T
        offsets = [1.0 if form.lower else param.offset for form in self._forms], param.offset
        for axis, first in ((0, 1), (1, 0)):  # y is the second coordinate of a corner
            centres = (np.arange(cells[axis])[:, None] + offsets[axis]) * step[axis] + shifts[axis]
            centres = centres[:, None] if axis == 0 else centres[None]
            boxes[..., first] = (centres - halves[axis]) / image[axis]
            boxes[..., first + 2] = (centres + halves[axis]) / image[axis]
        if param.fixed_size:
            boxes[..., :2], boxes[..., 2:] = (
                np.maximum(boxes[..., :2], 0),
                np.minimum(boxes[..., 2:], 1),
            )
        if param.clip:
            np.clip(boxes, 0, 1, out=boxes)
        return boxes

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        # A later layer may work in place on the top.
        top[0].data[...] = self.values


@register("PriorBoxClustered")
class PriorBoxClustered(PriorBox):
    """Boxes of given widths and heights around positions of a map (openvinotoolkit's Caffe).

    The top is PriorBox's; A is the number of widths, and heights.  The fork is
    openvinotoolkit/training_toolbox_caffe.
    """

    def _box_forms(self, param: caffe_pb2.PriorBoxParameter) -> list[Form]:
        widths, heights = list(param.width), list(param.height)
        if not widths or len(widths) != len(heights) or not _all_positive(widths + heights):
            raise self.error(
                "needs width and height above 0, each as often and at least once, found "
                f"width {widths} and height {heights}"
            )
        return [Form(size) for size in zip(heights, widths)]
