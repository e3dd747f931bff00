"""Slow float64 NumPy versions of the kernels, and the golden files."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from pycaffe_dist.kernels.jit.codegen.target import host_levels

# The units of float32 kernels, and float64; a test skips units that the machine does not have.
UNITS = ("avx512", "avx2", "sse", "none", "float64")
# `make test` tests this machine's best vector unit in all cases, the narrower ones in each fourth.
STEP = 4

# How much more Winograd may round, by the size of its tiles: it adds inputs before it multiplies
# them.
WINOGRAD_LOSS = {2: 2, 4: 6}

GOLDEN = Path(__file__).parent.parent / "golden" / "layers"


def use_unit(unit, monkeypatch):
    """Make kernels use a vector unit; return the dtype for the test."""
    if unit == "float64":
        return np.float64
    if unit not in host_levels():
        pytest.skip(f"this machine has no {unit}")
    monkeypatch.setenv("PCAFFE_SIMD", unit)
    return np.float32


def golden(name):
    """Return one golden file as a dict."""
    with np.load(GOLDEN / f"{name}.npz") as file:
        return {key: file[key] for key in file.files}


def close(found, expected, dtype=np.float32, terms=1, loss=1):
    """Assert equality up to rounding of a sum of ``terms`` products of standard normals.

    ``loss`` multiplies the tolerance.
    """
    epsilon = np.finfo(dtype).eps
    scale = max(1.0, float(np.nanmax(np.abs(expected), initial=0)))
    tolerance = loss * epsilon * scale * (8 + 2 * np.sqrt(terms))
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def taps(geometry, spatial):
    """Yield (kernel index, slices of the padded input) for every kernel position."""
    output = geometry.output_shape(spatial)
    for index in itertools.product(*map(range, geometry.kernel)):
        yield (
            index,
            tuple(
                slice(k * d, k * d + (o - 1) * s + 1, s)
                for k, d, s, o in zip(index, geometry.dilation, geometry.stride, output)
            ),
        )


def padded(x, geometry):
    """Return x in float64 with its spatial axes padded with zeros."""
    return np.pad(x.astype(np.float64), [(0, 0), (0, 0), *((p, p) for p in geometry.pad)])


def unpadded(x, geometry):
    """Return x without its padding."""
    inner = tuple(slice(p, size - p) for p, size in zip(geometry.pad, x.shape[2:]))
    return x[(slice(None), slice(None), *inner)]


def groups(w, geometry):
    """Yield (input channel slice, output channel slice) of every group."""
    outputs, inputs = w.shape[0] // geometry.group, w.shape[1]
    for g in range(geometry.group):
        yield slice(g * inputs, (g + 1) * inputs), slice(g * outputs, (g + 1) * outputs)


def convolution(x, w, geometry):
    """Return x * w."""
    wide = padded(x, geometry)
    y = np.zeros((x.shape[0], w.shape[0], *geometry.output_shape(x.shape[2:])))
    for ins, outs in groups(w, geometry):
        for index, window in taps(geometry, x.shape[2:]):
            weights = w[(outs, slice(None), *index)].astype(np.float64)
            y[:, outs] += np.einsum("nc...,mc->nm...", wide[(slice(None), ins, *window)], weights)
    return y


def convolution_backward(x, w, dy, geometry):
    """Return the gradients (dx, dw)."""
    wide = padded(x, geometry)
    dwide, dw = np.zeros_like(wide), np.zeros(w.shape)
    dy = dy.astype(np.float64)
    for ins, outs in groups(w, geometry):
        for index, window in taps(geometry, x.shape[2:]):
            where = (slice(None), ins, *window)
            weights = w[(outs, slice(None), *index)].astype(np.float64)
            dwide[where] += np.einsum("nm...,mc->nc...", dy[:, outs], weights)
            axes = [0, *range(2, x.ndim)]
            dw[(outs, slice(None), *index)] += np.tensordot(dy[:, outs], wide[where], (axes, axes))
    return unpadded(dwide, geometry), dw
