"""The flag of commands that read or write databases."""

from __future__ import annotations

from pycaffe_dist.cli.flags import FlagParser, add_flag


def add_backend_flag(parser: FlagParser, text: str, default: str = "lmdb") -> None:
    """Give ``parser`` the flag for the kind of a database, with this help."""
    from pycaffe_dist.data.sources import database_names

    add_flag(parser, "backend", default=default, choices=database_names(), help=text)
