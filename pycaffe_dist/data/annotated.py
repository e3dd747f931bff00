"""Images with boxes: AnnotatedDatums, their random crops, and batches of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pycaffe_dist.data.colors import through_jpeg
from pycaffe_dist.data.datums import DatumReader, Datums, Shape
from pycaffe_dist.data.decoders import Decoders
from pycaffe_dist.data.image_changes import ImageChanges, plain_opencv
from pycaffe_dist.data.loader import DatumLoader, Tops
from pycaffe_dist.data.prefetch import new_tops
from pycaffe_dist.data.sources import Source
from pycaffe_dist.data.transformer import Transformer
from pycaffe_dist.errors import DataError
from pycaffe_dist.kernels import annotation
from pycaffe_dist.kernels.annotation import BOX_COLUMNS, BOXES, NO_TYPE, TYPE, X1, X2, Y2
from pycaffe_dist.kernels.datum import ENCODED, LABEL
from pycaffe_dist.kernels.transform import crop_place
from pycaffe_dist.schema import caffe_pb2

_BOUNDS = ("jaccard_overlap", "sample_coverage", "object_coverage")


class Emission(NamedTuple):
    """Which boxes stay when an image is cropped: arguments of `kernels.annotation.crop_boxes`."""

    rule: int
    share: float

    @classmethod
    def of(cls, param: caffe_pb2.TransformationParameter) -> Emission:
        """Return the rule of a ``transform_param``."""
        if not param.HasField("emit_constraint"):
            return cls(annotation.TOUCHED, 0.0)
        constraint = param.emit_constraint
        center = constraint.emit_type == caffe_pb2.EmitConstraint.CENTER
        return cls(annotation.CENTER if center else annotation.COVERED, constraint.emit_overlap)


def sampler_table(samplers: Sequence[caffe_pb2.BatchSampler]) -> np.ndarray:
    """Return BatchSamplers as rows for `sample_crops`; raises `DataError` for impossible ones."""
    table = np.full((len(samplers), annotation.SAMPLER_COLUMNS), np.nan, np.float32)
    for row, param in zip(table, samplers):
        ranges = param.sampler
        scale = ranges.min_scale, ranges.max_scale
        ratio = ranges.min_aspect_ratio, ranges.max_aspect_ratio
        if not 0 < scale[0] <= scale[1] <= 1:
            raise DataError(
                f"a batch_sampler needs 0 < min_scale <= max_scale <= 1, found {scale[0]:g} and "
                f"{scale[1]:g}"
            )
        if not 0 < ratio[0] <= ratio[1] < np.inf:
            raise DataError(
                f"a batch_sampler needs 0 < min_aspect_ratio <= max_aspect_ratio, found "
                f"{ratio[0]:g} and {ratio[1]:g}"
            )
        row[annotation.TRIALS] = param.max_trials
        row[annotation.MOST] = param.max_sample if param.HasField("max_sample") else np.inf
        row[annotation.SCALE : annotation.BOUNDS] = *scale, *ratio
        for k, name in enumerate(f"{end}_{kind}" for kind in _BOUNDS for end in ("min", "max")):
            if param.sample_constraint.HasField(name):
                row[annotation.BOUNDS + k] = getattr(param.sample_constraint, name)
    return table[[param.use_original_image for param in samplers]]


class Augmentation:
    """Changes images and their boxes together: distorts, expands, crops at random, resizes.

    As in weiliu89/caffe, an image that was encoded goes through a JPEG file after each of the first
    three steps.  One of the crops that the ``samplers`` give is chosen; without any the image stays
    whole.  Random choices depend on the image's stream index only.
    """

    def __init__(self, changes: ImageChanges, emission: Emission, samplers: np.ndarray):
        self.changes, self.emission = changes, emission
        self._samplers = samplers

    def image(
        self, image: np.ndarray, boxes: np.ndarray, index: int, encoded: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the changed image (C, H, W) and its boxes; raises `DataError`."""
        changes, rng = self.changes, self.changes.rng(index)
        pixels = np.ascontiguousarray(image.transpose(1, 2, 0))
        with plain_opencv():
            if changes.distortion is not None:
                pixels = changes.distortion.image(pixels, rng)
                pixels = through_jpeg(pixels) if encoded else pixels
            if changes.expansion is not None:
                size = pixels.shape[:2]
                canvas = changes.expansion.draw(size, rng)
                if canvas is not None:
                    pixels = changes.expansion.image(pixels, canvas)
                    pixels = through_jpeg(pixels) if encoded else pixels
                    boxes = annotation.crop_boxes(boxes, canvas.frame(size), *self.emission)
            frame = self._sample(boxes, rng)
            if frame is not None:
                pixels = _part(pixels, frame)
                pixels = through_jpeg(pixels) if encoded else pixels
                boxes = annotation.crop_boxes(boxes, frame, *self.emission)
            old = pixels.shape[:2]
            pixels = changes.finished(pixels, rng)
        if changes.resizing is not None:
            wanted = changes.resizing.wanted
            boxes = annotation.resize_boxes(boxes, old, wanted, changes.resizing.mode)
        return pixels.transpose(2, 0, 1), boxes

    def _sample(self, boxes: np.ndarray, rng: np.random.Generator) -> np.ndarray | None:
        """Return a crop (x1, y1, x2, y2), None if there is none."""
        if not len(self._samplers):
            return None
        trials = int(self._samplers[:, annotation.TRIALS].sum())
        crops = annotation.sample_crops(
            self._samplers, boxes, rng.random((trials, 4), dtype=np.float32)
        )
        if not len(crops):
            return None
        return np.clip(crops[rng.integers(len(crops))], 0, 1)


def _part(pixels: np.ndarray, frame: np.ndarray) -> np.ndarray:
    """Return the whole pixels of a crop, at least one."""
    sides = np.array(pixels.shape[1::-1] * 2, np.float32)
    corners = frame * sides
    left, top = np.minimum(corners[:2].astype(int), sides[:2].astype(int) - 1).tolist()
    width, height = np.maximum((corners[2:] - corners[:2]).astype(int), 1).tolist()
    return np.ascontiguousarray(pixels[top : top + height, left : left + width])


class AnnotatedReader(DatumReader):
    """Reads AnnotatedDatums; ``boxes`` has those of the images that are decoded, by stream index.

    Images and boxes are changed by the ``augmentation``.  If ``typed`` is set, all records must say
    that they have boxes.
    """

    _columns = annotation.COLUMNS
    _called = "an AnnotatedDatum"

    def __init__(
        self, source: Source, color: bool | None, decoders: Decoders, augmentation: Augmentation
    ):
        super().__init__(source, color, decoders, augmentation.changes)
        self.boxes: dict[int, np.ndarray] = {}
        self.typed = False
        self._augmentation = augmentation

    def image(self, datums: Datums, i: int) -> np.ndarray:
        """Decode and change record ``i`` and its boxes; raises `DataError`."""
        here = datums.index(i)

        def item_at(index: int) -> tuple[np.ndarray, np.ndarray, int]:
            if index == here:
                return self._item(datums, i)
            return self._item(self._read(self._source.cursor(), index, 1, 1), 0)

        image, self.boxes[here], datums.table[i, LABEL] = self._decoders.first_good(item_at, here)
        return image

    def _item(self, datums: Datums, i: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Return the image, boxes and label of a record, changed."""
        image, boxes = self._unchanged(datums, i), self._boxes(datums, i)
        encoded = bool(datums.table[i, ENCODED] == 1)
        try:
            image, boxes = self._augmentation.image(image, boxes, datums.index(i), encoded)
        except DataError as error:
            raise DataError(f"{self.describe(datums, i)}: {error}") from error
        return image, boxes, datums.label(i)

    def _boxes(self, datums: Datums, i: int) -> np.ndarray:
        found = int(datums.table[i, TYPE])
        if self.typed and found != caffe_pb2.AnnotatedDatum.BBOX:
            kind = "no type" if found == NO_TYPE else f"type {found}"
            raise DataError(f"{self.describe(datums, i)} should have type BBOX, found {kind}")
        boxes = np.empty((datums.table[i, BOXES], BOX_COLUMNS), np.float32)
        annotation.copy_boxes(datums.records.buffer, *datums.records.values[i], boxes)
        finite = np.isfinite(boxes).all(axis=1)
        if not finite.all():
            raise DataError(
                f"{self.describe(datums, i)} has a box whose corners are no numbers: "
                f"{boxes[~finite][0, X1 : Y2 + 1]}"
            )
        return boxes

    def _parse_records(self, buffer: np.ndarray, values: np.ndarray, table: np.ndarray) -> int:
        return annotation.parse_annotated(buffer, values, table)


class AnnotatedLoader(DatumLoader):
    """Loads batches of images and boxes, or of images and labels; arguments as for `DatumLoader`.

    Tops are images (n, C, h, w) and, with ``labels``, boxes (1, 1, boxes in the batch, 8): the
    image's number in the batch, group label, instance, x1, y1, x2, y2, difficult; one row of -1
    stands for no box.  Records without a type have labels (n, 1, 1, 1) instead, unless ``typed``.
    """

    label_axes = (1, 1, 1)
    _reader: AnnotatedReader

    def __init__(self, *wanted: Any, augmentation: Augmentation, typed: bool):
        self._augmentation = augmentation
        # The rows of boxes of finished images, by stream index.
        self._rows: dict[int, np.ndarray] = {}
        super().__init__(*wanted)
        first = self._held[1].table[0]
        self._boxed = self._labels and (typed or first[TYPE] != NO_TYPE)
        self._labels = self._labels and not self._boxed
        self._reader.typed = self._boxed
        self._first_boxes = max(1, int(first[BOXES]))

    def top_shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of a batch's tops, expected from the first record."""
        shapes = super().top_shapes()
        return [*shapes, (1, 1, self._first_boxes, 1 + BOX_COLUMNS)] if self._boxed else shapes

    def varying(self, number: int) -> list[np.ndarray]:
        """Return the boxes of a batch that has been loaded."""
        if not self._boxed:
            return []
        rows = []
        for index in self._indices(number).tolist():
            rows.append(self._rows.pop(index))
            del self._reader.boxes[index]
        counts = [len(boxes) for boxes in rows]
        (top,) = new_tops([(1, 1, max(1, sum(counts)), 1 + BOX_COLUMNS)], self.dtype)
        if sum(counts):
            top[..., 0] = np.repeat(np.arange(len(rows)), counts)
            top[..., 1:] = np.concatenate(rows)
        else:
            top.fill(-1)
        return [top]

    def load_other(self, number: int) -> list[np.ndarray]:
        """Return new tops with batch ``number``, whose images may be of any one shape."""
        return super().load_other(number) + self.varying(number)

    def _make_reader(self, source: Source, transformer: Transformer) -> AnnotatedReader:
        return AnnotatedReader(source, transformer.color, self._decoders, self._augmentation)

    def _fill_encoded(self, datums: Datums, i: int, to: Tops) -> bool:
        index = datums.index(i)
        if index not in self._reader.boxes:
            datums.images.pop(index, None)  # its boxes have gone to an earlier batch
        fits = super()._fill_encoded(datums, i, to)
        if fits and self._boxed:
            self._rows[index] = self._finished(self._reader.boxes[index], to.shape, index)
        return fits

    def _finished(self, boxes: np.ndarray, shape: Shape, index: int) -> np.ndarray:
        """Return the boxes in the crop of an image, mirrored if it is."""
        size, crop = shape[1:], self._transformer.output_shape(shape)[1:]
        key, train, mirror = self._transformer.drawing
        top, left, mirrored = crop_place(size, crop, key, index, train, mirror)
        corners = np.array([left, top, left + crop[1], top + crop[0]], np.float32)
        frame = corners / np.array([*size[::-1], *size[::-1]], np.float32)
        boxes = annotation.crop_boxes(boxes, frame, *self._augmentation.emission)
        if mirrored:
            boxes[:, [X1, X2]] = 1 - boxes[:, [X2, X1]]
        return boxes
