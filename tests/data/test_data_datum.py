"""The Datum parser against protobuf, on well-formed, odd and damaged messages."""

from __future__ import annotations

import random

import numpy as np
import pytest
from google.protobuf.message import DecodeError

from pycaffe_dist.kernels import datum as D
from pycaffe_dist.schema import caffe_pb2


def _parse(messages: list[bytes]) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    sizes = np.array([len(m) for m in messages])
    values = np.stack([np.cumsum(sizes) - sizes, sizes], axis=1)
    buffer = np.frombuffer(b"".join(messages), np.uint8)
    table = np.empty((len(messages), D.COLUMNS), np.int64)
    return D.parse_datums(buffer, values, table), buffer, values, table


def _check(message: bytes) -> None:
    """Compare with protobuf: the same verdict, and the same fields."""
    done, buffer, values, table = _parse([message])
    try:
        expected = caffe_pb2.Datum.FromString(message)
    except DecodeError:
        assert done == 0
        return
    assert done == 1
    row = table[0]
    scalars = [expected.channels, expected.height, expected.width, expected.label]
    assert row[[D.CHANNELS, D.HEIGHT, D.WIDTH, D.LABEL]].tolist() == scalars
    assert bool(row[D.ENCODED]) == expected.encoded
    data = buffer[row[D.DATA] : row[D.DATA] + row[D.SIZE]]
    assert data.tobytes() == expected.data
    floats = np.zeros(row[D.FLOATS], np.float32)
    D.copy_floats(buffer, *values[0], floats)
    assert floats.tobytes() == np.array(expected.float_data, np.float32).tobytes()


MESSAGES = [
    {},
    {"channels": 3, "height": 2, "width": 1, "data": b"abcdef", "label": 7},
    {"label": -1, "channels": 2**31 - 1, "height": -(2**31)},
    {"data": b"\xff\xd8" * 300, "encoded": True},
    {"channels": 1, "height": 2, "width": 2, "float_data": [1.5, -0.0, 1e-40, float("inf")]},
]


@pytest.mark.parametrize("fields", MESSAGES)
def test_fields_are_the_same_as_protobufs(fields):
    _check(caffe_pb2.Datum(**fields).SerializeToString())


def test_packed_and_unpacked_floats_mix():
    packed = b"\x32\x08" + np.array([1.25, 2.5], "<f4").tobytes()
    _check(caffe_pb2.Datum(float_data=[7.0]).SerializeToString() + packed)


def test_last_of_repeated_scalars_and_unknown_fields():
    one = caffe_pb2.Datum(label=1, data=b"one").SerializeToString()
    two = caffe_pb2.Datum(label=2, data=b"second").SerializeToString()
    unknown = b"\x40\x05" + b"\x4a\x03abc" + b"\x51" + bytes(8) + b"\x5d" + bytes(4)
    _check(one + unknown + two)


def test_wrong_wire_type_is_an_unknown_field():
    _check(b"\x0a\x02xx" + b"\x25" + bytes(4) + b"\x28\x07")


@pytest.mark.parametrize("cut", range(1, 30))
def test_cut_messages(cut):
    _check(caffe_pb2.Datum(**MESSAGES[1]).SerializeToString()[:-cut])


@pytest.mark.parametrize(
    "message",
    [
        b"\x0c",  # end of a group that never began
        b"\x00\x01",  # field number 0
        b"\x22\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a negative length
        b"\x28" + b"\xff" * 10 + b"\x01",  # a varint of 11 bytes
        b"\x32\x03abc",  # packed floats of 3 bytes
    ],
)
def test_malformed_messages(message):
    with pytest.raises(DecodeError):
        caffe_pb2.Datum.FromString(message)
    assert _parse([message])[0] == 0


def test_the_first_bad_message_is_reported():
    good = caffe_pb2.Datum(label=3).SerializeToString()
    assert _parse([good, good, b"\x0c", good])[0] == 2


def test_random_damage_never_reads_outside():
    rng = random.Random(0)
    whole = caffe_pb2.Datum(**MESSAGES[1]).SerializeToString()
    for _ in range(2000):
        message = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            message[rng.randrange(len(message))] = rng.randrange(256)
        done, _, _, table = _parse([bytes(message)])
        if done == 1:
            row = table[0]
            assert row[D.DATA] >= 0 <= row[D.SIZE]
            assert row[D.DATA] + row[D.SIZE] <= len(message)
