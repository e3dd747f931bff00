"""Windows of images for detection (R-CNN): lists of them, sampling, cropping and warping."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pycaffe_dist.data.decoders import Decoders
from pycaffe_dist.data.image import decode_image, read_file, resize
from pycaffe_dist.data.partition import Shard
from pycaffe_dist.data.prefetch import Buffer, Loader, new_tops
from pycaffe_dist.errors import DataError

# The limit on labels and edges, which are whole numbers.
_MOST = 2**31


@dataclass(frozen=True)
class Windows:
    """The images of a window file and its windows, foreground and background separately.

    A row of ``foreground`` and ``background`` is image number, label, x1, y1, x2, y2; the label of
    background is 0.  ``channels`` comes from the last image, as in Caffe.
    """

    paths: list[str]
    channels: int
    foreground: np.ndarray
    background: np.ndarray


def read_windows(file: str, fg_threshold: float, bg_threshold: float, root: str = "") -> Windows:
    """Return the windows in ``file``; every path starts with the prefix ``root``.

    For each image the file has ``# number``, path, channels, height, width, the number of windows
    and for each window ``label overlap x1 y1 x2 y2``.  Windows that overlap an object by at least
    ``fg_threshold`` are foreground, by less than ``bg_threshold`` background.  Raises `DataError`.
    """
    try:
        with open(file, encoding="utf-8", errors="surrogateescape") as lines:
            words = lines.read().split()
    except OSError as error:
        raise DataError(f"cannot read window file '{file}': {error.strerror}") from error
    if not words:
        raise DataError(f"window file '{file}' is empty")
    paths: list[str] = []
    parts: list[np.ndarray] = []
    channels, at = 0, 0
    while at < len(words):
        number = len(paths)
        try:
            if words[at] != "#" or int(words[at + 1]) != number:
                raise ValueError(f"expected '# {number}', found '{' '.join(words[at : at + 2])}'")
            paths.append(root + words[at + 2])
            channels, count = int(words[at + 3]), int(words[at + 6])
            if channels not in (1, 3):
                raise ValueError(f"images have 1 or 3 channels, found {channels}")
            at += 7
            if not 0 <= count <= (len(words) - at) // 6:
                raise IndexError
            rows = np.array(words[at : at + 6 * count], np.float64).reshape(count, 6)
            if not (np.abs(rows) < _MOST).all():
                raise ValueError(f"a window has a number that is not below {_MOST}")
        except (ValueError, IndexError) as error:
            reason = "it ends too early" if isinstance(error, IndexError) else error
            raise DataError(
                f"window file '{file}' is malformed at image {number}: {reason}"
            ) from error
        at += 6 * count
        parts.append(np.column_stack([np.full(count, number), rows]))
    rows = np.concatenate(parts)
    overlaps = rows[:, 2].astype(np.float32)
    found = rows[:, [0, 1, 3, 4, 5, 6]].astype(np.int64)
    is_foreground = overlaps >= np.float32(fg_threshold)
    foreground = found[is_foreground]
    background = found[~is_foreground & (overlaps < np.float32(bg_threshold))]
    background[:, 1] = 0
    if (foreground[:, 1] < 1).any():
        raise DataError(f"window file '{file}': a window of the foreground has a label below 1")
    if not len(foreground) or not len(background):
        raise DataError(
            f"window file '{file}' has {len(foreground)} windows of the foreground and "
            f"{len(background)} of the background: both are needed"
        )
    return Windows(paths, channels, foreground, background)


@dataclass(frozen=True)
class Crop:
    """Crops a window and warps it to a (C, size, size) input.

    The result includes ``context_pad`` pixels around the window; ``square`` widens it to a square;
    pixels outside of the image stay 0.  ``mean`` is (C, size, size) or (C, 1, 1).
    """

    size: int
    context_pad: int
    square: bool
    mean: np.ndarray
    scale: float

    def cut(self, image: np.ndarray, window: np.ndarray, mirror: bool, out: np.ndarray) -> None:
        """Crop ``window`` (x1, y1, x2, y2, inclusive) of ``image`` (C, H, W) to ``out``."""
        x1, y1, x2, y2 = (int(edge) for edge in window)
        left = top = 0
        width = height = self.size
        if self.context_pad or self.square:
            (x1, x2), (y1, y2) = self._widen(x1, y1, x2, y2)
            x1, x2, left, right, width = self._clip(x1, x2, image.shape[2])
            y1, y2, top, _, height = self._clip(y1, y2, image.shape[1])
            left = right if mirror else left
            height, width = min(height, self.size - top), min(width, self.size - left)
        out[...] = 0
        if min(height, width) < 1 or x2 < x1 or y2 < y1:
            return
        part = resize(image[:, y1 : y2 + 1, x1 : x2 + 1], height, width)
        if mirror:
            part = part[:, :, ::-1]
        place = (slice(None), slice(top, top + height), slice(left, left + width))
        mean = self.mean if self.mean.shape[1] == 1 else self.mean[place]
        out[place] = (part - mean) * out.dtype.type(self.scale)

    def _widen(self, x1: int, y1: int, x2: int, y2: int) -> tuple[tuple[int, int], ...]:
        """Return the window with its context, which is the padding after warping."""
        scale = np.float32(self.size) / np.float32(self.size - 2 * self.context_pad)
        halves = [np.float32((x2 - x1 + 1) / 2), np.float32((y2 - y1 + 1) / 2)]
        centres = [np.float32(x1) + halves[0], np.float32(y1) + halves[1]]
        if self.square:
            halves = [max(halves)] * 2
        return tuple(
            (_round(centre - half * scale), _round(centre + half * scale))
            for centre, half in zip(centres, halves)
        )

    def _clip(self, first: int, last: int, length: int) -> tuple[int, int, int, int, int]:
        """Clip a range to [0, length).

        Returns the clipped ends, and the padding before and after and the remaining extent, in
        pixels of the result.
        """
        before, behind = max(0, -first), max(0, last - length + 1)
        scale = np.float32(self.size) / np.float32(last - first + 1)
        first, last = first + before, last - behind
        left, right, extent = (
            _round(np.float32(pixels) * scale) for pixels in (before, behind, last - first + 1)
        )
        return first, last, left, right, extent


def _round(value: np.floating) -> int:
    """Round half away from zero, as C does."""
    return int(math.copysign(math.floor(abs(float(value)) + 0.5), value))


class WindowLoader(Loader):
    """Loads batches of sampled windows and their labels; batch b depends on b only.

    A batch begins with background windows; its share ``fg_fraction`` is foreground.  Windows are
    drawn with replacement, and with ``mirror`` mirrored with probability one half.  With ``cache``
    image files stay in memory.  One thread at a time uses a loader.
    """

    def __init__(
        self,
        windows: Windows,
        crop: Crop,
        batch_size: int,
        fg_fraction: float,
        mirror: bool,
        key: int,
        shard: Shard,
        cache: dict[str, bytes] | None,
        decoders: Decoders,
    ):
        self.dtype = crop.mean.dtype
        self._windows, self._crop = windows, crop
        self._batch_size = batch_size
        self._foreground = int(np.float32(batch_size) * np.float32(fg_fraction))
        self._mirror, self._key, self._shard = mirror, key, shard
        self._cache = cache
        self._decoders = decoders

    def top_shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of a batch's images and labels."""
        n, size = self._batch_size, self._crop.size
        return [(n, self._windows.channels, size, size), (n,)]

    def load(self, number: int, tops: list[np.ndarray]) -> int:
        """Fill ``tops`` with batches from ``number`` on; return the number of batches."""
        n = self._batch_size
        batches = len(tops[0]) // n
        for i in range(batches):
            self._load(number + i, *(top[i * n : (i + 1) * n] for top in tops))
        return batches

    def buffers(self) -> list[Buffer]:
        """Return the arrays that `load` fills: the tops."""
        return [Buffer(shape, self.dtype) for shape in self.top_shapes()]

    def load_other(self, number: int) -> list[np.ndarray]:
        """Return new tops with batch ``number``."""
        tops = new_tops(self.top_shapes(), self.dtype)
        self._load(number, *tops)
        return tops

    def close(self) -> None:
        """Stop the threads that decode images."""
        self._decoders.close()

    def _load(self, number: int, images: np.ndarray, labels: np.ndarray) -> None:
        def fill(item: int) -> None:
            window, image = self._decoders.first_good(
                lambda place: self._window(sets[item], int(draws[item]) + place), 0
            )
            self._crop.cut(image, window[2:], bool(mirrored[item]), images[item])
            labels[item] = window[1]

        first = self._shard.first_record(number, self._batch_size)
        rng = np.random.default_rng([self._key, first])
        draws = rng.integers(2**62, size=self._batch_size)
        mirrored = rng.integers(2, size=self._batch_size) if self._mirror else draws * 0
        background = self._batch_size - self._foreground
        sets = [self._windows.background] * background
        sets += [self._windows.foreground] * self._foreground
        list(self._decoders.map(fill, range(self._batch_size)))

    def _window(self, windows: np.ndarray, draw: int) -> tuple[np.ndarray, np.ndarray]:
        """Return a drawn window and its image."""
        window = windows[draw % len(windows)]
        path = self._windows.paths[window[0]]
        data = self._cache.get(path) if self._cache is not None else None
        if data is None:
            data = read_file(path)
            if self._cache is not None:
                self._cache[path] = data
        image = decode_image(data, self._windows.channels == 3, lambda: f"image '{path}'")
        x1, y1, x2, y2 = window[2:]
        if not (0 <= x1 <= x2 < image.shape[2] and 0 <= y1 <= y2 < image.shape[1]):
            raise DataError(
                f"window ({x1}, {y1}) to ({x2}, {y2}) is not inside of image '{path}', which is "
                f"{image.shape[2]} wide and {image.shape[1]} high"
            )
        return window, image
