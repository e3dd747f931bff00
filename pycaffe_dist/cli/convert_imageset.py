"""Convert image files, in a list or in a folder for each class, to a database.

convert_imageset ROOT/ LIST DATABASE is Caffe's.  convert_imageset FOLDER DATABASE takes the classes
from the names of subfolders and writes them, by label, to labels.txt beside the database.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from pycaffe_dist.cli.converting import add_image_flags, conversion_of, ordered, root_of, write
from pycaffe_dist.cli.flags import FlagParser, add_flag
from pycaffe_dist.errors import UsageError
from pycaffe_dist.log import logger

if TYPE_CHECKING:
    from pycaffe_dist.data.image_list import ImageList
    from pycaffe_dist.data.imageset import Conversion


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags and arguments."""
    add_image_flags(
        parser,
        "the list: a path, a space and a label per line; without one, subfolders are the classes",
        needs_list=False,
    )
    add_flag(
        parser,
        "split",
        float,
        default=0.0,
        metavar="PART",
        help="without a list: write this part of every class to DATABASE_val, the rest to "
        "DATABASE_train (0.2 is a fifth); subfolders 'train' and 'val' divide images themselves",
    )


def run(options: argparse.Namespace) -> int:
    """Convert the images; raises DataError and then leaves no database behind."""
    from pycaffe_dist.data.image_list import ImageList, read_list

    if not 0 <= options.split < 1:
        raise UsageError(f"flag --split needs a part from 0 to 1, not {options.split:g}")
    if options.list_file and options.split:
        raise UsageError("flag --split divides a folder of classes: give no list")
    if not options.list_file:
        return _convert_folder(options)
    conversion = conversion_of(options)
    images = read_list(options.list_file)
    root = root_of(options.root_folder, images.paths)
    pairs = ordered(options, list(zip(images.paths, images.labels)))
    paths, labels = map(list, zip(*pairs))
    _convert(options, conversion, root, ImageList(paths, labels), options.database)
    return 0


def _convert_folder(options: argparse.Namespace) -> int:
    """Convert a folder of classes to one database or, with --split, to two."""
    from pycaffe_dist.data.image_folders import read_folder, write_classes

    folder = os.path.join(options.root_folder, "")
    base = options.database.rstrip("/")
    names = [f"{base}_train", f"{base}_val"] if options.split else [base]
    conversion, *_ = [conversion_of(options, database=name) for name in names]
    found = read_folder(folder, options.split, options.seed or 0)
    labels = os.path.join(os.path.dirname(base), "labels.txt")
    write_classes(labels, found.classes)
    logger.info("%d classes, by label in %s", len(found.classes), labels)
    for name, images in zip(names, (found.train, found.val)):
        logger.info("A total of %d images for %s.", len(images), name)
        _convert(options, conversion, folder, images, name)
    return 0


def _convert(
    options: argparse.Namespace, conversion: Conversion, root: str, images: ImageList, database: str
) -> None:
    def make(number: int) -> tuple[bytes, int]:
        return conversion.datum(root + images.paths[number], images.labels[number])

    write(options, images.paths, make, database=database)
