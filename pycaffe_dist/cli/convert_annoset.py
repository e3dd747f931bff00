"""Convert a list of images and their boxes to a database for AnnotatedData layers."""

from __future__ import annotations

import argparse

from pycaffe_dist.cli.converting import add_image_flags, conversion_of, ordered, root_of, write
from pycaffe_dist.cli.flags import FlagParser, add_flag, require_not_negative
from pycaffe_dist.errors import UsageError


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags and arguments."""
    from pycaffe_dist.data.annotation_files import KINDS

    add_image_flags(parser, "the list: per line the paths of an image and its annotation")
    add_flag(
        parser,
        "anno_type",
        default="classification",
        choices=("classification", "detection"),
        help="what the list has beside images: labels, or files with boxes",
    )
    add_flag(parser, "label_type", default="xml", choices=KINDS, help="the kind of those files")
    add_flag(parser, "label_map_file", metavar="FILE", help="the prototxt of the labels' names")
    add_flag(parser, "check_label", bool, help="check that names and labels are unique")
    text = "enlarge images to this shorter side, keeping their aspect ratio"
    add_flag(parser, "min_dim", int, default=0, metavar="N", help=text)
    text = "shrink images to this longer side, keeping their aspect ratio"
    add_flag(parser, "max_dim", int, default=0, metavar="N", help=text)
    add_flag(parser, "redo", bool, help="replace the database, if there is one")


def run(options: argparse.Namespace) -> int:
    """Convert the images; raises DataError and then leaves no new database behind."""
    from pycaffe_dist.data.annoset import AnnotatedConversion, read_items
    from pycaffe_dist.data.label_map import read_label_map

    require_not_negative(options, ("min_dim", "max_dim"))
    conversion = conversion_of(options, options.min_dim, options.max_dim, options.redo)
    detection, labels = options.anno_type == "detection", {}
    if detection and options.label_map_file:
        labels = read_label_map(options.label_map_file, options.check_label)
    elif detection and options.label_type != "txt":
        raise UsageError(f"--label_type={options.label_type} needs --label_map_file=FILE")
    items = ordered(options, read_items(options.list_file, detection))
    paths = [item.path for item in items]
    root = root_of(options.root_folder, paths)
    annotated = AnnotatedConversion(conversion, root, options.label_type, labels)
    write(options, paths, lambda number: annotated.record(items[number]), options.redo)
    return 0
