"""Parsed and decoded Datums of a database, many at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pycaffe_dist.data.decoders import Decoders
from pycaffe_dist.data.image import decode_image, decoder
from pycaffe_dist.data.image_changes import ImageChanges
from pycaffe_dist.data.sources import Cursor, Records, Source
from pycaffe_dist.errors import DataError
from pycaffe_dist.kernels.datum import (
    CHANNELS,
    COLUMNS,
    DATA,
    ENCODED,
    FLOATS,
    HEIGHT,
    LABEL,
    SIZE,
    WIDTH,
    copy_floats,
    parse_datums,
)

Shape = tuple[int, int, int]
# Takes a decoded image in OpenCV's layout, and its index among the records of a batch.
WriteImage = Callable[[np.ndarray, int], None]
_BYTES = np.dtype(np.uint8)
# In the column ENCODED of a table: pixels that must be changed, and are then like decoded ones.
_CHANGED = 2


class Datums:
    """Neighbouring Datums of a database; record i has stream index ``first + i * step``.

    ``table`` comes from `kernels.datum.parse_datums`; ``images`` has the encoded images that are
    already decoded, by stream index.
    """

    def __init__(
        self,
        first: int,
        step: int,
        records: Records,
        table: np.ndarray,
        images: dict[int, np.ndarray] | None = None,
    ):
        self.first = first
        self.step = step
        self.records = records
        self.table = table
        self.images: dict[int, np.ndarray] = {} if images is None else images

    def __len__(self) -> int:
        return len(self.records)

    def part(self, begin: int, end: int) -> Datums:
        """Return records ``begin`` to ``end``, without copying."""
        records, table = self.records.part(begin, end), self.table[begin:end]
        return Datums(self.index(begin), self.step, records, table, self.images)

    def index(self, i: int) -> int:
        """Return the stream index of record ``i``."""
        return self.first + i * self.step

    def label(self, i: int) -> int:
        """Return the label of record ``i``."""
        return int(self.table[i, LABEL])

    def decoded(self, i: int) -> np.ndarray | None:
        """Return the decoded image (C, H, W) of record ``i``; None if it is not encoded."""
        return self.images.get(self.index(i))

    def shape(self, i: int) -> Shape:
        """Return the (C, H, W) of record ``i``."""
        image = self.decoded(i)
        if image is not None:
            return image.shape
        row = self.table[i]
        return (int(row[CHANNELS]), int(row[HEIGHT]), int(row[WIDTH]))

    def pixels(self, i: int) -> np.ndarray:
        """Return the image (C, H, W) of record ``i``, which must not be encoded."""
        row = self.table[i]
        data = self.records.buffer[row[DATA] : row[DATA] + row[SIZE]]
        return (data if row[SIZE] else self.floats(i)).reshape(self.shape(i))

    def floats(self, i: int) -> np.ndarray:
        """Return the float_data of record ``i``, flat float32."""
        values = np.empty(self.table[i, FLOATS], np.float32)
        copy_floats(self.records.buffer, *self.records.values[i], values)
        return values


class DatumReader:
    """Reads, parses and decodes the Datums of ``source``.

    ``color`` is as for `decode_image`.  One thread at a time uses a reader; the threads of
    ``decoders``, which readers may share, decode images.  With ``changes`` all images, encoded or
    not, are changed when they are decoded.
    """

    _columns = COLUMNS
    _called = "a Datum"

    def __init__(
        self,
        source: Source,
        color: bool | None = None,
        decoders: Decoders | None = None,
        changes: ImageChanges | None = None,
    ):
        self.changes = changes
        self._source = source
        self._color = color
        self._cursor = source.cursor()
        self._decoders = decoders or Decoders()

    def read(self, start: int, count: int, step: int = 1) -> Datums:
        """Return the records with stream indices start, start + step, …, without decoding.

        Raises `DataError` when one is not a Datum.
        """
        datums = self._read(self._cursor, start, count, step)
        if self.changes is not None:
            encoded = datums.table[:, ENCODED]
            encoded[encoded == 0] = _CHANGED
        return datums

    def decode(self, datums: Datums) -> None:
        """Decode the encoded images of ``datums`` that are not yet decoded; forget all others."""
        encoded = [(int(i), datums.index(int(i))) for i in np.flatnonzero(datums.table[:, ENCODED])]
        kept = {index: datums.images[index] for _, index in encoded if index in datums.images}
        missing = [(i, index) for i, index in encoded if index not in kept]
        images = self._decoders.map(lambda pair: self.image(datums, pair[0]), missing)
        kept.update(zip((index for _, index in missing), images))
        datums.images.clear()
        datums.images.update(kept)

    def image(self, datums: Datums, i: int) -> np.ndarray:
        """Decode record ``i``, which must be encoded; raises `DataError`.

        If bad images are skipped, the next good image and its label take a bad one's place.
        """

        if not self._decoders.skip:
            return self._image(datums, i)

        def image_at(index: int) -> tuple[np.ndarray, int]:
            if index == here:
                return self._image(datums, i), datums.label(i)
            other = self._read(self._source.cursor(), index, 1, 1)
            return self._image(other, 0), other.label(0)

        here = datums.index(i)
        image, datums.table[i, LABEL] = self._decoders.first_good(image_at, here)
        return image

    def color_decoder(
        self, datums: Datums, shape: Shape, write: WriteImage
    ) -> Callable[[int], bool]:
        """Return a function that decodes record i, as OpenCV does, and passes it to ``write``.

        It returns False if the record's shape is not ``shape`` (3, H, W), or if it has no image.
        All records must be encoded.
        """
        buffer, places = datums.records.buffer, datums.table[:, DATA : SIZE + 1]
        files = [buffer[begin : begin + size] for begin, size in places.tolist()]
        interleaved = *shape[1:], shape[0]
        plain_channels, decode = decoder(self._color)
        plain = [plain_channels(file) for file in files]

        def fill(i: int) -> bool:
            image = decode(files[i], plain[i])
            if image is None or image.shape != interleaved or image.dtype != _BYTES:
                return False
            write(image, i)
            return True

        return fill

    def check(self, datums: Datums, i: int) -> None:
        """Raise `DataError` unless record ``i`` has an image, decoded if it was encoded."""
        if datums.decoded(i) is not None:
            return
        channels, height, width = datums.shape(i)
        size, floats = datums.table[i, SIZE], datums.table[i, FLOATS]
        if min(channels, height, width) < 1:
            raise DataError(
                f"{self.describe(datums, i)} holds no image: channels, height and width must be "
                f"positive, found {channels}, {height} and {width}"
            )
        expected = channels * height * width
        if size != expected and (size or floats != expected):
            raise DataError(
                f"{self.describe(datums, i)} should hold {expected} values (channels {channels}, "
                f"height {height}, width {width}), found {size} bytes and {floats} floats"
            )

    def describe(self, datums: Datums, i: int) -> str:
        """Return a text that names record ``i`` and its database."""
        return self._source.describe(datums.index(i))

    def close(self) -> None:
        """Close the source."""
        self._source.close()

    def _read(self, cursor: Cursor, start: int, count: int, step: int) -> Datums:
        cursor.seek(start)
        datums = Datums(
            start, step, cursor.read(count, step), np.empty((count, self._columns), np.int64)
        )
        bad = self._parse(datums)
        if self._decoders.skip:
            bad = sorted({*bad, *self._without_image(datums)})
        if not bad:
            return datums
        if not self._decoders.skip:
            raise self._no_datum(datums, bad[0])
        values = [datums.records.value(i) for i in range(count)]
        for i in bad:
            values[i] = self._decoders.first_good(self._good_value, datums.index(i))
        whole = Datums(start, step, Records.joined(values), datums.table)
        self._parse(whole)
        return whole

    def _parse(self, datums: Datums) -> list[int]:
        """Fill the table; return which records are no Datums."""
        records, bad, at = datums.records, [], 0
        while at < len(records):
            at += self._parse_records(records.buffer, records.values[at:], datums.table[at:])
            if at < len(records):
                bad.append(at)
                at += 1
        return bad

    def _parse_records(self, buffer: np.ndarray, values: np.ndarray, table: np.ndarray) -> int:
        """Fill a table; return the number of the first record that is no Datum, or of all."""
        return parse_datums(buffer, values, table)

    def _without_image(self, datums: Datums) -> list[int]:
        """Return which records neither are encoded nor hold as many values as they say."""
        table = datums.table
        shapes, size = table[:, [CHANNELS, HEIGHT, WIDTH]], table[:, SIZE]
        expected = shapes.prod(axis=1)
        right = (size == expected) | ((size == 0) & (table[:, FLOATS] == expected))
        wrong = (table[:, ENCODED] == 0) & ~(right & (shapes > 0).all(axis=1))
        return np.flatnonzero(wrong).tolist()

    def _good_value(self, index: int) -> bytes:
        """Return the record at stream ``index``; raises `DataError` unless it holds an image."""
        cursor = self._source.cursor()
        cursor.seek(index)
        one = Datums(index, 1, cursor.read(1), np.empty((1, self._columns), np.int64))
        if self._parse(one):
            raise self._no_datum(one, 0)
        if not one.table[0, ENCODED]:
            self.check(one, 0)
        return one.records.value(0)

    def _no_datum(self, datums: Datums, i: int) -> DataError:
        size = datums.records.values[i, 1]
        return DataError(f"{self.describe(datums, i)} is not {self._called} ({size} bytes)")

    def _image(self, datums: Datums, i: int) -> np.ndarray:
        """Return the image of a record, decoded and changed."""
        image = self._unchanged(datums, i)
        if self.changes is None:
            return image
        try:
            return self.changes.image(image, datums.index(i))
        except DataError as error:
            raise DataError(f"{self.describe(datums, i)}: {error}") from error

    def _unchanged(self, datums: Datums, i: int) -> np.ndarray:
        row = datums.table[i].tolist()
        if row[ENCODED] not in (0, _CHANGED):
            data = datums.records.buffer[row[DATA] : row[DATA] + row[SIZE]]
            return decode_image(data, self._color, lambda: self.describe(datums, i))
        self.check(datums, i)
        return datums.pixels(i)
