"""Compares a net with its export on the same random inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from pycaffe_dist.errors import NetError
from pycaffe_dist.exporting.steps import Shape, Steps
from pycaffe_dist.layers.recurrent import Recurrent
from pycaffe_dist.net.net import Net
from pycaffe_dist.net.precompile import compile_kernels
from pycaffe_dist.reports.compare import Difference, difference

# The numbers of a detection.
_ROW = 7

Arrays = Mapping[str, np.ndarray]


def random_inputs(net: Steps, shapes: Mapping[str, Shape], seed: int = 0) -> dict[str, np.ndarray]:
    """Return random numbers for each input; labels, marks and boxes where a layer needs these."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for name, shape in shapes.items():
        values = rng.standard_normal(shape, np.float32)
        for step in net.steps:
            for index, bottom in enumerate(step.bottoms):
                if bottom == name and (step.type, index) in _SPECIAL:
                    values = _SPECIAL[step.type, index](rng, step, shape)
        arrays[name] = values.astype(np.float32)
    return arrays


def _marks(rng, step, shape):
    marks = rng.integers(0, 4, shape) > 0
    marks[0] = False
    return marks


def _classes(rng, step, shape):
    return rng.integers(0, step.layer.param.embed_param.input_dim, shape)


def _samples(rng, step, shape):
    return rng.integers(0, step.bottom_shapes[0][0], shape)


def _labels(rng, step, shape):
    classes = step.bottom_shapes[0][1]
    return rng.integers(0, max(1, classes), shape)


def _rows_of_weights(rng, step, shape):
    """Return labels that are numbers of a parameter's rows."""
    return rng.integers(0, len(step.blobs[0]), shape)


def _boxes_of_one_image(rng, step, shape):
    return rng.random(shape) * (np.arange(np.prod(shape)).reshape(shape) % 5 > 0)


def _boxes(rng, step, shape):
    """Return boxes in the first bottom's images."""
    scale = step.layer.param.roi_pooling_param.spatial_scale
    height, width = step.bottom_shapes[0][2:]
    boxes = np.zeros((shape[0], 5))
    corners = np.sort(rng.random((shape[0], 2, 2)), axis=1) * [width / scale, height / scale]
    boxes[:, 1:] = corners.reshape(-1, 4)
    return boxes.reshape(shape)


def _images(rng, step, shape):
    """Return height and width of images that the first bottom's map covers, and scales of 1."""
    stride = step.layer.param.proposal_param.feat_stride
    sizes = np.ones((shape[0], int(np.prod(shape[1:]))))
    sizes[:, :2] = np.multiply(step.bottom_shapes[0][2:], stride)
    return sizes.reshape(shape)


_SPECIAL = {
    ("LSTM", 1): _marks,
    ("Lstm", 1): _marks,
    ("RNN", 1): _marks,
    ("LSTMUnit", 2): _marks,
    ("Embed", 0): _classes,
    ("BatchReindex", 1): _samples,
    ("Proposal", 2): _images,
    ("ROIPooling", 1): _boxes,
    ("ROIAlign", 1): _boxes,
    ("BoxAnnotatorOHEM", 0): _boxes_of_one_image,
    ("CenterLoss", 1): _rows_of_weights,
    ("LabelSpecificAdd", 1): _labels,
    ("LabelSpecificRescale", 1): _labels,
    ("MarginInnerProduct", 1): _rows_of_weights,
    ("LargeMarginInnerProduct", 1): _rows_of_weights,
    ("SoftmaxWithLoss", 1): _labels,
    ("SoftmaxWithLossOHEM", 1): _labels,
    ("Accuracy", 1): _labels,
    ("HingeLoss", 1): _labels,
    ("MultinomialLogisticLoss", 1): _labels,
    ("InfogainLoss", 1): _labels,
}


@contextmanager
def shaped(net: Net, shapes: Mapping[str, Shape]) -> Iterator[None]:
    """Give inputs of ``net`` these shapes in a block; raises NetError if it does not take them."""
    before = {name: net.blobs[name].shape for name in shapes}
    try:
        _reshape(net, shapes)
        yield
    finally:
        _reshape(net, before)


def _reshape(net: Net, shapes: Mapping[str, Shape]) -> None:
    if any(net.blobs[name].shape != shape for name, shape in shapes.items()):
        for name, shape in shapes.items():
            net.blobs[name].reshape(*shape)
        net.reshape()


def takes(net: Net, shapes: Mapping[str, Shape]) -> bool:
    """Tell whether inputs of ``net`` can have these shapes."""
    try:
        with shaped(net, shapes):
            return True
    except NetError:
        return False


def forward(net: Net, inputs: Arrays, wanted: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Return values of ``net`` after a forward with these inputs, of any shapes that it takes.

    ``wanted`` has the values' names and their blobs.  Recurrent layers start sequences.  Raises
    NetError when the net does not take the shapes.
    """
    with shaped(net, {name: array.shape for name, array in inputs.items()}):
        for layer in net.layers:
            if isinstance(layer, Recurrent):
                layer.reset()
        for name, array in inputs.items():
            net.blobs[name].data[...] = array
        compile_kernels([net])
        net.forward()
        return {name: np.array(net.blobs[blob].read_data()) for name, blob in wanted.items()}


def differences(ours: Arrays, theirs: Arrays) -> list[Difference]:
    """Return the difference of each of our blobs."""
    return [_difference(name, array, theirs.get(name)) for name, array in ours.items()]


def _difference(name: str, ours: np.ndarray, theirs: np.ndarray | None) -> Difference:
    if theirs is not None and ours.shape != theirs.shape:
        return Difference(name, note=f"shapes {ours.shape} and {theirs.shape}")
    if theirs is not None and ours.shape[:2] == (1, 1) and ours.shape[3:] == (_ROW,):
        # Numbers of images and classes would hide the corners.
        columns = [difference(name, ours[..., k], theirs[..., k]) for k in range(_ROW)]
        return max(columns, key=lambda each: (bool(each.note), each.relative))
    return difference(name, ours, theirs)


def largest(found: Iterable[Difference]) -> float:
    """Return the largest relative difference; infinity where there is none to tell."""
    return max((np.inf if each.note else each.relative for each in found), default=0.0)


def worst(found: Iterable[Difference]) -> Difference:
    """Return the largest difference; one without a number is the largest."""
    return max(found, key=lambda each: (bool(each.note), each.relative))


def require(found: Sequence[Difference], tolerance: float) -> None:
    """Raise NetError unless all differences are within ``tolerance``."""
    if not largest(found) > tolerance:
        return
    each = worst(found)
    reason = each.note or f"relative {each.relative:.3g}, more than {tolerance:g}"
    raise NetError(f"the exported net differs in '{each.name}': {reason}; nothing is written")
