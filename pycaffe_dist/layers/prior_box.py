"""PriorBox: the boxes of given sizes and shapes around each position of a map."""

from __future__ import annotations

import math
from collections.abc import Sequence

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
    """

    bottoms = Arity(1, 2)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.prior_box_param
        self._sizes = self._box_sizes(param)
        self._variance = self._variances(param)
        self._image = self._pair(param, "img_size", "img_h", "img_w")
        self._step = self._pair(param, "step", "step_h", "step_w")
        if self._image is None and len(bottom) < 2:
            raise self.error(
                "needs the image as its second bottom, or img_size, or img_h and img_w"
            )
        self._made_for: tuple[Pair, Pair] | None = None

    def _box_sizes(self, param: caffe_pb2.PriorBoxParameter) -> list[Pair]:
        """Return height and width of the boxes of one position, in pixels."""
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
        top[0].reshape(1, 2, 4 * height * width * len(self._sizes))
        image: Pair = self._image or (bottom[1].shape[2], bottom[1].shape[3])
        if self._made_for != ((height, width), image):
            self._made_for = (height, width), image
            values = np.empty((2, height, width, len(self._sizes), 4))
            values[0] = self._boxes((height, width), image)
            values[1] = self._variance
            self._values = xp().asarray(values.reshape(top[0].shape).astype(top[0].dtype))

    def _boxes(self, cells: tuple[int, int], image: Pair) -> np.ndarray:
        """Return the corners of all boxes (height, width, boxes, 4)."""
        step = self._step or (image[0] / max(1, cells[0]), image[1] / max(1, cells[1]))
        boxes = np.empty((*cells, len(self._sizes), 4))
        halves = np.array(self._sizes).T / 2
        for axis, first in ((0, 1), (1, 0)):  # y is the second coordinate of a corner
            centres = (np.arange(cells[axis]) + self.param.prior_box_param.offset) * step[axis]
            centres = centres.reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
            boxes[..., first] = (centres - halves[axis]) / image[axis]
            boxes[..., first + 2] = (centres + halves[axis]) / image[axis]
        if self.param.prior_box_param.clip:
            np.clip(boxes, 0, 1, out=boxes)
        return boxes

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        # A later layer may work in place on the top.
        top[0].data[...] = self._values
