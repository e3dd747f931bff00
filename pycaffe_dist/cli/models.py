"""List the published models; copy one or fetch its weights.

models lists them; models copy NAME copies one to models/NAME, with the scripts for its data; models
fetch NAME downloads its weights to there from the address in its readme, and checks them.  A
download that was interrupted is continued.
"""

from __future__ import annotations

import argparse

from pycaffe_dist.cli.flags import FlagParser, add_flag, add_json_flag
from pycaffe_dist.errors import UsageError, did_you_mean

_ACTIONS = ("list", "copy", "fetch")


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags and arguments."""
    parser.add_argument("action", nargs="?", default="list", help=", ".join(_ACTIONS))
    parser.add_argument("name", nargs="?", default="", help="the model to copy or fetch")
    add_flag(
        parser,
        "to",
        default=".",
        metavar="FOLDER",
        help="copy, fetch: the folder whose models/ gets it",
    )
    add_flag(
        parser, "url", help="fetch: get the weights from here instead of the published address"
    )
    add_json_flag(parser)


def run(options: argparse.Namespace) -> int:
    """List, copy or fetch; raises PcaffeError."""
    from pathlib import Path

    from pycaffe_dist.results import show
    from pycaffe_dist.zoo import fetching, models

    if options.action not in _ACTIONS:
        hint = did_you_mean(options.action, _ACTIONS) or f"; known are {', '.join(_ACTIONS)}"
        raise UsageError(f"unknown action '{options.action}'{hint}")
    if (options.action == "list") == bool(options.name):
        wanted = "takes no name" if options.name else "needs the name of a model"
        raise UsageError(f"models {options.action} {wanted}")
    for flag, used, actions in (
        ("to", options.to != ".", ("copy", "fetch")),
        ("url", options.url, ("fetch",)),
        ("json", options.json, ("list",)),
    ):
        if used and options.action not in actions:
            raise UsageError(f"flag --{flag} is for models {' and '.join(actions)}")
    target = Path(options.to)
    if options.action == "copy":
        for folder in models.copy(options.name, target):
            print(folder)
    elif options.action == "fetch":
        print(fetching.fetch(options.name, target, options.url).weights())
    else:
        show(models.listed(), options.json)
    return 0
