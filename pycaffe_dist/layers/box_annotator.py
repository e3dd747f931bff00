"""BoxAnnotatorOHEM: chooses the hardest boxes to train with."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.device import xp
from pycaffe_dist.layers.base import Arity, Constant, register
from pycaffe_dist.layers.checking import (
    checked_indices,
    describe,
    require_boxes,
    require_same_batch,
)

MOST_IMAGES = 2**31 - 1


@register("BoxAnnotatorOHEM")
class BoxAnnotatorOHEM(Constant):
    """Keeps label and weights of the roi_per_img boxes of largest loss per image (intel/caffe).

    Bottoms: boxes (R, 5) with the image's number first, losses (R), labels (R), weights (R, K).
    Tops: labels, ignore_label for the others; weights, 0 for the others.
    (Shrivastava et al., online hard example mining, 2016.)
    """

    bottoms = Arity(4, 4)
    tops = Arity(2, 2)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        if self.param.box_annotator_ohem_param.roi_per_img < 1:
            raise self.error("needs a roi_per_img of at least 1, found 0")
        require_boxes(self, bottom, 0)
        for index in (1, 2, 3):
            require_same_batch(self, bottom, 0, index)
            if index < 3 and bottom[index].count != bottom[0].shape[0]:
                raise self.error(
                    f"needs one value per box: {bottom[0].shape[0]}, found bottom "
                    f"{describe(self, bottom, index)}"
                )
        for blob, source in zip(top, bottom[2:]):
            blob.reshape_like(source)

    def _chosen(self, bottom: list[Blob]) -> np.ndarray:
        """Return (R,) bool: which boxes are among the hardest of their image."""
        boxes, losses = bottom[0].data.reshape(-1, 5), bottom[1].data.reshape(-1)

        def wrong(index: int, value: float) -> Exception:
            return self.error(
                f"box {index} of bottom {describe(self, bottom, 0)} needs the number of an image, "
                f"found {value:g}"
            )

        image = checked_indices(boxes[:, 0].copy(), MOST_IMAGES, False, wrong)
        order = xp().lexsort(xp().stack([-losses.astype(np.float64), image.astype(np.float64)]))
        image = image[order]
        place = xp().arange(len(order)) - xp().searchsorted(image, image)
        chosen = xp().zeros(len(order), bool)
        chosen[order] = place < self.param.box_annotator_ohem_param.roi_per_img
        return chosen

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        chosen = self._chosen(bottom)
        ignore = self.param.box_annotator_ohem_param.ignore_label
        labels, weights = (blob.data.reshape(len(chosen), -1) for blob in bottom[2:])
        top[0].data[...] = np.where(chosen[:, None], labels, ignore).reshape(top[0].shape)
        top[1].data[...] = np.where(chosen[:, None], weights, 0).reshape(top[1].shape)
