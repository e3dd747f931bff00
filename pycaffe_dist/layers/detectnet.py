"""DetectNet's transformation: augmented images, and grids of the objects in them."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.errors import DataError
from pycaffe_dist.kernels import dry_run
from pycaffe_dist.kernels.coverage import CLASSES, Grid, cover
from pycaffe_dist.layers.base import Arity, Layer, Need, is_test, register
from pycaffe_dist.layers.checking import describe, require_same_batch
from pycaffe_dist.log import logger
from pycaffe_dist.schema import caffe_pb2

_GroundTruth = caffe_pb2.DetectNetGroundTruthParameter
# A row of labels has so many numbers; the first one of an image is a head.
COLUMNS, KIND = 16, 5


@register("DetectNetTransformation")
class DetectNetTransformation(Layer):
    """Images with random changes, and a grid of the objects that cover its cells (DetectNet).

    Bottoms: images (N, 3, H, W) and labels (N, 1, rows, 16).  An image's first row has the number
    of its objects and 16; each other row x, y, width, height, angle, class, and ten numbers that
    are not read.  Tops: images (N, 3, image_size_y, image_size_x), and (N, 8 + classes, rows,
    columns) by cells: covered, the box's corners from the cell's first pixel on, 1 / width,
    1 / height, 1 / covered cells, and each class.  In the TEST phase images are only scaled.

    Follows NVIDIA/caffe on the CPU: on a GPU, where the fork mixes up hues and interpolates in
    another way, it computes the same on the host.  A mean_file is scaled to the images; of
    transform_param nothing else but mean_value has an effect.
    """

    host_only = True
    bottoms, tops = Arity(2, 2), Arity(2, 2)
    has_backward = False
    backward_needs_bottom = Need.NONE

    def is_exact(self, top_index: int) -> bool:
        return top_index == 1

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        param = self.param.detectnet_groundtruth_param
        self._check_options(param)
        at_least = param.gridbox_type == _GroundTruth.GRIDBOX_MIN
        self._size = param.image_size_x, param.image_size_y
        self._grid = Grid(
            param.stride,
            *self._size,
            param.scale_cvg,
            param.min_cvg_len if at_least else param.max_cvg_len,
            at_least,
            param.crop_bboxes,
            param.obj_norm,
        )
        # Halves round to the even number, as in OpenCV.
        inverse = np.float32(1 / param.stride)
        self._cells = [int(np.rint(np.float32(size) * inverse)) for size in self._size]
        self._kinds = {kind.src: kind.dst for kind in param.object_class} or {1: 0}
        self._mean = self._read_mean()
        self.random = self.rng("augmentation")

    def _check_options(self, param: caffe_pb2.DetectNetGroundTruthParameter) -> None:
        for name in ("stride", "image_size_x", "image_size_y"):
            if getattr(param, name) < 1:
                raise self.error(f"needs {name} of at least 1, found {getattr(param, name)}")
        if not 0 <= param.scale_cvg < np.inf:
            raise self.error(f"needs scale_cvg of at least 0, found {param.scale_cvg:g}")
        change = self.param.detectnet_augmentation_param
        if not 0 < change.scale_min <= change.scale_max < np.inf:
            raise self.error(
                "needs scale_min above 0 and scale_max of at least scale_min, found "
                f"{change.scale_min:g} and {change.scale_max:g}"
            )
        unread = [
            field.name
            for field, _ in self.param.transform_param.ListFields()
            if field.name not in ("mean_file", "mean_value")
        ]
        if unread:
            logger.warning("Layer '%s' takes no notice of %s", self.name, ", ".join(unread))

    def _read_mean(self) -> np.ndarray:
        """Return the mean, an image (h, w, 3) or one number of each channel."""
        from pycaffe_dist.schema.binary import blob_to_array, read_blob

        param = self.param.transform_param
        if param.HasField("mean_file"):
            mean = blob_to_array(read_blob(param.mean_file))
            if mean.size == 0 or mean.ndim < 3 or mean.size != 3 * np.prod(mean.shape[-2:]):
                raise self.error(
                    f"needs one image of 3 channels in mean_file '{param.mean_file}', found "
                    f"{mean.shape}"
                )
            image = mean.reshape(mean.shape[-3:]).transpose(1, 2, 0)
            return np.ascontiguousarray(image, self.context.parameter_dtype)
        if len(param.mean_value) not in (0, 1, 3):
            raise self.error(f"needs 1 or 3 mean_value, found {len(param.mean_value)}")
        values = np.array(param.mean_value or [0.0], self.context.parameter_dtype)
        return np.broadcast_to(values, 3)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        require_same_batch(self, bottom, 0, 1)
        if bottom[0].ndim != 4 or bottom[0].shape[1] != 3:
            raise self.error(f"needs images (N, 3, H, W), found {describe(self, bottom, 0)}")
        if bottom[1].ndim != 4 or bottom[1].shape[1] != 1 or bottom[1].shape[3] != COLUMNS:
            raise self.error(
                f"needs labels (N, 1, rows, {COLUMNS}), found {describe(self, bottom, 1)}"
            )
        images, classes = bottom[0].shape[0], 1 + max(self._kinds.values())
        top[0].reshape(images, 3, *self._size[::-1])
        top[1].reshape(images, CLASSES + classes, *self._cells[::-1])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        dtype = self.context.parameter_dtype
        images, labels = (blob.read_data().astype(dtype, copy=False) for blob in bottom)
        labels = labels[:, 0]
        kinds = np.full((len(labels), max(0, labels.shape[1] - 1)), -1, np.int32)
        boxes = np.ascontiguousarray(labels[:, 1:, :4])
        if dry_run.active() is None:  # else there are no values
            self._read_kinds(labels, kinds)
            boxes = self._change(images, boxes, top[0])
        cover(boxes, kinds, self._grid, top[1].data)

    def _change(self, images: np.ndarray, boxes: np.ndarray, top: Blob) -> np.ndarray:
        """Set the images of the top; return their boxes."""
        from pycaffe_dist.data import scenes

        height, width = images.shape[2:]
        if is_test(self.phase):
            changes = scenes.no_changes(len(images), self._size)
        else:
            draws = self.random.random((len(images), scenes.DRAWS))
            param = self.param.detectnet_augmentation_param
            changes = scenes.random_changes(param, draws, (width, height), self._size)
        try:
            mean = scenes.scaled_mean(self._mean, (width, height))
            scenes.changed_images(images, changes, mean, top.data)
        except DataError as error:
            raise self.error(str(error)) from error
        return scenes.changed_boxes(boxes, changes, (width, height))

    def _read_kinds(self, labels: np.ndarray, kinds: np.ndarray) -> None:
        """Set each object's class of the grid, or -1; raise LayerError for a wrong label."""
        rows, heads = kinds.shape[1], labels[:, 0, :2]
        right = (heads[:, 1] == COLUMNS) & (heads[:, 0] >= 0) & (heads[:, 0] <= rows)
        wrong = np.flatnonzero(~right)
        if wrong.size:
            count, columns = heads[wrong[0]]
            raise self.error(
                f"needs labels that begin with at most {rows} objects of {COLUMNS} numbers, found "
                f"{count:g} of {columns:g} in image {wrong[0]}"
            )
        there = np.arange(rows) < heads[:, :1].astype(np.int64)
        found = labels[:, 1:]
        broken = np.argwhere(there & ~np.isfinite(found[:, :, : KIND + 1]).all(axis=2))
        if broken.size:
            n, row = broken[0]
            raise self.error(f"needs finite numbers, found others in object {row} of image {n}")
        numbers = np.where(there, found[:, :, KIND], -1)
        for source, goal in self._kinds.items():
            kinds[np.trunc(numbers) == source] = goal
