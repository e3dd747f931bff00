"""Lists of images and labels: text files of lines ``path label``."""

from __future__ import annotations

from dataclasses import dataclass

from pycaffe_dist.errors import DataError


@dataclass(frozen=True)
class ImageList:
    """Images by their paths below a root folder, and their labels."""

    paths: list[str]
    labels: list[int]

    def __len__(self) -> int:
        return len(self.paths)


def read_list(file: str) -> ImageList:
    """Return the list in ``file``; each line is a path, maybe with spaces, a space and a label.

    Raises `DataError` when it is unreadable or empty, or a line has no label.
    """
    paths, labels = [], []
    try:
        with open(file, encoding="utf-8", errors="surrogateescape") as lines:
            for number, line in enumerate(lines, 1):
                path, _, label = line.rstrip().rpartition(" ")
                if not line.strip():
                    continue
                try:
                    labels.append(int(label))
                except ValueError:
                    path = ""
                if not path:
                    raise DataError(
                        f"{file}:{number}: expected a path, a space and a whole number as label, "
                        f"found '{line.strip()[:80]}'"
                    )
                paths.append(path)
    except OSError as error:
        raise DataError(f"cannot read the list of images '{file}': {error.strerror}") from error
    if not paths:
        raise DataError(f"{file}: the list names no image")
    return ImageList(paths, labels)


@dataclass(frozen=True)
class Line:
    """A list's line, its words, and its place for messages: file and number."""

    text: str
    words: list[str]
    place: str


def read_words(file: str, count: int, expected: str) -> list[Line]:
    """Return the lines of ``file`` that are not empty, each with at least ``count`` words.

    ``expected`` describes a line, for errors.  Raises `DataError` when the file is unreadable or
    empty, or a line has fewer words.
    """
    lines = []
    try:
        with open(file, encoding="utf-8", errors="surrogateescape") as text:
            for number, line in enumerate(text, 1):
                words = line.split()
                if not words:
                    continue
                if len(words) < count:
                    raise DataError(
                        f"{file}:{number}: expected {expected}, found '{line.strip()[:80]}'"
                    )
                lines.append(Line(line.strip(), words, f"{file}:{number}"))
    except OSError as error:
        raise DataError(f"cannot read the list '{file}': {error.strerror}") from error
    if not lines:
        raise DataError(f"{file}: the list is empty")
    return lines


def read_paths(file: str) -> list[str]:
    """Return the paths in ``file``, one per line; raises `DataError` when it is unreadable."""
    try:
        with open(file, encoding="utf-8", errors="surrogateescape") as lines:
            return [line.strip() for line in lines if line.strip()]
    except OSError as error:
        raise DataError(f"cannot read the list of images '{file}': {error.strerror}") from error
