"""Write docs/forks.md, what pcaffe ignores and refuses of Caffe's forks (``make catalogue``)."""

from __future__ import annotations

from pathlib import Path

from pycaffe_dist.schema import forks

OUTPUT = Path(__file__).resolve().parent.parent / "docs" / "forks.md"

_HEAD = """# Prototxts of Caffe's forks

The layers that pcaffe has of Caffe's forks are in [layers.md](layers.md), next to Caffe's own. This
page lists what else public prototxts use. `make catalogue` writes it from
`pycaffe_dist/schema/forks.py`.

## Fields that are ignored

They change no number. A prototxt that uses some of them is read with one warning that names them. A
name alone means the field of every message. The schema, `proto/caffe.proto`, has no field of a fork
that changes nothing; Caffe 1.0's own `engine` fields are accepted without a warning, as in Caffe.
"""
_NEUTRAL = """
## Fields that are ignored with some values

Other values are refused.
"""
_REFUSED = """
## Fields that are refused

They change numbers: a prototxt that uses one of them is refused with the name of the fork.
"""
_TYPES = """
## Binary nets

Forks give one number to different fields of layers. Weights load from any of them, since names,
types and blobs have the same numbers everywhere. `pcaffe upgrade_net_proto_binary`, which keeps the
other fields, tells them apart by the types of their layers (`pycaffe_dist/schema/dialects.py`), and
refuses a net with a field that the type does not explain.

## Layer types that are refused

One error names all such layers of a prototxt, with their lines and forks.
"""


def _table(head: tuple[str, str], rows: list[tuple[str, str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "| --- | --- |"]
    return "\n".join([*lines, *(f"| {first} | {second} |" for first, second in rows)]) + "\n"


def _by_fork(names: dict[str, str]) -> list[tuple[str, str]]:
    """Return a row for each fork, with its names."""
    found: dict[str, list[str]] = {}
    for name, fork in names.items():
        found.setdefault(fork, []).append(f"`{name}`")
    return sorted((fork, ", ".join(of_fork)) for fork, of_fork in found.items())


def page() -> str:
    """Return the page."""
    ignored = [(f"`{name}`", reason) for name, reason in sorted(forks.IGNORED.items())]
    neutral = [
        (f"`{name}`", ", ".join(sorted(values))) for name, values in sorted(forks.NEUTRAL.items())
    ]
    parts = [
        _HEAD,
        _table(("field", "why it changes nothing here"), ignored),
        _NEUTRAL,
        _table(("field", "values"), neutral),
        _REFUSED,
        _table(("fork", "fields"), _by_fork(forks.FIELDS)),
        _TYPES,
        _table(("fork", "types"), _by_fork(forks.TYPES)),
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    OUTPUT.write_text(page())
