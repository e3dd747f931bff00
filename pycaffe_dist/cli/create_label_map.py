"""Write a label map for a list of names."""

from __future__ import annotations

import argparse

from pycaffe_dist.cli.flags import FlagParser, add_flag
from pycaffe_dist.errors import UsageError


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags and arguments."""
    parser.add_argument("list_file", help="the list: a name, maybe its label, maybe another name")
    parser.add_argument("label_map", help="the prototxt to write")
    text = "begin with label 0 for none_of_the_above, the background"
    add_flag(parser, "include_background", bool, help=text)
    add_flag(
        parser,
        "delimiter",
        default=" ",
        metavar="TEXT",
        help="what separates columns: any of these",
    )


def run(options: argparse.Namespace) -> int:
    """Write the label map; raises DataError."""
    from pycaffe_dist.data.label_map import label_map_of
    from pycaffe_dist.data.writers import check_new_file, write_file
    from pycaffe_dist.schema.text import to_text

    if not options.delimiter:
        raise UsageError("flag --delimiter needs a character")
    check_new_file(options.label_map)
    found = label_map_of(options.list_file, options.include_background, options.delimiter)
    write_file(options.label_map, to_text(found).encode(), "label map")
    return 0
