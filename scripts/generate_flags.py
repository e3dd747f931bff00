"""Write docs/flags.md, the flags of every command, from their declarations (``make catalogue``)."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path

from pycaffe_dist.cli.flags import Flag, FlagParser
from pycaffe_dist.cli.main import GLOG_FLAGS, commands

OUTPUT = Path(__file__).resolve().parent.parent / "docs" / "flags.md"

_HEAD = """# Commands and flags

`-x 1`, `-x=1`, `--x 1` and `--x=1` are the same; `--x` and `--nox` turn a switch on and off;
`--flagfile=FILE` reads flags from a file, one on each line. Caffe's commands accept each other's
flags; those that are not listed here have no effect, and a warning says so. `make catalogue` writes
this page from the sources.
"""
_ALL = """## All commands

`--debug` adds the traceback to an error that ends a command. The other flags are glog's;
`GLOG_` and the name is an environment variable with the default.
"""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _table(flags: Iterable[Flag]) -> Iterator[str]:
    yield "| flag | value | default | |"
    yield "| --- | --- | --- | --- |"
    for flag in flags:
        value = "\\|".join(filter(None, flag.choices)) or _cell(flag.metavar or flag.kind.__name__)
        default = flag.default
        if flag.kind is bool:
            value, default = "", "on" if flag.default else "off"
        elif flag.alone:
            value = f"{value}, or none for {flag.alone}"
        default = "" if default in ("", None) else f"{default:g}" if flag.kind is float else default
        yield f"| `--{flag.name}` | {value} | {default} | {_cell(flag.help)} |"
    yield ""


def _command(name: str) -> Iterator[str]:
    module = commands()[name]
    parser = FlagParser(f"pcaffe {name}")
    module.add_flags(parser)
    yield f"## {name}\n"
    yield inspect.cleandoc(module.__doc__ or "").replace("``", "`") + "\n"
    yield f"```\n{parser.usage_line()}\n```\n"
    arguments = parser.positionals()
    for argument in arguments:
        yield f"* `{argument.metavar or argument.dest}`: {_cell(argument.help or '')}"
    if arguments:
        yield ""
    if parser.flags:
        yield from _table(parser.flags.values())


def catalogue() -> str:
    """Return the page."""
    names = list(commands())
    lines = [_HEAD, ", ".join(f"[{name}](#{name})" for name in names) + ".\n", _ALL]
    lines += _table(GLOG_FLAGS)
    for name in names:
        lines.extend(_command(name))
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    OUTPUT.write_text(catalogue())
