"""DetectionOutput: boxes and classes that a net detects in images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.kernels import dry_run
from pycaffe_dist.kernels.boxes import CORNER, decode_boxes
from pycaffe_dist.kernels.detection import Choice, NotANumber, detections
from pycaffe_dist.layers.base import Arity, Layer, Need, register
from pycaffe_dist.layers.checking import describe, require_same_batch
from pycaffe_dist.layers.detection_files import FORMATS, DetectionFiles
from pycaffe_dist.layers.image_numbers import ImageNumbers
from pycaffe_dist.log import logger
from pycaffe_dist.schema import caffe_pb2


@register("DetectionOutput")
class DetectionOutput(Layer):
    """The boxes that stay of all predicted ones, by confidence and non-maximum suppression.

    Bottoms: locations (N, P·4·L), confidences (N, P·classes) and priors (1, 2, 4·P) as PriorBox
    makes them; L is 1, or the number of classes without share_location.  The top is (1, 1, K, 7),
    rows of image, class, confidence, x1, y1, x2, y2 by image, class and falling confidence;
    without any detection (1, 1, N, 7), an image and -1s in each row.  K is known in forward only.
    With save_output_param the detections of all images go to files (see `DetectionFiles`); on
    several ranks whoever runs the net brings them together.  Follows weiliu89/caffe; works with
    background_label_id -1, too, where the fork stops.  It does not draw (visualize) and takes no
    notice of a fourth bottom, the images.

    With objectness_score or five bottoms the last ones are the predictions of a first stage, as in
    sfzhang15/RefineDet: probabilities (N, P·2) of nothing and something, and offsets (N, P·4) that
    move the priors.  Where the second probability is below objectness_score, the confidence of
    class 0 is 1, of the others 0.
    """

    # The number of detections is needed on the host, and most of the work is in few boxes.
    host_only = True
    bottoms = Arity(3, 5)
    has_backward = False
    backward_needs_bottom = Need.NONE
    exact = True  # numbers of images, corners

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.detection_output_param
        if param.num_classes < 1:
            raise self.error("needs num_classes of at least 1")
        nms = param.nms_param
        if not nms.nms_threshold >= 0:
            raise self.error(f"needs nms_threshold of at least 0, found {nms.nms_threshold:g}")
        if not 0 < nms.eta <= 1:
            raise self.error(f"needs eta above 0 and at most 1, found {nms.eta:g}")
        if param.visualize:
            logger.warning("Layer '%s' does not draw: visualize is left out", self.name)
        has_least = param.HasField("confidence_threshold")
        self._choice = Choice(
            background=param.background_label_id,
            least_score=param.confidence_threshold if has_least else -math.inf,
            top_k=nms.top_k if nms.HasField("top_k") else -1,
            overlap=nms.nms_threshold,
            eta=nms.eta,
            most=param.keep_top_k,
        )
        self._classes = param.num_classes
        self.files = self._make_files(param)
        self._numbers = ImageNumbers(self.context.shard)
        self._locations = 1 if param.share_location else param.num_classes
        self._stages = param.HasField("objectness_score") or len(bottom) > 4
        if len(bottom) > 4 and not param.share_location:
            raise self.error("needs share_location: true with the offsets of a first stage")

    def _make_files(self, param: caffe_pb2.DetectionOutputParameter) -> DetectionFiles | None:
        """Return the files that the detections shall go to, if any."""
        save = param.save_output_param
        if not save.output_directory:
            return None
        for field in ("label_map_file", "name_size_file"):
            if not getattr(save, field):
                logger.warning(
                    "Layer '%s' writes no files to output_directory '%s': it needs a %s",
                    self.name,
                    save.output_directory,
                    field,
                )
                return None
        if save.output_format not in FORMATS:
            logger.warning(
                "Layer '%s' writes no files to output_directory '%s': output_format '%s' is none "
                "of %s",
                self.name,
                save.output_directory,
                save.output_format,
                ", ".join(FORMATS),
            )
            return None
        classes = [c for c in range(param.num_classes) if c != param.background_label_id]
        return DetectionFiles(save, classes, self.error)

    def open_files(self) -> None:
        if self.files is not None:
            self.files.open()

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        count = bottom[2].count // 8
        if bottom[2].shape != (1, 2, 4 * count):
            raise self.error(
                f"needs priors of shape (1, 2, 4·P), found bottom {describe(self, bottom, 2)}"
            )
        needs = {
            0: (4 * count * self._locations, f"4 numbers for each of {count} priors"),
            1: (count * self._classes, f"{self._classes} classes for each of {count} priors"),
        }
        if self._stages:
            needs[3] = 2 * count, f"2 probabilities for each of {count} priors"
            needs[4] = 4 * count, f"4 numbers for each of {count} priors"
        for index, (size, what) in needs.items():
            if index >= len(bottom):
                continue
            require_same_batch(self, bottom, 0, index)
            if bottom[index].count_of(1) != size:
                several = " and class" if not index and self._locations > 1 else ""
                raise self.error(
                    f"needs {what}{several}, {size} values per image, "
                    f"found bottom {describe(self, bottom, index)}"
                )
        self._priors = count
        # As many as can be said before forward.
        top[0].reshape(1, 1, bottom[0].shape[0], 7)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        images = bottom[0].shape[0]
        rows = self._detections(bottom)
        if not len(rows):
            logger.info("Couldn't find any detections")
            rows = np.full((images, 7), -1, self.context.dtype)
            rows[:, 0] = np.arange(images)
        top[0].reshape(1, 1, *rows.shape)
        top[0].data[...] = rows
        if self.files is not None and images and dry_run.active() is None:
            self.files.add(rows, self._numbers.next_batch(images))
            if self.context.shard.size == 1:
                self.files.write_complete()

    def _detections(self, bottom: list[Blob]) -> np.ndarray:
        """Return the rows of the top."""
        location, confidence, prior = (self._values(bottom, index) for index in range(3))
        images, count = len(location), self._priors
        priors = prior.reshape(2, count, 4)
        if dry_run.active() is None:  # else there are no values
            self._check_priors(priors[0])
        param = self.param.detection_output_param
        code = param.code_type, param.variance_encoded_in_target
        boxes, scores = priors[:1], confidence.reshape(images, count, self._classes)
        if self._stages and len(bottom) > 3:
            scores = self._likely(scores, self._values(bottom, 3))
        if len(bottom) > 4:
            offsets = self._values(bottom, 4).reshape(images, count, 1, 4)
            moved = np.empty((images, 1, count, 4), self.context.dtype)
            decode_boxes(offsets, priors[0], priors[1], *code, moved)
            boxes = moved[:, 0]
        numbers = location.reshape(images, count, self._locations, 4)
        try:
            return detections(scores, numbers, boxes, priors[1], *code, self._choice)
        except NotANumber as wrong:
            n, c, p = wrong.place
            raise self.error(
                f"confidence or box of image {n}, class {c}, prior {p} is not a number (bottoms "
                f"{describe(self, bottom, 0)} and {describe(self, bottom, 1)})"
            ) from None

    def _values(self, bottom: list[Blob], index: int) -> np.ndarray:
        return bottom[index].read_data().astype(self.context.dtype, copy=False)

    def _likely(self, scores: np.ndarray, chances: np.ndarray) -> np.ndarray:
        """Return scores (N, P, classes) in which priors that hold nothing are of class 0."""
        least = self.param.detection_output_param.objectness_score
        nothing = chances.reshape(*scores.shape[:2], 2)[:, :, 1] < least
        likely = scores.copy()
        likely[nothing] = np.arange(self._classes) == 0
        return likely

    def _check_priors(self, boxes: np.ndarray) -> None:
        """Raise LayerError if a box has no size and predictions are relative to the size."""
        if self.param.detection_output_param.code_type == CORNER:
            return
        wrong = np.flatnonzero(~(boxes[:, 2:] > boxes[:, :2]).all(axis=1))
        if wrong.size:
            raise self.error(
                f"needs priors wider and higher than 0 for this code_type, found "
                f"{boxes[wrong[0]].tolist()} at {wrong[0]}"
            )

    def state(self) -> dict[str, Any]:
        """The place in the file of images' names."""
        return {} if self.files is None else self._numbers.state()

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        """Continue after the images that the ranks of an earlier run have had."""
        self._numbers.restore(states)
