"""Convert a list of image files to a database."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pycaffe_dist.cli.converting import add_image_flags, conversion_of, ordered, write
from pycaffe_dist.cli.flags import FlagParser


def main(argv: Sequence[str]) -> int:
    """Run ``convert_imageset`` with ``argv``; return the exit status."""
    from pycaffe_dist.cli.main import main as pcaffe

    return pcaffe(["convert_imageset", *argv])


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags and arguments."""
    add_image_flags(parser, "the list: a path, a space and a label per line")


def run(options: argparse.Namespace) -> int:
    """Convert the images; raises DataError and then leaves no database behind."""
    from pycaffe_dist.data.image_list import read_list

    conversion = conversion_of(options)
    images = read_list(options.list_file)
    pairs = ordered(options, list(zip(images.paths, images.labels)))

    def make(number: int) -> tuple[bytes, int]:
        path, label = pairs[number]
        return conversion.datum(options.root_folder + path, label)

    write(options, [path for path, _ in pairs], make)
    return 0
