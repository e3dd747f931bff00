"""Label maps: the names of classes and their numbers, in prototxts of a LabelMap."""

from __future__ import annotations

import re

from pycaffe_dist.data.image_list import read_words
from pycaffe_dist.errors import DataError
from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.schema.text import parse, read_text

BACKGROUND = ("none_of_the_above", "background")


def read_label_map(file: str, check: bool = False) -> dict[str, int]:
    """Return the labels by their names; of a name's several labels, the last.

    With ``check`` every name and label must be unique.  Raises PrototxtError, and DataError for
    what is not unique or missing.
    """
    labels: dict[str, int] = {}
    names: dict[int, str] = {}
    for item in parse(read_text(file), caffe_pb2.LabelMap(), file).item:
        if not item.HasField("name") or not item.HasField("label"):
            raise DataError(f"{file}: an item needs a name and a label, found {str(item)!r}")
        if check and item.name in labels:
            raise DataError(f"{file}: the name '{item.name}' occurs twice")
        if check and item.label in names:
            other = names[item.label]
            raise DataError(f"{file}: '{item.name}' and '{other}' have the same label {item.label}")
        labels[item.name], names[item.label] = item.label, item.name
    if not labels:
        raise DataError(f"{file}: the label map has no item")
    return labels


def label_map_of(file: str, background: bool, delimiters: str) -> caffe_pb2.LabelMap:
    """Return the label map for a list of names, each with a label and a name for display, or less.

    Without labels they are counted, from 1 if ``background`` adds label 0 for it.  Raises
    DataError.
    """
    found = caffe_pb2.LabelMap()
    if background:
        found.item.add(name=BACKGROUND[0], label=0, display_name=BACKGROUND[1])
    columns = 0
    for line in read_words(file, 1, "a name, a label and a name for display"):
        fields = re.split(f"[{re.escape(delimiters)}]", line.text)
        columns = columns or len(fields)
        if len(fields) != columns or columns > 3:
            raise DataError(
                f"{line.place}: expected a name, a label and a name for display, separated by "
                f"'{delimiters}', as many as in the first line, found '{line.text}'"
            )
        item = found.item.add(name=fields[0], label=len(found.item))
        if columns > 1:
            try:
                item.label = int(fields[1])
            except ValueError:
                raise DataError(f"{line.place}: '{fields[1]}' is not a label") from None
        item.display_name = fields[-1] if columns == 3 else fields[0]
    return found
