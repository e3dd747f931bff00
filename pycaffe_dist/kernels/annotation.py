"""Boxes of annotated records: their wire format, crops of images with boxes, and random crops.

Each runs in one thread, because reader threads call it beside the training threads.  A box is a row
of float32 numbers; its corners are fractions of the image's width and height.
"""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels.compiling import copy_values, jit
from pycaffe_dist.kernels.datum import (
    BYTES,
    FIXED32,
    VARINT,
    float_at,
    int32,
    next_field,
    parse_datum,
)
from pycaffe_dist.kernels.datum import COLUMNS as DATUM_COLUMNS

# Columns of the table that `parse_annotated` fills, after those of a Datum: the number of boxes,
# and the type of annotation (or `NO_TYPE`).
BOXES, TYPE, COLUMNS = DATUM_COLUMNS, DATUM_COLUMNS + 1, DATUM_COLUMNS + 2
NO_TYPE = -1
# Columns of a box.
GROUP, INSTANCE, X1, Y1, X2, Y2, DIFFICULT, BOX_COLUMNS = range(8)
# Which boxes stay when an image is cropped: all that the crop touches, those whose centre it has,
# or those of which it covers more than a share.
TOUCHED, CENTER, COVERED = range(3)
# Resize modes, numbered as in caffe.proto.
WARP, FIT_SMALL, FIT_LARGE = 1, 2, 3
# Columns of a sampler: trials, the most crops that it gives, the ranges of scale and aspect ratio,
# and the lower and upper bounds (or NaN) of overlap, share of the crop and share of the box.
TRIALS, MOST, SCALE, RATIO, BOUNDS, SAMPLER_COLUMNS = 0, 1, 2, 4, 6, 12

# Field numbers of caffe.proto's AnnotatedDatum, AnnotationGroup, Annotation and NormalizedBBox.
_DATUM, _TYPE, _GROUPS = 1, 2, 3
_GROUP_LABEL, _ANNOTATIONS = 1, 2
_INSTANCE, _BBOX = 1, 2
_FIRST_CORNER, _LAST_CORNER, _DIFFICULT = 1, 4, 6


@jit
def _parse_bbox(buffer, at, end, box):
    word = np.empty(1, np.uint32)
    while at < end:
        number, wire_type, value, payload, at = next_field(buffer, at, end)
        if at < 0:
            return False
        if wire_type == FIXED32 and _FIRST_CORNER <= number <= _LAST_CORNER:
            box[X1 + number - _FIRST_CORNER] = float_at(buffer, payload, word)
        elif wire_type == VARINT and number == _DIFFICULT:
            box[DIFFICULT] = value != 0
    return True


@jit
def _parse_box(buffer, at, end, box):
    box[:] = 0
    while at < end:
        number, wire_type, value, payload, at = next_field(buffer, at, end)
        if at < 0:
            return False
        if wire_type == VARINT and number == _INSTANCE:
            box[INSTANCE] = int32(value)
        is_bbox = wire_type == BYTES and number == _BBOX
        if is_bbox and not _parse_bbox(buffer, payload, payload + value, box):
            return False
    return True


@jit
def _parse_group(buffer, at, end, boxes, count):
    """Parse a group's boxes to the rows from ``count`` on; return the next row's number or -1."""
    spare = np.empty(BOX_COLUMNS, boxes.dtype)
    label, first = 0, count
    while at < end:
        number, wire_type, value, payload, at = next_field(buffer, at, end)
        if at < 0:
            return -1
        if wire_type == VARINT and number == _GROUP_LABEL:
            label = int32(value)
        elif wire_type == BYTES and number == _ANNOTATIONS:
            box = boxes[count] if count < len(boxes) else spare
            if not _parse_box(buffer, payload, payload + value, box):
                return -1
            count += 1
    boxes[first:count, GROUP] = label
    return count


@jit
def copy_boxes(buffer: np.ndarray, start: int, size: int, boxes: np.ndarray) -> int:
    """Copy the boxes of the AnnotatedDatum at ``start`` to ``boxes``; return their number or -1.

    ``boxes`` (n, BOX_COLUMNS) may have too few rows; -1 stands for a malformed message.
    """
    at, end, count = start, start + size, 0
    while at < end:
        number, wire_type, value, payload, at = next_field(buffer, at, end)
        if at < 0:
            return -1
        if number == _GROUPS and wire_type == BYTES:
            count = _parse_group(buffer, payload, payload + value, boxes, count)
            if count < 0:
                return -1
    return count


@jit
def _parse(buffer, start, size, row):
    """Parse an AnnotatedDatum into ``row``; returns whether it is well formed and has a Datum."""
    at, end, found = start, start + size, False
    row[:] = 0
    row[TYPE] = NO_TYPE
    while at < end:
        number, wire_type, value, payload, at = next_field(buffer, at, end)
        if at < 0:
            return False
        if number == _DATUM and wire_type == BYTES:
            found = True
            if not parse_datum(buffer, payload, payload + value, row):
                return False
        elif number == _TYPE and wire_type == VARINT:
            row[TYPE] = int32(value)
    row[BOXES] = copy_boxes(buffer, start, size, np.empty((0, BOX_COLUMNS), np.float32))
    return found and row[BOXES] >= 0


@jit
def parse_annotated(buffer: np.ndarray, values: np.ndarray, table: np.ndarray) -> int:
    """Parse AnnotatedDatums into ``table``, like `parse_datums`; returns the first bad one, or n.

    ``table`` is (n, COLUMNS) int64; its first columns hold the Datums.
    """
    for i in range(len(values)):
        if not _parse(buffer, values[i, 0], values[i, 1], table[i]):
            return i
    return len(values)


@jit
def _area(box):
    width, height = box[2] - box[0], box[3] - box[1]
    return width * height if width >= 0 and height >= 0 else np.float32(0)


@jit
def _common_area(one, other):
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return width * height if width > 0 and height > 0 else np.float32(0)


@jit
def _stays(corners, frame, rule, share):
    if rule == CENTER:
        x, y = (corners[0] + corners[2]) / 2, (corners[1] + corners[3]) / 2
        return frame[0] <= x <= frame[2] and frame[1] <= y <= frame[3]
    if rule == COVERED:
        common = _common_area(corners, frame)
        covered = common / _area(corners) if common > 0 else np.float32(0)
        return covered > share
    return True


@jit
def crop_boxes(boxes: np.ndarray, frame: np.ndarray, rule: int, share: float) -> np.ndarray:
    """Return the boxes that stay when an image is cropped to ``frame``, relative to it.

    ``frame`` (x1, y1, x2, y2) float32 may reach beyond the image.  ``rule`` says which boxes stay;
    ``share`` is the least share that COVERED asks for.  Boxes are clipped to the crop; those
    without an area are left out.
    """
    kept, count = np.empty_like(boxes), 0
    one, zero = np.float32(1), np.float32(0)
    for i in range(len(boxes)):
        box = boxes[i]
        corners = box[X1 : Y2 + 1]
        if not _stays(corners, frame, rule, share):
            continue
        to = kept[count]
        copy_values(box, to)
        for k in range(4):
            near = frame[k & 1]
            place = (corners[k] - near) / (frame[(k & 1) + 2] - near)
            to[X1 + k] = max(min(place, one), zero)
        inside = corners[0] < frame[2] and corners[2] > frame[0]
        inside = inside and corners[1] < frame[3] and corners[3] > frame[1]
        if inside and _area(to[X1 : Y2 + 1]) > 0:
            count += 1
    return kept[:count]


@jit
def _stretch(low, high, old, new, padding):
    """Return a box's range in an image resized from ``old`` to ``new`` pixels with its padding."""
    extent = new - np.float32(2) * padding
    low, high = low * old * extent / old, high * old * extent / old
    return (padding + max(np.float32(0), low)) / new, (padding + min(new, high)) / new


@jit
def resize_boxes(boxes: np.ndarray, old: tuple, new: tuple, mode: int) -> np.ndarray:
    """Return the boxes in an image resized from ``old`` to ``new`` (height, width), as in SSD.

    With FIT_LARGE the image keeps its aspect ratio and is padded: boxes by the exact padding, not
    by the image's, which is a whole number.  FIT_SMALL gives an image that covers ``new``.
    """
    height, width = np.float32(new[0]), np.float32(new[1])
    old_height, old_width = np.float32(old[0]), np.float32(old[1])
    ratio, wanted = old_width / old_height, width / height
    pad_y = pad_x = np.float32(0)
    if mode == FIT_LARGE and ratio > wanted:
        pad_y = (height - width / ratio) / np.float32(2)
    elif mode == FIT_LARGE:
        pad_x = (width - ratio * height) / np.float32(2)
    elif mode == FIT_SMALL and ratio < wanted:
        height = width / ratio
    elif mode == FIT_SMALL:
        width = ratio * height
    moved = boxes.copy()
    for i in range(len(boxes)):
        box, to = boxes[i], moved[i]
        to[X1], to[X2] = _stretch(box[X1], box[X2], old_width, width, pad_x)
        to[Y1], to[Y2] = _stretch(box[Y1], box[Y2], old_height, height, pad_y)
    return moved


@jit
def _draw_crop(sampler, draws, crop):
    """Set ``crop`` (x1, y1, x2, y2) by four numbers in [0, 1)."""
    scale = sampler[SCALE] + draws[0] * (sampler[SCALE + 1] - sampler[SCALE])
    ratio = sampler[RATIO] + draws[1] * (sampler[RATIO + 1] - sampler[RATIO])
    square = scale * scale
    ratio = min(max(ratio, square), np.float32(1) / square)
    width, height = scale * np.sqrt(ratio), scale / np.sqrt(ratio)
    crop[0], crop[1] = draws[2] * (1 - width), draws[3] * (1 - height)
    crop[2], crop[3] = crop[0] + width, crop[1] + height


@jit
def _fits(crop, boxes, bounds):
    """Return whether a box meets the first of the bounds that are given, as in SSD."""
    for kind in range(3):
        low, high = bounds[2 * kind], bounds[2 * kind + 1]
        if np.isnan(low) and np.isnan(high):
            continue
        for i in range(len(boxes)):
            corners = boxes[i, X1 : Y2 + 1]
            common = _common_area(crop, corners)
            value = np.float32(0)
            if common > 0:
                total = _area(crop) if kind == 1 else _area(corners)
                if kind == 0:
                    total += _area(crop) - common
                value = common / total
            if not value < low and not value > high:
                return True
        return False
    return True


@jit
def sample_crops(samplers: np.ndarray, boxes: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return crops (n, 4) of an image with ``boxes``: those trials that meet a sampler's bounds.

    ``samplers`` (s, SAMPLER_COLUMNS) float32; ``draws`` (t, 4) has random numbers in [0, 1) for all
    trials.  A sampler with several kinds of bounds tests the first kind only, as in SSD, where a
    box that fails at a later kind has already been counted.
    """
    crops, count, trial = np.empty_like(draws), 0, 0
    for s in range(len(samplers)):
        sampler, found = samplers[s], 0
        end = trial + int(sampler[TRIALS])
        while trial < end and found < sampler[MOST]:
            _draw_crop(sampler, draws[trial], crops[count])
            trial += 1
            if _fits(crops[count], boxes, sampler[BOUNDS:]):
                found += 1
                count += 1
        trial = end
    return crops[:count]
