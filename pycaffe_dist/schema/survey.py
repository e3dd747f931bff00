"""Walks a prototxt along the schema, past what the schema lacks.

The parser stops at the first unknown field; this finds all of them, and the layers they belong to.
It expects braces that match.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from pycaffe_dist.schema.places import Token, tokens

_LAYERS = ("LayerParameter", "V1LayerParameter")


@dataclass(frozen=True)
class Entry:
    """A layer of a prototxt: its name and type as written (empty if not given), and its offset."""

    name: str
    type: str
    offset: int


@dataclass(frozen=True)
class Unknown:
    """A field that message type ``message`` lacks: ``text[offset:end]`` is its name and value.

    ``value`` is a value of one word, number or string, else empty; ``layer`` is the layer around
    the field, if any.  Fields with a name that an enum lacks, or with a list in place of one value,
    count as unknown too.
    """

    message: str
    field: str
    value: str
    offset: int
    end: int
    layer: Entry | None


@dataclass(frozen=True)
class Survey:
    """The layers and the unknown fields of a prototxt, in order."""

    layers: tuple[Entry, ...]
    unknown: tuple[Unknown, ...]


def survey(text: str, root: Descriptor) -> Survey:
    """Return the layers of a prototxt of message type ``root`` and the fields that it lacks."""
    walk = _Walk(list(tokens(text)))
    walk.message(0, root, None)
    return Survey(tuple(walk.layers), tuple(walk.unknown))


class _Walk:
    def __init__(self, pieces: Sequence[Token]):
        self._pieces = pieces
        self.layers: list[Entry] = []
        self.unknown: list[Unknown] = []

    def message(self, start: int, kind: Descriptor, layer: Entry | None) -> None:
        """Visit the fields of a message that begins at a token."""
        for name, value, end in self._fields(start):
            token = self._pieces[name]
            field = kind.fields_by_name.get(token.text)
            if field is None or not self._takes(field, value, end):
                last = self._pieces[end - 1]
                text = self._pieces[value].text if end == value + 1 else ""
                stop = last.offset + len(last.text)
                self.unknown.append(Unknown(kind.name, token.text, text, token.offset, stop, layer))
            elif field.message_type is not None:
                for opened in self._blocks(value, end):
                    inner = layer
                    if field.message_type.name in _LAYERS and layer is None:
                        inner = self._entry(opened + 1, token.offset)
                        self.layers.append(inner)
                    self.message(opened + 1, field.message_type, inner)

    def _takes(self, field: FieldDescriptor, value: int, end: int) -> bool:
        """Tell whether the schema has the value's form and, for an enum, its name."""
        if field.message_type is not None or value >= end:
            return True
        first = self._pieces[value]
        if first.text == "[":
            return bool(field.is_repeated)
        named = field.enum_type is not None and first.kind == "word"
        return not named or first.text in field.enum_type.values_by_name

    def _fields(self, start: int) -> Iterator[tuple[int, int, int]]:
        """Yield name, start of the value and end of each field of a message."""
        at = start
        while at < len(self._pieces) and self._pieces[at].kind != "close":
            if self._pieces[at].kind != "word":
                at += 1
                continue
            value = at + 1
            if value < len(self._pieces) and self._pieces[value].text == ":":
                value += 1
            end = self._end(value)
            yield at, value, end
            at = max(end, at + 1)

    def _end(self, at: int) -> int:
        """Return the token after the value that begins at a token."""
        if at >= len(self._pieces):
            return len(self._pieces)
        first = self._pieces[at]
        if first.kind == "open" or first.text == "[":
            depth = 0
            for index in range(at, len(self._pieces)):
                piece = self._pieces[index]
                if piece.kind == "open" or piece.text == "[":
                    depth += 1
                elif piece.kind == "close" or piece.text == "]":
                    depth -= 1
                if not depth:
                    return index + 1
            return len(self._pieces)
        if first.kind == "close":
            return at
        end = at + 1
        while first.kind == "string" and end < len(self._pieces):
            if self._pieces[end].kind != "string":
                break
            end += 1
        return end

    def _blocks(self, start: int, end: int) -> Iterator[int]:
        """Yield the opening braces of a message value or of the messages of a list."""
        depth = 0
        for index in range(start, end):
            kind = self._pieces[index].kind
            if kind == "open":
                if not depth:
                    yield index
                depth += 1
            elif kind == "close":
                depth -= 1

    def _entry(self, start: int, offset: int) -> Entry:
        found = {"name": "", "type": ""}
        for name, value, end in self._fields(start):
            key = self._pieces[name].text
            if key in found and value < end:
                piece = self._pieces[value]
                found[key] = _unquoted(piece.text) if piece.kind == "string" else piece.text
        return Entry(found["name"], found["type"], offset)


def _unquoted(text: str) -> str:
    try:
        return str(ast.literal_eval(text))
    except (SyntaxError, ValueError):
        return text.strip("\"'")
