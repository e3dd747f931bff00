"""DetectionEvaluate: which detections are right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.data.image_sizes import read_image_sizes
from pycaffe_dist.data.resizing import check_resize
from pycaffe_dist.kernels import dry_run
from pycaffe_dist.kernels.detection import NOT_DECIDED, RIGHT, verdicts
from pycaffe_dist.layers.base import Arity, Layer, Need, register
from pycaffe_dist.layers.box_scaling import in_pixels
from pycaffe_dist.layers.checking import describe
from pycaffe_dist.layers.image_numbers import ImageNumbers

COLUMNS = 5
# The columns of rows of image, corners and class in the order of rows with the class first.
_ORDER = [0, 5, 6, 1, 2, 3, 4, 7]


@register("DetectionEvaluate")
class DetectionEvaluate(Layer):
    """Compares detections with the boxes of a data set.

    Bottoms: detections (1, 1, D, 7) as DetectionOutput makes them, and boxes (1, 1, G, 8), rows of
    image, class, instance, x1, y1, x2, y2, difficult.  The top has 5 columns; D is known in
    forward only.  First a row for each class but the background: -1, class, number of its boxes,
    -1, -1.  Then a row for each detection by image, class and falling confidence: image, class,
    confidence, 1 if it is right, 1 if it is wrong.  It is right if the box of its class that
    overlaps most does so by at least overlap_threshold, and no better one took it; with
    evaluate_difficult_gt false, difficult boxes do not count and detections of them are neither.
    With name_size_file overlaps are those of pixels.  Follows weiliu89/caffe, but takes the next
    image of that file for the next image of the data, also after an image without detections.

    With a third bottom, the heights and widths of inputs (N, 2), the layer is that of
    zhaoweicai/cascade-rcnn: detections (D, 7) as FrcnnOutput makes them and boxes (G, 8), rows of
    image, x1, y1, x2, y2, class, ignored, difficult, in pixels of the inputs.
    """

    host_only = True
    idle_when_empty = False
    bottoms = Arity(2, 3)
    has_backward = False
    backward_needs_bottom = Need.NONE
    exact = True  # numbers of boxes

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.detection_evaluate_param
        if param.num_classes < 1:
            raise self.error("needs num_classes of at least 1")
        if not param.overlap_threshold > 0:
            raise self.error(f"needs overlap_threshold above 0, found {param.overlap_threshold:g}")
        self.classes = [c for c in range(param.num_classes) if c != param.background_label_id]
        self._resize = param.resize_param if param.HasField("resize_param") else None
        if self._resize is not None:
            check_resize(self._resize, self.error)
        self._sizes: np.ndarray | None = None
        self._numbers = ImageNumbers(self.context.shard)
        if len(bottom) == 3 and not param.name_size_file:
            raise self.error("needs a name_size_file, since its third bottom has sizes of inputs")

    def open_files(self) -> None:
        file = self.param.detection_evaluate_param.name_size_file
        if file and self._sizes is None:
            self._sizes = read_image_sizes(file, self.error)[1]

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        for index, columns in enumerate((7, 8)):
            shape = bottom[index].shape
            if len(bottom) == 3:
                if bottom[index].count_of(1) != columns:
                    raise self.error(
                        f"needs rows of {columns} numbers, found {describe(self, bottom, index)}"
                    )
            elif shape != (1, 1, *shape[2:3], columns):
                raise self.error(
                    f"needs shape (1, 1, rows, {columns}), found {describe(self, bottom, index)}"
                )
        found = bottom[0].count // 7
        top[0].reshape(1, 1, len(self.classes) + found, COLUMNS)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.open_files()
        found, boxes = (
            blob.read_data().reshape(-1, columns).astype(self.context.dtype, copy=False)
            for blob, columns in zip(bottom, (7, 8))
        )
        if len(bottom) == 3:
            found, boxes = found[:, _ORDER[:7]], boxes[:, _ORDER]
        found, boxes = found[(found[:, 0] != -1) & (found[:, 1] != -1)], boxes[boxes[:, 0] != -1]
        if dry_run.active() is None:  # else there are no values
            self._check(found, "detection", bottom, 0)
            self._check(boxes, "box", bottom, 1)
        if self._sizes is not None:
            self._scale(found, boxes, bottom[2].read_data() if len(bottom) == 3 else None)
        param = self.param.detection_evaluate_param
        order, decided = verdicts(
            found, boxes, param.overlap_threshold, param.evaluate_difficult_gt
        )
        counting = boxes if param.evaluate_difficult_gt else boxes[boxes[:, 7] == 0]
        top[0].reshape(1, 1, len(self.classes) + len(found), COLUMNS)
        about, rows = np.split(top[0].data[0, 0], [len(self.classes)])
        about[...] = -1
        about[:, 1] = self.classes
        about[:, 2] = np.bincount(counting[:, 1].astype(int), minlength=param.num_classes)[
            self.classes
        ]
        rows[:, :3] = found[order, :3]
        rows[:, 3] = decided == RIGHT
        rows[:, 4] = (decided != RIGHT) & (decided != NOT_DECIDED)

    def _check(self, rows: np.ndarray, what: str, bottom: list[Blob], index: int) -> None:
        """Raise LayerError for a row whose numbers cannot be those of a box."""
        param = self.param.detection_evaluate_param
        wrong = ~np.isin(rows[:, 1], self.classes)
        if wrong.any():
            label = rows[wrong][0, 1]
            is_background = label == param.background_label_id
            raise self.error(
                f"needs a class from 0 to {param.num_classes - 1}, not the background, for each "
                f"{what}, found {'the background ' if is_background else ''}{label:g} in bottom "
                f"{describe(self, bottom, index)}"
            )
        wrong = np.isnan(rows).any(axis=1)
        if wrong.any():
            numbers = ", ".join(f"{value:g}" for value in rows[wrong][0])
            raise self.error(
                f"a {what} of bottom {describe(self, bottom, index)} is not a number: {numbers}"
            )

    def _scale(self, found: np.ndarray, boxes: np.ndarray, inputs: np.ndarray | None) -> None:
        """Turn both kinds of boxes into pixels of their images.

        ``inputs`` has the inputs' heights and widths, if boxes are in pixels of them.
        """
        assert self._sizes is not None
        in_batch = np.concatenate([found[:, 0], boxes[:, 0]]).astype(int)
        if in_batch.min(initial=0) < 0:
            raise self.error(f"needs numbers of images from 0 on, found {in_batch.min()}")
        # A batch may end with images that have neither detections nor boxes.
        size = max(self._numbers.size, 1 + int(in_batch.max(initial=0)))
        numbers = self._numbers.next_batch(size)[in_batch]
        sizes = self._sizes[numbers % len(self._sizes)]
        of_found, of_boxes = np.split(sizes, [len(found)])
        if inputs is None:
            found[:, 3:7] = in_pixels(found[:, 3:7], of_found, self._resize)
            boxes[:, 3:7] = in_pixels(boxes[:, 3:7], of_boxes, self._resize)
        else:
            inputs = inputs.reshape(-1, 2)
            if in_batch.max(initial=0) >= len(inputs):
                raise self.error(
                    f"found image {in_batch.max()}, but sizes of {len(inputs)} inputs only"
                )
            parts = (found, boxes), (of_found, of_boxes), np.split(in_batch, [len(found)])
            for rows, own_sizes, own in zip(*parts):
                rows[:, 3:7] *= np.tile((own_sizes / inputs[own])[:, ::-1], 2)
        # The fork's pixels have a width: boxes from 0 to 0 are 1 wide.
        found[:, 5:7] += 1
        boxes[:, 5:7] += 1

    def state(self) -> dict[str, Any]:
        """The place in the file of images' sizes."""
        file = self.param.detection_evaluate_param.name_size_file
        return self._numbers.state() if file else {}

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        """Continue after the images that the ranks of an earlier run have had."""
        self._numbers.restore(states)
