"""Reads and prints prototxts; errors name the place and the known choices."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from pycaffe_dist import limits
from pycaffe_dist.errors import PrototxtError, did_you_mean, did_you_mean_field
from pycaffe_dist.log import logger
from pycaffe_dist.schema import caffe_pb2, forks
from pycaffe_dist.schema.places import (
    Lines,
    Places,
    Surroundings,
    layer_lines,
    surroundings,
    tokens,
)
from pycaffe_dist.schema.reading import looks_like_text, read_bytes
from pycaffe_dist.schema.survey import Survey, Unknown, survey
from pycaffe_dist.schema.upgrade import upgrade_net, upgrade_solver

AnyMessage = TypeVar("AnyMessage", bound=Message)
_Path = str | os.PathLike[str]

# An error lists no more choices.
_MOST_CHOICES = 20
_NOUNS = {"NetParameter": "net", "SolverParameter": "solver"}
_TAKES = {
    FieldDescriptor.TYPE_INT32: "a whole number from -2147483648 to 2147483647",
    FieldDescriptor.TYPE_INT64: "a whole number",
    FieldDescriptor.TYPE_UINT32: "a whole number from 0 to 4294967295",
    FieldDescriptor.TYPE_FLOAT: "a number",
    FieldDescriptor.TYPE_DOUBLE: "a number",
    FieldDescriptor.TYPE_BOOL: "true or false",
    FieldDescriptor.TYPE_STRING: "a string in quotes",
    FieldDescriptor.TYPE_BYTES: "a string in quotes",
}


def read_net(path: _Path) -> caffe_pb2.NetParameter:
    """Return the net of a prototxt, upgraded to today's layers; raises PrototxtError."""
    return read_net_with_places(path)[0]


def read_net_with_places(path: _Path) -> tuple[caffe_pb2.NetParameter, Places]:
    """Return the upgraded net of a prototxt and the lines of its layers; raises PrototxtError."""
    file = os.fspath(path)
    text = read_text(path)
    net = parse(text, caffe_pb2.NetParameter(), file)
    lines = layer_lines(text)
    upgrade = upgrade_net(net, file, lines.layers)
    for note in upgrade.notes:
        logger.warning("%s: %s", file, note)
    new_lines = [lines.input if old is None else lines.layers[old] for old in upgrade.origins]
    return net, Places(file, new_lines, [layer.name for layer in net.layer])


def read_solver(path: _Path) -> caffe_pb2.SolverParameter:
    """Return the solver of a prototxt, itself and the nets within it upgraded.

    As in Caffe, its snapshots are named after the file by default.  Raises PrototxtError.
    """
    file = os.fspath(path)
    solver = parse(read_text(path), caffe_pb2.SolverParameter(), file)
    for note in upgrade_solver(solver, file):
        logger.warning("%s: %s", file, note)
    _complete_snapshot_prefix(solver, Path(path))
    return solver


def _complete_snapshot_prefix(solver: caffe_pb2.SolverParameter, path: Path) -> None:
    if not solver.HasField("snapshot_prefix"):
        solver.snapshot_prefix = str(path.with_suffix(""))
        logger.info("snapshot_prefix was not specified and is set to %s", solver.snapshot_prefix)
    elif Path(solver.snapshot_prefix).is_dir():
        solver.snapshot_prefix = str(Path(solver.snapshot_prefix) / path.stem)
        logger.info("snapshot_prefix was a directory and is now %s", solver.snapshot_prefix)


def read_text(path: _Path) -> str:
    """Return the text of a prototxt.

    Raises PrototxtError if it is missing, empty, binary or above `limits.PROTOTXT_BYTES`.

    Bytes that are not UTF-8, which occur in comments, are allowed.
    """
    file = os.fspath(path)
    data = read_bytes(path, lambda message: PrototxtError(message, file))
    excess = limits.excess(len(data), limits.PROTOTXT_BYTES, "bytes")
    if excess:
        raise PrototxtError(excess, file)
    if not looks_like_text(data):
        raise PrototxtError("is a binary file, expected a prototxt", file)
    text = data.decode("utf-8-sig", errors="replace")
    if next(tokens(text), None) is None:
        raise PrototxtError("is empty but for comments", file)
    return text


def parse(text: str, message: AnyMessage, file: str = "") -> AnyMessage:
    """Read a prototxt's text into an empty message and return that message.

    ``file`` is for errors only.  Raises PrototxtError with line and column.
    """
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        _parse_without_ignored(error, text, message, file)
    missing = message.FindInitializationErrors()
    if missing:
        layer = re.match(r"layer\[(\d+)\]", missing[0])
        line = layer_lines(text).layers[int(layer.group(1))] if layer else 0
        raise PrototxtError(f"{missing[0]} is required and missing", file, line)
    # Most strings are paths and names, which cannot contain a zero byte (written as \0).
    name = _string_with_zero(message) if "\\" in text else ""
    if name:
        raise PrototxtError(f"{name} holds a zero byte", file)
    return message


def _parse_without_ignored(
    error: text_format.ParseError, text: str, message: Message, file: str
) -> None:
    """Parse again without the fields of forks that change no number; warn about them."""
    found = survey(text, message.DESCRIPTOR)
    ignored = [field for field in found.unknown if forks.is_ignored(field)]
    if not ignored:
        raise _explained(error, text, message.DESCRIPTOR, file, found) from None
    text = _blanked(text, ignored)
    message.Clear()
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as other:
        raise _explained(other, text, message.DESCRIPTOR, file, found) from None
    names = ", ".join(dict.fromkeys(field.field for field in ignored))
    logger.warning("%s: ignored fields of forks that change no number: %s", file, names)


def _blanked(text: str, fields: Sequence[Unknown]) -> str:
    """Return a text with blanks for some fields, so that lines and columns stay the same."""
    parts, end = [], 0
    for field in fields:
        parts += [text[end : field.offset], re.sub(r"[^\n]", " ", text[field.offset : field.end])]
        end = field.end
    return "".join([*parts, text[end:]])


def _string_with_zero(message: Message) -> str:
    """Return the name of a field whose string has a zero byte; empty if there is none."""
    for field, value in message.ListFields():
        if field.type not in (field.TYPE_STRING, field.TYPE_MESSAGE):
            continue
        for item in [value] if isinstance(value, str | Message) else value:
            found = "" if isinstance(item, str) else _string_with_zero(item)
            if found or (isinstance(item, str) and "\0" in item):
                return f"{field.name}.{found}" if found else field.name
    return ""


def to_text(message: Message) -> str:
    """Return a message as a prototxt, in the form that Caffe logs and writes."""
    return _PYTHON_FLOAT.sub(_as_printf, text_format.MessageToString(message))


# A float at the end of its line; strings end in a quote and whole numbers have no such parts.
_PYTHON_FLOAT = re.compile(r"(?<=: )-?\d+(?:\.\d+)?(?:e[+-]?\d+)?$", re.MULTILINE)


def _as_printf(match: re.Match[str]) -> str:
    text = match.group()
    if "." not in text and "e" not in text:
        return text
    digits = len(text.split("e")[0].replace(".", "").strip("-0"))
    return f"{float(text):.{max(digits, 6)}g}"


def _explained(
    error: text_format.ParseError, text: str, root: Descriptor, file: str, found: Survey
) -> PrototxtError:
    lines = Lines(text)
    offset = lines.offset(error.GetLine() or 1, error.GetColumn() or 1)
    missing = [layer for layer in found.layers if layer.type in forks.TYPES]
    if missing and any(field.offset <= offset < field.end for field in found.unknown):
        places = [(layer.type, layer.name, lines.line(layer.offset)) for layer in missing]
        return PrototxtError(forks.unknown_types(places), file, places[0][2])
    message, offset = _Explanation(text, offset, root, found).of(str(error))
    return PrototxtError(message, file, lines.line(offset), lines.column(offset))


class _Explanation:
    """Explains an error at a place of a prototxt, in the terms of its author."""

    def __init__(self, text: str, offset: int, root: Descriptor, found: Survey):
        self.text, self.offset, self.root = text, offset, root
        self.unknown = next((u for u in found.unknown if u.offset <= offset < u.end), None)
        self.around: Surroundings = surroundings(text, offset)
        token = next(tokens(text, offset), None)
        self.found = f"'{token.text}'" if token else "the end of the file"
        self.messages = [root]  # from the outermost to the innermost
        for name in self.around.names:
            self.messages.append(self.messages[-1].fields_by_name[name].message_type)
        self.field: FieldDescriptor | None = self.messages[-1].fields_by_name.get(self.around.field)

    def _named(self, depth: int | None = None) -> str:
        names = self.around.names[:depth]
        return ".".join(names) or f"the {_NOUNS.get(self.root.name, self.root.name)}"

    def _field_named(self) -> str:
        return ".".join((*self.around.names, self.around.field))

    def of(self, said: str) -> tuple[str, int]:
        """Return a message and its offset, from the parser's message."""
        if match := re.search(r'has no field named "(.*)"', said):
            return self._unknown_field(match.group(1)), self.offset
        if match := re.search(r'should not have multiple "(.*)" fields', said):
            return f"{'.'.join((*self.around.names, match.group(1)))} is given twice", self.offset
        if re.search(r'Expected "[}>]"', said):
            path = surroundings(self.text, len(self.text)).path
            opened = ".".join(name for name, _ in path)
            return f"the brace that opens {opened} is never closed", path[-1][1]
        if "Expected identifier" in said:
            if self.found in ("'}'", "'>'") and not self.around.path:
                return f"{self.found} closes nothing", self.offset
            return f"expected the name of a field of {self._named()}, found {self.found}", (
                self.offset
            )
        if self.field is not None and re.search(r'Expected "[:{]"', said):
            what = "':' and a value" if 'Expected ":"' in said else "'{'"
            return f"expected {what} after {self._field_named()}, found {self.found}", self.offset
        if match := re.search(r'Expected "([^"]+)"\.$', said):
            return f"expected '{match.group(1)}', found {self.found}", self.offset
        if "missing ending quote" in said:
            return f"the string {self.found} has no closing quote in its line", self.offset
        if self.field is not None and self.field.message_type is None:
            return self._wrong_value(self.field), self.offset
        return re.sub(r"^\d+:\d+ : ", "", said), self.offset

    def _unknown_field(self, name: str) -> str:
        message = self.messages[-1]
        text = f"{self._named()} has no field '{name}'"
        for depth in range(len(self.messages) - 2, -1, -1):
            if name in self.messages[depth].fields_by_name:
                line = Lines(self.text).line(self.around.path[-1][1])
                return (
                    f"{text}, but {self._named(depth)} has: is a '}}' missing for the brace "
                    f"opened in line {line}?"
                )
        for other, kind in _NOUNS.items():
            known = caffe_pb2.DESCRIPTOR.message_types_by_name[other].fields_by_name
            if len(self.messages) == 1 and other != self.root.name and name in known:
                return f"{text}: this looks like the prototxt of a {kind}"
        layer = self.unknown.layer if self.unknown else None
        if layer and layer.type:
            text = f"layer '{layer.name}' ({layer.type}): {text}"
        refusal = forks.refusal(self.unknown) if self.unknown else ""
        if refusal:
            return text + refusal
        return text + did_you_mean_field(name, message.fields_by_name)

    def _wrong_value(self, field: FieldDescriptor) -> str:
        text = f"{self._field_named()} takes "
        if field.enum_type is None:
            return f"{text}{_TAKES[field.type]}, found {self.found}"
        known = [value.name for value in field.enum_type.values]
        layer = self.unknown.layer if self.unknown else None
        if len(known) > _MOST_CHOICES and layer:
            hint = did_you_mean(self.found.strip("\"'"), known)
            return f"layer '{layer.name}' is of the unknown type {self.found}{hint}"
        if self.found[1:-1].strip("\"'") in known:
            hint = ", which is written without quotes"
        else:
            hint = did_you_mean(self.found.strip("\"'"), known)
        return f"{text}one of {', '.join(known)}, found {self.found}{hint}"
