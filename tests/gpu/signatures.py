"""Compares what the stand-in for CuPy and cuDNN declares with the packages.

    python signatures.py [DECLARED.json]

Without a file it prints what the modules declare that this Python finds, with it the differences.
Functions of Cython and C++ tell their parameters in the first lines of their documentation.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MODULES = {
    "cupy": ["cupy", "cupy.cuda", "cupy.cuda.driver", "cupy.cuda.runtime", "cupyx"],
    "cuda": ["cuda.pathfinder"],
    "cublas": ["cupy_backends.cuda.libs.cublas"],
    "cudnn": ["cudnn"],
}
# What only CuPy itself makes, and what tests of cuDNN change.
_LEFT_OUT = "Function", "Graph", "RawKernel", "clock", "executed", "loaded", "streams"


def declared(modules: list[str]) -> dict[str, Any]:
    """Return, by name, numbers, parameters (names and kinds), and None for properties."""
    found: dict[str, Any] = {}
    for module in map(importlib.import_module, modules):
        for name, value in vars(module).items():
            is_own = isinstance(value, int) or getattr(value, "__module__", "") == module.__name__
            if is_own and not name.startswith("_") and name not in _LEFT_OUT:
                members = vars(value).items() if inspect.isclass(value) else [("", value)]
                for member, each in members:
                    if member == "__init__" or not member.startswith("_"):
                        _add(found, f"{module.__name__}:{name}.{member}".rstrip("."), each)
    return found


def _add(found: dict[str, Any], name: str, value: Any) -> None:
    if isinstance(value, int):
        found[name] = value
    elif isinstance(value, property):
        found[name] = None
    elif inspect.isfunction(value):
        every = inspect.signature(value).parameters.values()
        found[name] = [(each.name, each.kind.name) for each in every if each.name != "self"]


def differences(known: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each name of ``known`` that the packages lack, or declare otherwise."""
    for full, wanted in known.items():
        module, _, path = full.partition(":")
        owner, value = None, _module(module)
        for name in path.split("."):
            owner, value = value, getattr(value, name, None)
        if value is None:
            yield f"{full} is missing"
        elif isinstance(wanted, int) and value != wanted:
            yield f"{full} is {value}, not {wanted}"
        elif isinstance(wanted, list):
            ways = _ways(owner, value)
            if not any(_accepts(way, wanted) for way in ways):
                yield f"{full} takes {ways}, not {wanted}"


def _module(name: str) -> Any:
    # As ``from … import …`` does: CuPy loads its libraries when a module is asked for a submodule.
    parent, _, last = name.rpartition(".")
    return getattr(__import__(parent, fromlist=[last]), last) if parent else __import__(name)


def _ways(owner: Any, function: Any) -> list[list[str]]:
    """Return the names of the parameters, without self, for each way of calling a function."""
    doc = function.__doc__ or ""
    if function.__name__ == "__init__" and "self:" not in doc:
        doc = owner.__doc__ or ""
    lines = [
        line for number, line in enumerate(doc.splitlines()) if not number or line[:1].isdigit()
    ]
    found = [re.fullmatch(r"(?:\d+\. )?[\w.]+\((.*)\)(?: -> .*)?", line) for line in lines]
    ways = [_names(match[1]) for match in found if match and "*args" not in match[1]]
    ways = ways or [[*inspect.signature(function).parameters]]
    return [[name for name in way if name != "self"] for way in ways]


def _names(text: str) -> list[str]:
    words, depth = [""], 0
    for char in text:
        depth += (char in "[(<") - (char in "])>")
        if char == "," and not depth:
            words.append("")
        else:
            words[-1] += char
    names = (re.split(r"[:=]", word)[0].split() for word in words)
    return [name[-1] for name in names if name and name[-1] not in "*/"]


def _accepts(way: list[str], wanted: list[tuple[str, str]]) -> bool:
    for place, (name, kind) in enumerate(wanted):
        there = way if kind == "KEYWORD_ONLY" else way[place : place + 1]
        if not there or (kind != "POSITIONAL_ONLY" and name not in there):
            return False
    return True


if __name__ == "__main__":
    if sys.argv[1:]:
        print("\n".join(differences(json.loads(Path(sys.argv[1]).read_text()))))
    else:
        print(json.dumps({name: declared(modules) for name, modules in MODULES.items()}))
