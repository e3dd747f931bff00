"""Find objects in images with a model: their boxes, classes and scores.

A net that ends in a DetectionOutput (SSD) finds the boxes itself.  A net that classifies windows
(R-CNN) gets them from --windows, a .csv with the columns filename, ymin, xmin, ymax and xmax.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pycaffe_dist.cli.classify import add_model_flags, files_of, use_device
from pycaffe_dist.cli.flags import FlagParser, add_flag
from pycaffe_dist.errors import UsageError

if TYPE_CHECKING:
    from pycaffe_dist.zoo.detecting import Box
    from pycaffe_dist.zoo.models import Model


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags and arguments."""
    parser.add_argument("images", nargs="*", help="image files, or folders of them")
    add_model_flags(parser)
    text = "the prototxt of the classes' names (default: the one that the model's nets name)"
    add_flag(parser, "label_map", metavar="FILE", help=text)
    text = "print boxes with at least this score"
    add_flag(parser, "threshold", float, default=0.5, metavar="SCORE", help=text)
    add_flag(parser, "windows", metavar="FILE", help="classify the windows in this .csv")
    text = "pixels of the net's input around a window that show its surroundings"
    add_flag(parser, "context_pad", int, default=16, metavar="N", help=text)


def run(options: argparse.Namespace) -> int:
    """Detect as the flags say; raises PcaffeError."""
    if not options.model:
        raise UsageError("need a model to detect with: --model=NAME (see pcaffe models)")
    if bool(options.images) == bool(options.windows):
        raise UsageError("give images, or a list of windows with --windows=FILE")
    from pycaffe_dist.results import show
    from pycaffe_dist.zoo.detecting import AllDetected, Detected
    from pycaffe_dist.zoo.models import find

    model = find(options.model)
    weights = options.weights or str(model.required_weights())
    find_in = _windows if options.windows else _boxes
    found = [Detected(path, boxes) for path, boxes in find_in(options, model, weights)]
    show(AllDetected(found), options.json)
    return 0


def _boxes(
    options: argparse.Namespace, model: Model, weights: str
) -> Iterator[tuple[str, list[Box]]]:
    """Yield each image file and the boxes that a net finds in it."""
    from pycaffe_dist.cli.progress import Counter
    from pycaffe_dist.zoo.detecting import BoxFinder

    paths = files_of(options.images)
    use_device(options.gpu)
    wanted = options.label_map, options.mean, options.scale, options.precision
    finder = BoxFinder(model, weights, *wanted)
    with Counter(len(paths), "images") as counter:
        for path, boxes in zip(paths, finder.find(paths, options.threshold)):
            yield path, boxes
            counter.update()


def _windows(
    options: argparse.Namespace, model: Model, weights: str
) -> Iterator[tuple[str, list[Box]]]:
    """Yield each image file and the best classes of its windows whose scores are high enough."""
    from pathlib import Path

    from pycaffe_dist.zoo.detecting import classify_windows, read_windows

    windows = read_windows(Path(options.windows))
    use_device(options.gpu)
    wanted = options.context_pad, options.mean, options.scale, options.precision
    for path, boxes in classify_windows(model, weights, windows, *wanted):
        yield path, [box for box in boxes if box.score >= options.threshold]
