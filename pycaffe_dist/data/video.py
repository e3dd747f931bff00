"""Segments of frames from videos whose frames are image files."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pycaffe_dist.data.decoders import Decoders
from pycaffe_dist.data.image import read_image
from pycaffe_dist.data.image_changes import ImageChanges
from pycaffe_dist.data.image_list import read_words
from pycaffe_dist.data.images import ImageLoader
from pycaffe_dist.data.order import Order
from pycaffe_dist.errors import DataError


class Video(NamedTuple):
    """A folder of frames, their number, the video's label, and its place in the list."""

    folder: str
    frames: int
    label: int
    place: str


def read_videos(file: str) -> list[Video]:
    """Return the videos that ``file`` lists as ``folder frames label``; raises `DataError`."""
    expected = "a folder, its number of frames and a label"
    videos = []
    for line in read_words(file, 3, expected):
        try:
            folder, frames, label = line.words[0], int(line.words[1]), int(line.words[2])
        except ValueError:
            frames = 0
        if frames < 1:
            raise DataError(f"{line.place}: expected {expected}, found '{' '.join(line.words)}'")
        videos.append(Video(folder, frames, label, line.place))
    return videos


class Segments(NamedTuple):
    """Which frames are read: ``length`` neighbouring ones from each of ``parts`` equal parts.

    In training they begin at a random frame of the part, else in its middle.
    """

    parts: int
    length: int
    train: bool

    def starts(self, frames: int, rng: np.random.Generator) -> list[int]:
        """Return the number of frames before each segment of a video with ``frames`` frames.

        In a video that is too short all segments begin with the first frame.
        """
        part = frames // self.parts
        free = part - self.length + 1
        if free < 1:
            return [0] * self.parts
        if not self.train:
            return [int(free / 2 + i * part) for i in range(self.parts)]
        return [int(rng.integers(free)) + i * part for i in range(self.parts)]


class FrameFiles(NamedTuple):
    """How frames are read: a ``pattern`` of C's printf names the files of a folder.

    With ``flow`` there are two gray files for each frame, with the letters x and y.
    """

    pattern: str
    flow: bool
    color: bool
    size: tuple[int, int]

    def read(self, folder: str, frame: int) -> list[np.ndarray]:
        """Return the images (C, H, W) of a frame, counted from 1; raises `DataError`."""
        wanted = [("x", frame), ("y", frame)] if self.flow else [(frame,)]
        try:
            names = [self.pattern % words for words in wanted]
        except (TypeError, ValueError) as error:
            raise DataError(f"name_pattern '{self.pattern}' names no file: {error}") from error
        color = self.color and not self.flow
        return [read_image(f"{folder}/{name}", color, *self.size) for name in names]


class VideoReader:
    """Reads the segments of the videos of a list, in an order; an image's channels are its frames'.

    Random choices depend on ``key`` and the video's stream index only.  ``changes`` are made to all
    frames alike.  If ``decoders`` skip bad videos, the next one takes a bad one's place.
    """

    def __init__(
        self,
        videos: list[Video],
        order: Order,
        segments: Segments,
        files: FrameFiles,
        key: int,
        decoders: Decoders,
        changes: ImageChanges | None,
    ):
        self.decoders = decoders
        self._videos, self._order, self._key = videos, order, key
        self._segments, self._files = segments, files
        self._changes = changes

    def read(self, index: int) -> tuple[np.ndarray, int]:
        """Return the frames (C, H, W) at stream ``index`` and their label; raises `DataError`."""
        return self.decoders.first_good(self._read, index)

    def describe(self, index: int) -> str:
        """Return the name and place of the video at stream ``index``."""
        video = self._videos[self._order.number(index)]
        return f"{video.place}: video '{video.folder}'"

    def _read(self, index: int) -> tuple[np.ndarray, int]:
        video = self._videos[self._order.number(index)]
        rng = np.random.default_rng([self._key, index, self._segments.parts])
        starts = self._segments.starts(video.frames, rng)
        frames = [start + i + 1 for start in starts for i in range(self._segments.length)]
        try:
            images = [image for frame in frames for image in self._files.read(video.folder, frame)]
            if len({image.shape for image in images}) > 1:
                raise DataError(f"frames of '{video.folder}' have different sizes")
            stacked = np.concatenate(images)
            if self._changes is not None:
                stacked = self._changes.image(stacked, index)
        except DataError as error:
            raise DataError(f"{video.place}: {error}") from error
        return stacked, video.label


class VideoLoader(ImageLoader):
    """Loads batches of frames and labels (n, 1, 1, 1)."""

    label_axes = (1, 1, 1)
