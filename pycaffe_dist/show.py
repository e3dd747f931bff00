"""Pictures of a net: its filters, what its layers answer to an image, which classes it confuses.

Each function returns a figure of matplotlib (``pip install 'pycaffe-dist[plot]'``): notebooks show
it, and ``savefig("picture.png")`` writes a file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pycaffe_dist.errors import UsageError, did_you_mean
from pycaffe_dist.training import score_counts
from pycaffe_dist.training.pictures import mosaic, row_shares

if TYPE_CHECKING:
    from pycaffe_dist.api.net import Net
    from pycaffe_dist.reports.picture import Picture

_COLORS = 3
# Inches.
_WIDTH, _BARS_HEIGHT = 6.4, 2.4
_TILE_HEIGHT, _TITLE_HEIGHT = 1.6, 0.4
# Larger matrices have no figures in their cells.
_MOST_CELLS = 20


def filters(net: Net, layer: str, most: int = 100, bgr: bool = True) -> Picture:
    """Return a picture of a layer's first ``most`` filters, on one scale from black to white.

    The filters of a layer with three input channels have colors, whose order is BGR, as in Caffe's
    images, or RGB.  With any other number each channel of a filter is a tile, row after row.  An
    InnerProduct that reads images has a filter of their shape for each output.  Raises UsageError
    for a layer without filters.
    """
    if not net.params.get(layer):
        what = "has no weights" if layer in net.layer_dict else "is not in it"
        hint = did_you_mean(layer, net.params) or f"; layers with weights: {', '.join(net.params)}"
        raise UsageError(f"net '{net.name}': layer '{layer}' {what}{hint}")
    weights = np.asarray(net.params[layer][0].data, np.float32)
    if net.layer_dict[layer].type == "InnerProduct":
        bottom = net.blobs[net.bottom_names[layer][0]].shape
        weights = weights.reshape(len(weights), *bottom[1:])
    if weights.ndim != 4:
        raise UsageError(f"layer '{layer}' has no filters: its weights are {weights.shape}")
    size = "×".join(map(str, weights.shape[2:]))
    if weights.shape[1] == _COLORS:
        tiles = (weights[:, ::-1] if bgr else weights).transpose(0, 2, 3, 1)
        return _tiled(tiles, most, f"{layer}: {{}} filters of {size}")
    channels, tiles = weights.shape[1], weights.reshape(-1, *weights.shape[2:])
    if channels == 1:
        return _tiled(tiles, most, f"{layer}: {{}} filters of {size}")
    # Each filter begins a row.
    columns = channels if channels <= most else 0
    return _tiled(tiles, most, f"{layer}: {{}} channels of filters of {size}", columns)


def features(net: Net, blob: str, sample: int = 0, most: int = 100) -> Picture:
    """Return a picture of a sample's first ``most`` channels of a blob, on one scale.

    A blob without images, such as the answers of a classifier, is a row of bars.  Raises UsageError
    for an unknown blob or sample.
    """
    if blob not in net.blobs:
        hint = did_you_mean(blob, net.blobs) or f"; blobs: {', '.join(net.blobs)}"
        raise UsageError(f"net '{net.name}' has no blob '{blob}'{hint}")
    data = np.asarray(net.blobs[blob].data, np.float32)
    if data.ndim == 0 or not 0 <= sample < len(data):
        raise UsageError(f"blob '{blob}' has no sample {sample}: its shape is {data.shape}")
    values = data[sample]
    if values.ndim == 3 and values[0].size > 1:
        size = "×".join(map(str, values.shape[1:]))
        return _tiled(values, most, f"{blob}, sample {sample}: {{}} channels of {size}")
    figure, chart = _chart(_WIDTH, _BARS_HEIGHT)
    chart.bar(range(values.size), values.ravel())
    chart.xaxis.get_major_locator().set_params(integer=True)
    chart.set_title(f"{blob}, sample {sample}", fontsize="medium")
    return figure


def confusion(labels: Any, answers: Any, names: Sequence[str] = ()) -> Picture:
    """Return a picture of how often samples of each class (rows) got each answer (columns).

    ``labels`` are (n,), ``answers`` (n,), too, or (n, classes), of which the largest counts;
    ``names`` are the classes'.  Raises UsageError for numbers that are not classes.
    """
    labels, answers = np.asarray(labels), np.asarray(answers)
    if answers.ndim == 2:
        names = names or [str(number) for number in range(answers.shape[1])]
        answers = answers.argmax(axis=1)
    if labels.shape != answers.shape or labels.ndim != 1 or not labels.size:
        raise UsageError(
            f"confusion needs a label for each answer, found labels {labels.shape} and answers "
            f"{answers.shape}"
        )
    pairs = np.stack([labels, answers])
    count = len(names) or int(pairs.max()) + 1
    wrong = pairs[(pairs < 0) | (pairs >= count) | (pairs % 1 != 0)]
    if wrong.size:
        raise UsageError(f"classes are whole numbers from 0 to {count - 1}, found {wrong[0]:g}")
    rows, columns = pairs.astype(int)
    matrix = score_counts.confusion(rows, columns, count).astype(int)
    return _matrix(matrix, names or [str(number) for number in range(count)])


def _matrix(matrix: np.ndarray, names: Sequence[str]) -> Picture:
    """Return the picture of a confusion matrix: colors are shares of a row."""
    shares = row_shares(matrix)
    side = min(max(3.0, 0.42 * len(names) + 1), 9.0)
    figure, chart = _chart(side, side)
    chart.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    if len(names) <= _MOST_CELLS:
        for (row, column), number in np.ndenumerate(matrix):
            color = "white" if shares[row, column] > 0.5 else "black"
            style = {"ha": "center", "va": "center", "fontsize": "small", "color": color}
            chart.text(column, row, str(number) if number else "", **style)
        chart.set_xticks(range(len(names)), names, rotation=0 if len(names[0]) < 3 else 90)
        chart.set_yticks(range(len(names)), names)
    chart.set_xlabel("answer")
    chart.set_ylabel("label")
    right = np.trace(matrix) / matrix.sum()
    chart.set_title(f"{matrix.sum()} samples, accuracy {right:.3f}", fontsize="medium")
    return figure


def _tiled(tiles: np.ndarray, most: int, title: str, columns: int = 0) -> Picture:
    """Return the picture of tiles (n, height, width) or (n, height, width, 3), side by side."""
    if most < 1:
        raise UsageError(f"at least one tile is shown, not {most}")
    count, tiles = len(tiles), tiles[:most]
    shown = str(count) if count == len(tiles) else f"{len(tiles)} of {count}"
    columns = columns or math.ceil(math.sqrt(2 * len(tiles)))
    columns = min(columns, len(tiles))
    rows = math.ceil(len(tiles) / columns)
    picture, low, high = mosaic(tiles, columns, line=1.0)
    tall = min(_WIDTH * picture.shape[0] / picture.shape[1], _TILE_HEIGHT * rows)
    figure, chart = _chart(_WIDTH, min(tall, 2 * _WIDTH) + _TITLE_HEIGHT)
    chart.imshow(picture, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    chart.set_title(
        f"{title.format(shown)}; black is {low + 0.0:.2g}, white {high:.2g}", fontsize="medium"
    )
    chart.axis("off")
    return figure


def _chart(width: float, height: float) -> tuple[Picture, Any]:
    from pycaffe_dist.reports.picture import Picture

    figure = Picture(figsize=(width, height))
    return figure, figure.subplots()
