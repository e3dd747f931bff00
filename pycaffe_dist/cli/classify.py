"""Classify images with a published model, or with your own.

Prints the best classes of each image: score, number and name.  A folder stands for all images in
it.  Size, mean and scale are those with which the model was tested.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from pycaffe_dist.cli.flags import FlagParser, add_flag, add_json_flag, add_precision_flag
from pycaffe_dist.errors import UsageError

_CROPS = {"auto": None, "1": False, "10": True}


def add_model_flags(parser: FlagParser) -> None:
    """Give ``parser`` the flags that say with which model, weights and inputs."""
    add_flag(parser, "model", metavar="NAME", help="a model's name, or its folder")
    add_flag(parser, "weights", metavar="FILE", help="weights (default: those in its folder)")
    add_flag(
        parser,
        "mean",
        metavar="VALUES|FILE",
        help="the mean per channel, blue first, or a .binaryproto (default: as in training)",
    )
    add_flag(
        parser, "scale", float, metavar="X", help="multiplies the inputs (default: as in training)"
    )
    add_flag(parser, "gpu", int, default=-1, metavar="ID", help="compute on this GPU")
    add_precision_flag(parser)
    add_json_flag(parser)


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags and arguments."""
    parser.add_argument("images", nargs="+", help="image files, or folders of them")
    add_model_flags(parser)
    text = "the classes' names, one a line (default: labels.txt in its folder)"
    add_flag(parser, "labels", metavar="FILE", help=text)
    add_flag(parser, "top", int, default=5, metavar="N", help="how many classes to print")
    add_flag(
        parser,
        "crops",
        default="auto",
        choices=_CROPS,
        help="1 takes the centre of an image, 10 also its corners, and all mirrored; auto is 10 "
        "for a model that was trained on crops",
    )


def run(options: argparse.Namespace) -> int:
    """Classify as the flags say; raises PcaffeError."""
    if not options.model:
        raise UsageError("need a model to classify with: --model=NAME (see pcaffe models)")
    if options.top < 1:
        raise UsageError(f"flag --top needs 1 or more, not {options.top}")
    from pathlib import Path

    from pycaffe_dist.cli.progress import Counter
    from pycaffe_dist.results import show
    from pycaffe_dist.zoo.classifying import AllClassified, ClassFinder, Classified
    from pycaffe_dist.zoo.models import find

    model = find(options.model)
    paths = files_of(options.images)
    weights = options.weights or str(model.required_weights())
    use_device(options.gpu)
    finder = ClassFinder(
        model,
        weights,
        Path(options.labels) if options.labels else model.labels,
        options.mean,
        options.scale,
        _CROPS[options.crops],
        options.precision,
    )
    with Counter(len(paths), "images") as counter:
        best = []
        for path, classes in zip(paths, finder.classify(paths, options.top)):
            best.append(Classified(path, classes))
            counter.update()
    show(AllClassified(best), options.json)
    return 0


def files_of(images: Iterable[str]) -> list[str]:
    """Return the image files that arguments stand for; raises UsageError before any is read."""
    import os

    from pycaffe_dist.data.image_folders import image_files

    found = []
    for path in images:
        if not os.path.exists(path):
            raise UsageError(f"there is no image or folder '{path}'")
        files = image_files(path)
        if not files:
            raise UsageError(f"the folder '{path}' has no images")
        found += files
    return found


def use_device(gpu: int) -> None:
    """Compute on this GPU, or with a negative number on the CPU; raises DeviceError."""
    import pycaffe_dist as caffe

    if gpu >= 0:
        caffe.set_mode_gpu()
        caffe.set_device(gpu)
