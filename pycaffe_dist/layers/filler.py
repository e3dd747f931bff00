"""Fillers: the initial values of parameters, by the ``FillerParameter`` of a prototxt."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.errors import NetError, did_you_mean
from pycaffe_dist.kernels import dry_run
from pycaffe_dist.schema import caffe_pb2

FillerParameter = Any  # caffe_pb2.FillerParameter, a class made at run time
_Filler = Callable[[np.ndarray, FillerParameter, np.random.Generator], None]


def fill(blob: Blob, param: FillerParameter, rng: np.random.Generator) -> None:
    """Set the data of ``blob`` as ``param`` says, with random numbers from ``rng``.

    Raises NetError for an unknown type, a blob that the filler cannot fill, or a contradiction.
    """
    filler = _FILLERS.get(param.type)
    if filler is None:
        hint = did_you_mean(param.type, _FILLERS) or f"; known are {', '.join(sorted(_FILLERS))}"
        raise NetError(f"unknown filler type '{param.type}'{hint}")
    if blob.count == 0:
        raise NetError(f"filler '{param.type}' cannot fill an empty blob {blob.shape}")
    if param.sparse != -1 and param.type != "gaussian":
        raise NetError(f"filler '{param.type}' does not support sparse; only 'gaussian' does")
    if dry_run.active() is None:  # else nobody reads the values
        filler(blob.data, param, rng)


def _constant(data: np.ndarray, param: FillerParameter, rng: np.random.Generator) -> None:
    data[...] = param.value


def _uniform(data: np.ndarray, param: FillerParameter, rng: np.random.Generator) -> None:
    if param.min > param.max:
        raise NetError(f"filler 'uniform' needs min <= max, found {param.min} and {param.max}")
    _draw_uniform(data, param.min, param.max, rng)


def _gaussian(data: np.ndarray, param: FillerParameter, rng: np.random.Generator) -> None:
    if param.std < 0:
        raise NetError(f"filler 'gaussian' needs std >= 0, found {param.std}")
    if param.sparse < -1:
        raise NetError(f"filler 'gaussian' needs sparse >= 0, found {param.sparse}")
    _draw_gaussian(data, param.mean, param.std, rng)
    if param.sparse >= 0:
        # On average, `sparse` weights of each input are not zero; axis 0 counts the outputs.
        outputs = data.shape[0] if data.ndim else 1
        data *= rng.random(data.shape, np.float32) < param.sparse / outputs


def _positive_unitball(data: np.ndarray, param: FillerParameter, rng: np.random.Generator) -> None:
    rows = data.reshape(_first_axis(data, param), -1)
    _draw_uniform(rows, 0.0, 1.0, rng)
    rows /= rows.sum(axis=1, keepdims=True)


def _gaussian_unitball(data: np.ndarray, param: FillerParameter, rng: np.random.Generator) -> None:
    """Rows of length 1 in directions of equal probability (happynear/caffe-windows)."""
    rows = data.reshape(_first_axis(data, param), -1)
    _draw_gaussian(rows, 0.0, 1.0, rng)
    rows /= np.sqrt((rows * rows).sum(axis=1, keepdims=True) + 1e-12)


def _xavier(data: np.ndarray, param: FillerParameter, rng: np.random.Generator) -> None:
    """Glorot and Bengio 2010: uniform with variance 1/n, n as variance_norm says."""
    bound = math.sqrt(3 / _fan(data, param))
    _draw_uniform(data, -bound, bound, rng)


def _msra(data: np.ndarray, param: FillerParameter, rng: np.random.Generator) -> None:
    """He et al. 2015: Gaussian with variance 2/n, n as variance_norm says."""
    _draw_gaussian(data, 0.0, math.sqrt(2 / _fan(data, param)), rng)


def _bilinear(data: np.ndarray, param: FillerParameter, rng: np.random.Generator) -> None:
    """The weights of a deconvolution that interpolates linearly along both image axes."""
    if data.ndim != 4 or data.shape[2] != data.shape[3]:
        raise NetError(
            f"filler 'bilinear' needs a 4-axis blob with square kernels, found {data.shape}"
        )
    size = data.shape[3]
    half = math.ceil(size / 2)
    centre = (size - 1) / (2 * half)
    ramp = 1 - np.abs(np.arange(size) / half - centre)
    data[...] = np.outer(ramp, ramp)


def _draw_uniform(data: np.ndarray, low: float, high: float, rng: np.random.Generator) -> None:
    data[...] = rng.random(data.shape, data.dtype)
    data *= high - low
    data += low


def _draw_gaussian(data: np.ndarray, mean: float, std: float, rng: np.random.Generator) -> None:
    data[...] = rng.standard_normal(data.shape, data.dtype)
    data *= std
    data += mean


def _first_axis(data: np.ndarray, param: FillerParameter) -> int:
    if data.ndim == 0:
        raise NetError(f"filler '{param.type}' needs a blob with at least one axis")
    return data.shape[0]


def _fan(data: np.ndarray, param: FillerParameter) -> float:
    fan_in = data.size // _first_axis(data, param)
    fan_out = data.size // data.shape[1] if data.ndim > 1 else data.size
    if param.variance_norm == caffe_pb2.FillerParameter.AVERAGE:
        return (fan_in + fan_out) / 2
    return fan_out if param.variance_norm == caffe_pb2.FillerParameter.FAN_OUT else fan_in


_FILLERS: dict[str, _Filler] = {
    "constant": _constant,
    "uniform": _uniform,
    "gaussian": _gaussian,
    "gaussian_unitball": _gaussian_unitball,
    "positive_unitball": _positive_unitball,
    "xavier": _xavier,
    "msra": _msra,
    "bilinear": _bilinear,
}
