"""The scripts that make data sets (data/*/*.sh), for errors about files that are missing."""

from __future__ import annotations

import os
import re
from pathlib import Path

_ROOT = Path(__file__).parents[1]
# What gets files of others comes before what makes new ones of them.
_KINDS = ("get_", "create_", "make_")


def how_to_make(path: str | os.PathLike[str], root: Path | None = None) -> str:
    """Return a hint, after "; ", at the scripts that make a missing file; empty if none does.

    A script makes what the comment at its top names, in its own folder.  ``root`` has the folder
    data with the scripts: without it the current folder, where `pcaffe models copy` puts some, or
    the clone.
    """
    if root is None:
        here = Path.cwd()
        return how_to_make(path, here) or how_to_make(path, _ROOT)
    wanted = Path(path)
    script, kind = _maker(wanted.name, wanted, root / "data"), ""
    if script is None and wanted.name.endswith("_leveldb"):
        script = _maker(wanted.name.replace("_leveldb", "_lmdb"), wanted, root / "data")
        kind = " leveldb"
    if script is None:
        return ""
    made = script.parent / wanted.name
    if made.exists():
        advice = f"start in {root}" if root / wanted == made else "change the path"
        return f"; there is one, {_shown(made)}: {advice}"
    first = [get for get in script.parent.glob("get_*.sh") if get != script]
    words = " and ".join([*map(_shown, first), _shown(script) + kind])
    makes = "make" if first else "makes"
    return f"; {words} {makes} {'it' if made == wanted.absolute() else _shown(made)}"


def _maker(name: str, path: Path, folder: Path) -> Path | None:
    """Return the script whose first comment has a file's name, of the data set that it is from."""
    named = re.compile(rf"(?<![\w./]){re.escape(name)}(?![\w/])")
    scripts = [
        script
        for script in folder.glob("*/*.sh")
        if script.name.startswith(_KINDS)
        and (script.parent.name in path.parts or script.parent.name in name)
        and named.search(script.read_text().partition("\n\n")[0])
    ]
    return min(scripts, key=_order, default=None)


def _order(script: Path) -> tuple[int, str]:
    kind = next(kind for kind in _KINDS if script.name.startswith(kind))
    return _KINDS.index(kind), script.name


def _shown(path: Path) -> str:
    """Return a path in short: from the current folder, if it is in there."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
