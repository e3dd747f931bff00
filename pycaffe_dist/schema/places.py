"""Finds places in a prototxt: the lines of layers, and the messages around a place.

This reads only braces, strings and names; the parser checks the text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""(?P<skip>[\s,;]+|\#[^\n]*)
    |(?P<string>"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?)
    |(?P<word>[A-Za-z_][\w+-]*)
    |(?P<number>[0-9.+-][\w.+-]*)
    |(?P<open>[{<])
    |(?P<close>[}>])
    |(?P<other>.)""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Token:
    """A piece of a prototxt: ``kind`` is string, word, number, open, close or other."""

    kind: str
    text: str
    offset: int


def tokens(text: str, start: int = 0) -> Iterator[Token]:
    """Yield the tokens of a prototxt from an offset on, except blanks and comments."""
    for match in _TOKEN.finditer(text, start):
        if match.lastgroup != "skip":
            yield Token(match.lastgroup or "", match.group(), match.start())


class Lines:
    """Translates offsets in a text to line and column and back; both count from 1."""

    def __init__(self, text: str):
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def line(self, offset: int) -> int:
        """Return the line of an offset."""
        return bisect_right(self._starts, offset)

    def column(self, offset: int) -> int:
        """Return the column of an offset in its line."""
        return offset - self._starts[self.line(offset) - 1] + 1

    def offset(self, line: int, column: int) -> int:
        """Return the offset of a line and column; a line past the end counts as the last."""
        return self._starts[min(line, len(self._starts)) - 1] + column - 1


@dataclass(frozen=True)
class Surroundings:
    """The open messages at a place: ``path`` has the field and the offset of each open brace,
    outermost first; ``field`` is the last name before the place in the innermost message."""

    path: tuple[tuple[str, int], ...]
    field: str

    @property
    def names(self) -> tuple[str, ...]:
        """The fields that lead from the outermost message to the innermost."""
        return tuple(name for name, _ in self.path)


def surroundings(text: str, offset: int) -> Surroundings:
    """Return the messages that are open just before an offset."""
    path: list[tuple[str, int]] = []
    field = ""
    for token in tokens(text):
        if token.offset >= offset:
            break
        if token.kind == "word":
            field = token.text
        elif token.kind == "open":
            path.append((field, token.offset))
            field = ""
        elif token.kind == "close" and path:
            field, _ = path.pop()
    return Surroundings(tuple(path), field)


@dataclass(frozen=True)
class LayerLines:
    """The lines of a net's ``layer`` and ``layers`` entries, in order, and of its first ``input``
    (0 when it has none)."""

    layers: tuple[int, ...]
    input: int


def line_named_by(message: str, text: str) -> int:
    """Return the line of a prototxt's first field that a message names; 0 if it names none."""
    named = set(re.findall(r"\w+", message))
    found = (token for token in tokens(text) if token.kind == "word" and token.text in named)
    first = next(found, None)
    return 0 if first is None else Lines(text).line(first.offset)


def layer_lines(text: str) -> LayerLines:
    """Return the lines of the layers in a well-formed net prototxt."""
    lines = Lines(text)
    found: list[int] = []
    first_input = depth = 0
    field, field_offset = "", -1
    for token in tokens(text):
        if token.kind == "open":
            if depth == 0 and field in ("layer", "layers"):
                # In `layer: [{...}, {...}]` the others are on the lines of their braces.
                found.append(lines.line(field_offset if field_offset >= 0 else token.offset))
                field_offset = -1
            depth += 1
        elif token.kind == "close":
            depth -= 1
        elif token.kind == "word" and depth == 0:
            field, field_offset = token.text, token.offset
            if field == "input" and not first_input:
                first_input = lines.line(token.offset)
    return LayerLines(tuple(found), first_input)


class Places:
    """The places where the layers of a net are defined, for errors: ``places.layer("conv1")``.

    ``lines`` and ``names`` have one entry for each layer of the (upgraded) net; a line of 0 is
    unknown.
    """

    def __init__(self, file: str, lines: Sequence[int] = (), names: Sequence[str] = ()):
        self.file = file
        self._lines = tuple(lines)
        self._first = {name: i for i, name in reversed(list(enumerate(names)))}

    def layer(self, which: int | str) -> str:
        """Return ``file:line`` of a layer, given by index in the net or by name.

        A net may define several layers of one name for different phases; the name then means the
        first.  If the layer is unknown, returns the file alone.
        """
        index = self._first.get(which, -1) if isinstance(which, str) else which
        line = self._lines[index] if 0 <= index < len(self._lines) else 0
        return f"{self.file}:{line}" if line else self.file
