"""16-bit numbers for the wire against NumPy's float16, and bfloat16 by its definition."""

from __future__ import annotations

import numpy as np
import pytest

from pycaffe_dist.kernels import half
from pycaffe_dist.kernels.checksum import checksum

SIZES = [0, 1, 5, 70001]


def encoded(kind: str, values: np.ndarray, residual: np.ndarray | None = None) -> np.ndarray:
    words = np.empty(values.size + half.HEAD, np.uint16)
    getattr(half, f"encode_{kind}")(values, residual, words)
    return words


def decoded(kind: str, words: np.ndarray) -> np.ndarray:
    values = np.full(words.size - half.HEAD, -1, np.float32)
    getattr(half, f"decode_{kind}")(words, values)
    return values


def nearest_bfloat16(values: np.ndarray) -> np.ndarray:
    """Round by comparison with both neighbours in double precision; ties go to the even one."""
    bits = values.view(np.uint32)
    below = (bits & 0xFFFF0000).view(np.float32).astype(np.float64)
    above = ((bits & 0xFFFF0000) + 0x10000).astype(np.uint32).view(np.float32).astype(np.float64)
    to_below, to_above = np.abs(values - below), np.abs(above - values)
    odd = (bits >> 16) & 1 == 1
    up = (to_above < to_below) | ((to_above == to_below) & odd)
    return np.where(up, above, below).astype(np.float32)


@pytest.mark.parametrize("size", SIZES)
def test_bfloat16_is_the_nearest_even(size):
    values = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    values[: size // 2] *= 1e-20
    if size > 1:
        values.view(np.uint32)[-2:] = 0x3F808000, 0x3F818000  # exactly between two
    np.testing.assert_array_equal(decoded("bfloat16", encoded("bfloat16", values)),
                                  nearest_bfloat16(values))  # fmt: skip


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e12])
def test_float16_equals_numpys_of_scaled_values(size, scale):
    values = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    values *= np.float32(scale)
    values[: size // 3] *= np.float32(1e-7)  # in float16, numbers with few bits
    found = decoded("float16", encoded("float16", values))
    if size:
        power = 2.0 ** (14 - np.floor(np.log2(np.abs(values).max())))
        expected = (values * power).astype(np.float16).astype(np.float64) / power
        np.testing.assert_array_equal(found, expected.astype(np.float32))


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_rounding_errors_are_sent_later(kind):
    values = np.random.default_rng(0).standard_normal(3000).astype(np.float32)
    residual = np.zeros_like(values)
    total = sum(
        decoded(kind, encoded(kind, values, residual)).astype(np.float64) for _ in range(50)
    )
    np.testing.assert_allclose(total + residual, 50 * values.astype(np.float64), rtol=1e-5)
    assert np.all(np.abs(residual) <= 2**-7 * np.abs(values).max())


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_values_that_are_not_finite_stay_so_and_spoil_no_residual(kind):
    values = np.array([np.inf, -np.inf, np.nan, 1.0, 0.0], np.float32)
    values.view(np.uint32)[2] = 0x7F800001  # a NaN that shows in the last bit only
    residual = np.zeros_like(values)
    found = decoded(kind, encoded(kind, values, residual))
    np.testing.assert_array_equal(found, values)
    assert np.all(np.isfinite(residual))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_checksum_sees_every_bit_and_every_place(dtype):
    values = np.random.default_rng(1).standard_normal(100_003).astype(dtype)
    before = checksum(values)
    for place in (0, 65536, values.size - 1):
        changed = values.copy()
        changed.view(np.uint32)[place] ^= 1
        assert checksum(changed) != before
    assert checksum(values[::-1].copy()) != before
    assert checksum(values[:0]) == 0
