"""Proposal: boxes that may hold an object, from the scores and moves of anchors."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.kernels.proposals import best_boxes, propose
from pycaffe_dist.layers.base import Arity, Constant, register
from pycaffe_dist.layers.checking import describe, require_axes, require_finite, require_same_batch


def make_anchors(base: int, ratios: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return boxes (ratios · scales, 4) around the centre of a square of ``base`` pixels.

    A ratio, height over width, keeps the square's area; width and height are rounded before the
    scales multiply them.
    """
    width = np.floor(np.sqrt(base * base / ratios) + 0.5)
    height = np.floor(width * ratios + 0.5)
    sizes = np.stack([width, height], axis=1)[:, None, :] * scales[:, None]
    reach = 0.5 * (sizes.reshape(-1, 2) - 1)
    centre = 0.5 * (base - 1)
    return np.concatenate([centre - reach, centre + reach], axis=1)


@register("Proposal")
class Proposal(Constant):
    """The best boxes that anchors become by their predicted moves (gaohaidong/caffe).

    Bottoms: scores (N, 2·A, H, W), of which the second half are those of an object; moves
    (N, 4·A, H, W); images (N, 3), rows of height, width and scale, or (N, 4) with two scales.
    Tops: boxes (R, 5), rows of image, x1, y1, x2, y2, by image, the best first; their scores (R).
    Boxes smaller than min_size get the score 0.  Until the first forward there are post_nms_topn
    boxes per image.  (Ren et al., Faster R-CNN, 2015; Kim et al., PVANET, 2016.)
    """

    host_only = True
    bottoms = Arity(3, 3)
    tops = Arity(1, 2)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.proposal_param
        ratios, scales = np.array(param.ratio), np.array(param.scale)
        if not (ratios.size and scales.size and (ratios > 0).all() and (scales > 0).all()):
            raise self.error(
                "needs ratio and scale, each at least once and above 0, found "
                f"{list(param.ratio)} and {list(param.scale)}"
            )
        for field in ("feat_stride", "base_size", "pre_nms_topn", "post_nms_topn"):
            if not getattr(param, field):
                raise self.error(f"needs a {field} of at least 1, found 0")
        self.anchors = make_anchors(param.base_size, ratios, scales).astype(self.context.dtype)
        self._shape_tops(bottom[0].shape[0] * param.post_nms_topn, top)

    def _shape_tops(self, boxes: int, top: list[Blob]) -> None:
        top[0].reshape(boxes, 5)
        if len(top) > 1:
            top[1].reshape(boxes)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        for index in (0, 1):
            require_axes(self, bottom, index, 4)
            require_same_batch(self, bottom, 0, index + 1)
        for index, each in ((0, 2), (1, 4)):
            wanted = (each * len(self.anchors), *bottom[0].shape[2:])
            if bottom[index].shape[1:] != wanted:
                raise self.error(
                    f"needs {each} channels for each of {len(self.anchors)} anchors (ratio · "
                    f"scale) and one map size, found bottom {describe(self, bottom, index)}"
                )
        if bottom[2].count_of(1) < 3:
            raise self.error(
                "needs height, width and one or more scales of each image, found bottom "
                f"{describe(self, bottom, 2)}"
            )

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        param, count = self.param.proposal_param, len(self.anchors)
        images = bottom[2].data.reshape(bottom[2].shape[0], bottom[2].count_of(1))
        require_finite(self, bottom)
        number, _, height, width = bottom[0].shape
        boxes = np.empty((number, height * width * count, 4), self.context.dtype)
        chances = np.empty(boxes.shape[:2], boxes.dtype)
        smallest = param.min_size * images[:, [2, -1]]
        inputs = bottom[0].data[:, count:], bottom[1].data, self.anchors
        propose(*inputs, param.feat_stride, images[:, :2], smallest, boxes, chances)
        # Boxes include the pixels of both borders.
        edges = boxes + np.array([0, 0, 1, 1], boxes.dtype)
        limits = param.pre_nms_topn, param.post_nms_topn
        image, chosen = best_boxes(edges, chances, *limits, param.nms_thresh)
        self._shape_tops(len(chosen), top)
        top[0].data[:, 0], top[0].data[:, 1:] = image, boxes[image, chosen]
        if len(top) > 1:
            top[1].data[...] = chances[image, chosen]
