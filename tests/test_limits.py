"""Small files that claim to hold a lot: one line, and no memory taken."""

from __future__ import annotations

import gzip
import struct
import subprocess
import sys
import zlib

import h5py
import numpy as np
import pytest

from pycaffe_dist import limits
from pycaffe_dist.data import idx
from pycaffe_dist.data.hdf5_rows import HDF5Rows
from pycaffe_dist.data.jpeg import plain_jpeg_channels
from pycaffe_dist.errors import DataError, PrototxtError, SnapshotError
from pycaffe_dist.schema import text
from pycaffe_dist.snapshot.caffemodel import load_weights

LIFTED = r"damaged\? PCAFFE_NO_LIMITS=1 lifts this limit"


def test_a_prototxt_that_is_too_long(tmp_path, monkeypatch):
    path = tmp_path / "net.prototxt"
    path.write_text(f'name: "{"a" * limits.PROTOTXT_BYTES}"')
    with pytest.raises(PrototxtError, match=rf"{path}: has \d+ bytes, more than \d+: {LIFTED}"):
        text.read_net(path)
    monkeypatch.setattr(limits, "PROTOTXT_BYTES", 1000)
    path.write_text(f'name: "{"a" * 1000}"')
    with pytest.raises(PrototxtError, match=LIFTED):
        text.read_net(path)
    monkeypatch.setenv(limits.VARIABLE, "1")
    assert len(text.read_net(path).name) == 1000


def test_weights_with_a_number_that_is_too_large(tmp_path):
    path = tmp_path / "net.caffemodel.h5"
    with h5py.File(path, "w") as file:
        file["data/ip/0"] = np.ones(3, np.float32)
        file["data/ip/1000000000"] = np.ones(3, np.float32)
    with pytest.raises(SnapshotError, match=f"/data/ip has 1000000001 numbered arrays.*{LIFTED}"):
        load_weights(path)


@pytest.fixture
def hollow(tmp_path):
    """Return an HDF5 file with a data set of 4 TiB without stored data."""
    path = tmp_path / "hollow.h5"
    with h5py.File(path, "w") as file:
        for name in ("data/ip/0", "x"):
            file.create_dataset(name, (1 << 20, 1 << 20), np.float32, chunks=(1024, 1024))
    (tmp_path / "list").write_text(str(path))
    return path


def test_weights_without_stored_data(hollow):
    with pytest.raises(SnapshotError, match=f"/data/ip/0 has 4398046511104 bytes.*{LIFTED}"):
        load_weights(hollow)


def test_rows_without_stored_data(hollow):
    with pytest.raises(DataError, match=f"'x' has 4398046511104 bytes.*{LIFTED}"):
        HDF5Rows(str(hollow.parent / "list"), ["x"], False, 0)


def test_packed_images_that_are_too_many(tmp_path):
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(struct.pack(">4I", 2051, 1 << 20, 1 << 10, 1 << 10)))
    with pytest.raises(DataError, match=f"has 1099511627776 bytes.*{LIFTED}"):
        idx.read_images(str(path))
    path.write_bytes(gzip.compress(struct.pack(">4I", 2051, 2, 2, 2) + bytes(100_000_000)))
    with pytest.raises(DataError, match="8 bytes after its head, but has more"):
        idx.read_images(str(path))


def _png(width: int, height: int) -> bytes:
    """Return a PNG file with black pixels, as small as it can be."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    head = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(1000))
    start = b"\x89PNG\r\n\x1a\n"
    return start + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


DECODE = """
import resource, sys
from pycaffe_dist.data.image import read_image
from pycaffe_dist.errors import DataError
read_image(sys.argv[1], True)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_image(sys.argv[2], True)
    print("decoded")
except DataError as error:
    print(error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize(("width", "height"), [(32767, 32767), (16385, 16384), (1, 1 << 31)])
def test_an_image_with_too_many_pixels(tmp_path, width, height):
    small, large = tmp_path / "small.png", tmp_path / "large.png"
    small.write_bytes(_png(2, 2))
    large.write_bytes(_png(width, height))
    done = subprocess.run(
        [sys.executable, "-c", DECODE, small, large], capture_output=True, text=True
    )
    assert f"'{large}' cannot be decoded" in done.stdout, done.stderr
    assert "at most 268435456 pixels (PCAFFE_NO_LIMITS=1 lifts this limit)" in done.stdout
    assert int(done.stdout.split()[-1]) < 50_000


def test_a_jpeg_with_too_many_pixels(monkeypatch):
    frame = struct.pack(">2sHBHHB", b"\xff\xc0", 17, 8, 16385, 16384, 3) + bytes(9)
    scan = b"\xff\xda\0\x08"
    data = np.frombuffer(b"\xff\xd8" + frame + scan, np.uint8)
    assert plain_jpeg_channels(data, True) == 0
    monkeypatch.setattr(limits, "IMAGE_PIXELS", 1 << 29)
    assert plain_jpeg_channels(data, True) == 3
