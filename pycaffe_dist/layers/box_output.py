"""BoxOutput and BoxGroupOutput: the best boxes of maps with a score and a move in every cell."""

from __future__ import annotations

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.kernels.proposals import best_boxes
from pycaffe_dist.layers.base import Arity, Constant, register
from pycaffe_dist.layers.box_regression import mean_and_std
from pycaffe_dist.layers.checking import describe, require_axes, require_finite
from pycaffe_dist.schema import caffe_pb2

# The only row if there is no box at all: image, x1, y1, x2, y2.
NO_BOX = (0, 1, 1, 10, 10)


class FieldOutput(Constant):
    """The base of both: a cell's box is its field, moved as predicted.

    Moves are shifts of the centre in sizes of the field, and logarithms of factors of its size.
    """

    host_only = True
    bottoms = Arity(1, None)
    tops = Arity(1, 2)
    options: caffe_pb2.BoxOutputParameter | caffe_pb2.BoxGroupOutputParameter
    # How far a box's upper edges lie beyond its corner: 1 if it includes the corner's pixel.
    border: int

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        if self.options.nms_type != "IOU":
            raise self.error(f"supports nms_type IOU only, found {self.options.nms_type}")
        if not (self.options.field_whr >= 1 and self.options.field_xyr > 0):
            raise self.error(
                "needs field_whr of at least 1 and field_xyr above 0, found "
                f"{self.options.field_whr:g} and {self.options.field_xyr:g}"
            )
        self._mean, self._std = mean_and_std(self)
        self._shape_tops(1, top)

    def _shape_tops(self, boxes: int, top: list[Blob]) -> None:
        for blob, columns in zip(top, (5, 6)):
            blob.reshape(boxes, columns, 1, 1)

    def centres_and_sizes(
        self, moves: np.ndarray, fields: np.ndarray, stride: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return both, (N, 2, H, W) with x before y, from moves (N, 4, H, W), fields (N, 2)."""
        # Moves may be views of a bottom.
        moves = moves * self._std[:, None, None] + self._mean[:, None, None]
        most, fields = 1 / self.options.field_xyr, fields[:, :, None, None].astype(moves.dtype)
        shift = np.clip(moves[:, :2], -most, most) * fields
        growth = np.log(moves.dtype.type(self.options.field_whr))
        height, width = moves.shape[2:]
        shift[:, 0] += (np.arange(width, dtype=moves.dtype) + moves.dtype.type(0.5)) * stride
        rows = np.arange(height, dtype=moves.dtype) + moves.dtype.type(0.5)
        shift[:, 1] += rows[:, None] * stride
        return shift, fields * np.exp(np.clip(moves[:, 2:], -growth, growth))

    def candidates(self, bottom: list[Blob]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return, for each map, edges (N, 4, cells) and scores (N, cells) of its boxes."""
        raise NotImplementedError

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        require_finite(self, bottom)
        maps = self.candidates(bottom)
        edges = np.concatenate([each[0] for each in maps], axis=2).transpose(0, 2, 1).copy()
        scores = np.concatenate([each[1] for each in maps], axis=1)
        size = edges[..., 2:] - edges[..., :2]
        scores[scores < self.options.fg_thr] = -np.inf
        scores[(size < self.options.min_size).any(axis=2)] = -np.inf
        number, cells = scores.shape
        limits = self.options.max_nms_num or cells, self.options.max_post_nms_num or cells
        image, chosen = best_boxes(edges, scores, *limits, self.options.iou_thr)
        rows = np.zeros((max(min(1, number), len(chosen)), 6), edges.dtype)
        if len(chosen):
            rows[:, 0], rows[:, 5] = image, scores[image, chosen]
            rows[:, 1:5] = edges[image, chosen] - [0, 0, self.border, self.border]
        self._shape_tops(len(rows), top)
        top[0].data[:, :, 0, 0] = rows[:, :5] if len(chosen) else NO_BOX
        if len(top) > 1:
            top[1].data[:, :, 0, 0] = rows


@register("BoxOutput")
class BoxOutput(FieldOutput):
    """The best boxes of maps with scores of classes and moves in every cell (zhaoweicai/mscnn).

    Bottoms: maps (N, classes + 4, H, W), for each a field_h, field_w and downsample_rate.  A box's
    score is that of its best class minus that of the background.  Tops: boxes (R, 5), rows of
    image, x1, y1, x2, y2, by image, the best first; the same with the score (R, 6).  Without any
    box there is one row.
    """

    border = 0

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.options = self.param.box_output_param
        fields = self.options.field_h, self.options.field_w, self.options.downsample_rate
        if any(len(each) != len(bottom) for each in fields):
            raise self.error(
                f"needs field_h, field_w and downsample_rate {len(bottom)} times, once for each "
                f"bottom, found {', '.join(str(len(each)) for each in fields)}"
            )
        super().setup(bottom, top)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        for index in range(len(bottom)):
            require_axes(self, bottom, index, 4)
            if bottom[index].shape[:2] != bottom[0].shape[:2] or bottom[index].shape[1] < 6:
                raise self.error(
                    "needs maps of one batch size with at least 2 classes and 4 moves, found "
                    f"bottom {describe(self, bottom, index)}"
                )

    def candidates(self, bottom: list[Blob]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Boxes that begin outside of the image move into it, and end at its border."""
        options, maps = self.options, []
        for blob, *field, stride in zip(
            bottom, options.field_w, options.field_h, options.downsample_rate
        ):
            x, (height, width) = blob.data, blob.shape[2:]
            centre, size = self.centres_and_sizes(x[:, -4:], np.array([field]), stride)
            low = np.maximum(centre - size / 2, 0)
            limit = np.array([width, height], x.dtype)[:, None, None] * stride
            edges = np.concatenate([low, low + np.minimum(size, limit - low)], axis=1)
            score, cells = x[:, 1:-4].max(axis=1) - x[:, 0], height * width
            maps.append((edges.reshape(len(x), 4, cells), score.reshape(len(x), cells)))
        return maps


@register("BoxGroupOutput")
class BoxGroupOutput(FieldOutput):
    """The best boxes of maps with probabilities and moves (zhaoweicai/cascade-rcnn).

    Bottoms, in pairs: probabilities of classes (N·fields, classes, H, W) and moves
    (N·fields, 4, H, W); for each pair a box_group_param with its fields.  A box's score is 1 minus
    the probability of the background.  Tops: boxes (R, 5), rows of image, x1, y1, x2, y2, by image,
    the best first; the same with the score (R, 6).  Without any box there is one row.
    """

    bottoms = Arity(2, None)
    border = 1

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.options = self.param.box_group_output_param
        groups = self.options.box_group_param
        if 2 * len(groups) != len(bottom):
            raise self.error(
                f"needs a box_group_param for each pair of bottoms, found {len(groups)} for "
                f"{len(bottom)} bottoms"
            )
        for group in groups:
            if not group.field_h or len(group.field_h) != len(group.field_w) or not group.stride:
                raise self.error("needs field_h, field_w equally often, and stride in each group")
        super().setup(bottom, top)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        images = bottom[0].shape[0] // len(self.options.box_group_param[0].field_h)
        for index, group in enumerate(self.options.box_group_param):
            first = 2 * index
            require_axes(self, bottom, first, 4)
            scores, moves = bottom[first].shape, bottom[first + 1].shape
            if moves != (images * len(group.field_h), 4, *scores[2:]) or moves[0] != scores[0]:
                raise self.error(
                    f"needs probabilities and 4 moves for {images} images · {len(group.field_h)} "
                    f"fields, found bottoms {describe(self, bottom, first)} and "
                    f"{describe(self, bottom, first + 1)}"
                )

    def candidates(self, bottom: list[Blob]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Boxes are cut at the borders of the image."""
        maps = []
        for index, group in enumerate(self.options.box_group_param):
            scores, moves = bottom[2 * index].data, bottom[2 * index + 1].data
            fields = np.column_stack([group.field_w, group.field_h])
            images, (height, width) = len(moves) // len(fields), moves.shape[2:]
            shape, cells = (images, len(fields), 4, height * width), len(fields) * height * width
            fields = np.tile(fields, (images, 1))
            centre, size = self.centres_and_sizes(moves, fields, group.stride)
            low, high = centre - size / 2, centre + size / 2
            limit = np.array([width, height], moves.dtype)[:, None, None] * group.stride
            edges = np.concatenate([np.maximum(low, 0), np.minimum(high, limit + 1)], axis=1)
            edges = edges.reshape(shape).transpose(0, 2, 1, 3).reshape(images, 4, cells)
            maps.append((edges, 1 - scores[:, 0].reshape(images, cells)))
        return maps
