"""Caffe's ``debug_info`` lines: mean magnitudes of every blob as it passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pycaffe_dist.log import logger

if TYPE_CHECKING:
    from pycaffe_dist.net.net import Net
    from pycaffe_dist.net.parameter import Parameter


def _mean_magnitude(array: np.ndarray) -> float:
    return float(np.abs(array).mean(dtype=np.float64)) if array.size else 0.0


def _display_name(net: Net, layer_index: int, index: int) -> str:
    specs = net.nodes[layer_index].layer.param.param
    return (specs[index].name if index < len(specs) else "") or str(index)


def log_forward(net: Net, index: int) -> None:
    """Log the tops and parameters of a layer that has just run forward."""
    node = net.nodes[index]
    for name, blob in zip(node.top_names, node.top):
        logger.info(
            "    [Forward] Layer %s, top blob %s data: %g",
            node.name,
            name,
            _mean_magnitude(blob.read_data()),
        )
    for k, blob in enumerate(node.layer.blobs):
        logger.info(
            "    [Forward] Layer %s, param blob %s data: %g",
            node.name,
            _display_name(net, index, k),
            _mean_magnitude(blob.read_data()),
        )


def log_backward(net: Net, index: int) -> None:
    """Log the bottom and parameter diffs of a layer that has just run backward."""
    node = net.nodes[index]
    for name, blob, propagates in zip(node.bottom_names, node.bottom, node.propagate_down):
        if propagates:
            logger.info(
                "    [Backward] Layer %s, bottom blob %s diff: %g",
                node.name,
                name,
                _mean_magnitude(blob.read_diff()),
            )
    for k, blob in enumerate(node.layer.blobs):
        if node.layer.param_propagate_down[k]:
            logger.info(
                "    [Backward] Layer %s, param blob %d diff: %g",
                node.name,
                k,
                _mean_magnitude(blob.read_diff()),
            )


def first_not_finite(net: Net) -> str:
    """Say where the first NaN or infinity comes from; see Net.first_not_finite."""
    for index, node in enumerate(net.nodes):
        what = f"layer '{node.name}' ({node.layer.type})"
        for k, blob in enumerate(node.layer.blobs):
            if not np.isfinite(blob.read_data()).all():
                return f"first in {what}, parameter {_display_name(net, index, k)}"
        if node.bottom:
            net.forward_layer(index)
        for name, blob in zip(node.top_names, node.top):
            if not np.isfinite(blob.read_data()).all():
                return f"first in {what}, blob '{name}'"
    return ""


def log_all_parameters(net: Net) -> None:
    """Log the norms of all parameters and their diffs after a whole backward."""
    l1 = [0.0, 0.0]
    squares = [0.0, 0.0]
    for parameter in net.parameters:
        for k, array in enumerate((parameter.blob.read_data(), parameter.blob.read_diff())):
            l1[k] += float(np.abs(array).sum(dtype=np.float64))
            squares[k] += float(np.square(array, dtype=np.float64).sum())
    # Caffe logs this line as an error so that it also shows where info lines do not.
    logger.error(
        "    [Backward] All net params (data, diff): L1 norm = (%g, %g); L2 norm = (%g, %g)",
        *l1,
        squares[0] ** 0.5,
        squares[1] ** 0.5,
    )


def log_update(parameters: list[Parameter]) -> None:
    """Log every parameter's data and its update, right before the update is applied."""
    for parameter in parameters:
        logger.info(
            "    [Update] Layer %s, param %s data: %g; diff: %g",
            parameter.layer_name,
            parameter.display_name,
            _mean_magnitude(parameter.blob.read_data()),
            _mean_magnitude(parameter.blob.read_diff()),
        )
