"""List the published models; copy one or fetch its weights.

models lists them; models copy NAME copies one to models/NAME, with the scripts for its data; models
fetch NAME downloads its weights to there from the address in its readme, and checks them.  A
download that was interrupted is continued.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from pycaffe_dist.cli.flags import FlagParser, add_flag
from pycaffe_dist.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from pycaffe_dist.zoo.models import Model

_ACTIONS = ("list", "copy", "fetch")
_MB = 1e6


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags and arguments."""
    parser.add_argument("action", nargs="?", default="list", help=", ".join(_ACTIONS))
    parser.add_argument("name", nargs="?", default="", help="the model to copy or fetch")
    add_flag(
        parser, "to", default=".", metavar="FOLDER", help="the folder that has or gets models/"
    )
    add_flag(parser, "url", help="fetch the weights from here instead of the published address")
    add_flag(parser, "json", bool, help="list the models as JSON")


def run(options: argparse.Namespace) -> int:
    """List, copy or fetch; raises PcaffeError."""
    from pathlib import Path

    from pycaffe_dist.zoo import fetching, models

    if options.action not in _ACTIONS:
        hint = did_you_mean(options.action, _ACTIONS) or f"; known are {', '.join(_ACTIONS)}"
        raise UsageError(f"unknown action '{options.action}'{hint}")
    if (options.action == "list") == bool(options.name):
        wanted = "takes no name" if options.name else "needs the name of a model"
        raise UsageError(f"models {options.action} {wanted}")
    target = Path(options.to)
    if options.action == "copy":
        for folder in models.copy(options.name, target):
            print(folder)
    elif options.action == "fetch":
        print(fetching.fetch(options.name, target, options.url).weights())
    else:
        _list([models.find(name) for name in models.names()], options.json)
    return 0


def _list(found: list[Model], as_json: bool) -> None:
    """Print a row for each model: its name, its files, and what its readme tells."""
    if as_json:
        rows = [
            {"name": model.name, "folder": str(model.folder), "weights": _weights(model)}
            | {"published": model.facts}
            for model in found
        ]
        print(json.dumps(rows, indent=2))
        return
    table = [("model", "weights", "published", "what it is")]
    for model in found:
        size = int(model.facts.get("size", 0)) / _MB
        published = f"{size:.0f} MB" if size else "yes" if "caffemodel_url" in model.facts else "-"
        here = "here" if _weights(model) else "-"
        table.append((model.name, here, published, model.facts.get("name", "")))
    widths = [max(map(len, column)) for column in zip(*table)]
    for row in table:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths)).rstrip())


def _weights(model: Model) -> str | None:
    path = model.weights()
    return str(path) if path else None
