"""Every error that pcaffe raises on purpose.

::

    PcaffeError
    ├── UsageError        a command-line flag or an argument of the Python API
    │   └── ArgumentError the same, and a ValueError, as in pycaffe
    ├── PrototxtError     a prototxt: file, line and column, the known choices
    ├── NetError          a net that cannot be built or run
    │   └── LayerError    the same, with the layer's name
    ├── WeightsError      weights that do not fit the net
    ├── SnapshotError     a snapshot that cannot be read or written
    ├── DataError         a database, list, image or mean file
    ├── DeviceError       a device that is missing or unsuitable
    ├── NumericError      a loss that is not finite
    └── ClusterError      ranks, hosts, exchanges and MPI itself

The message alone must say where (file:line, layer, record), what was expected, what was found and,
if there is a list of known choices, the nearest one.  The command line prints it as one line and
exits with `exit_status`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping


class PcaffeError(RuntimeError):
    """The root of all deliberate errors; a RuntimeError, as in pycaffe."""


class UsageError(PcaffeError):
    """A flag or argument is unknown, missing or contradicts another."""


class ArgumentError(UsageError, ValueError):
    """An argument of the Python API has an unusable value or shape."""


class PrototxtError(PcaffeError):
    """A prototxt is malformed.  ``line`` and ``column`` count from 1; 0 means unknown."""

    def __init__(self, message: str, file: str = "", line: int = 0, column: int = 0):
        where = file or "<text>"
        if line:
            where += f":{line}"
            if column:
                where += f":{column}"
        super().__init__(f"{where}: {message}")
        self.file, self.line, self.column = file, line, column


class NetError(PcaffeError):
    """A net cannot be built or run."""


class LayerError(NetError):
    """A layer cannot be set up or run.

    ``where`` is the place of the layer's definition (``file:line``), if known.
    """

    def __init__(self, layer_name: str, layer_type: str, message: str, where: str = ""):
        place = f"{where}: " if where else ""
        super().__init__(f"{place}layer '{layer_name}' ({layer_type}): {message}")
        self.layer_name, self.layer_type, self.message, self.where = (
            layer_name,
            layer_type,
            message,
            where,
        )


class WeightsError(PcaffeError):
    """Weights do not fit the net they are loaded into."""


class SnapshotError(PcaffeError):
    """A snapshot cannot be read or written."""


class DataError(PcaffeError):
    """A database, list, image or mean file is missing or unusable."""


class DeviceError(PcaffeError):
    """A device is missing or unsuitable."""


class NumericError(PcaffeError):
    """A loss or gradient is not finite."""


class ClusterError(PcaffeError):
    """Ranks, hosts, exchanges or MPI fail or do not support a request."""


class RankLost(ClusterError):
    """A rank has died, or its host does not answer; the others may go on without it."""


class RanksChange(ClusterError):
    """All ranks have agreed that from this iteration on there are more of them, or fewer."""


class JobEnds(ClusterError):
    """The launcher ends the job: this rank has a few seconds left."""


# The part of letters that two words share, one of which may be the other mistyped.
_NEAR = 0.8
# Letters that one of them may have more.
_MOST_LETTERS = 2


#: Exit statuses: after a failure that may not happen at the next start, and after one that would.
FAILURE, WRONG_INPUT = 1, 2


def exit_status(error: BaseException) -> int:
    """Return the exit status for an error: WRONG_INPUT for input errors without another cause.

    Other causes are, for example, a failing file system or the code of a Python layer.
    """
    hopeless = isinstance(error, UsageError | PrototxtError | NetError | WeightsError)
    return WRONG_INPUT if hopeless and error.__cause__ is None else FAILURE


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest known word, or the empty string."""
    return _hint(word, {name.lower(): name for name in known})


def did_you_mean_field(word: str, known: Iterable[str]) -> str:
    """Return the same for the name of a field; the ends that many names share do not count."""
    stems = {name.lower().removesuffix("_param"): name for name in known}
    return _hint(word.removesuffix("_param"), stems)


def _hint(word: str, names: Mapping[str, str]) -> str:
    word = word.lower()
    near = [name for name in difflib.get_close_matches(word, names, 3, 0.6) if _alike(word, name)]
    return f"; did you mean '{names[near[0]]}'?" if near else ""


def _alike(word: str, name: str) -> bool:
    """Tell whether one may be the other mistyped: Convolutoin, lmbd; not Flip, ROIPooling."""
    alike = difflib.SequenceMatcher(None, word, name).ratio()
    near = alike >= _NEAR and abs(len(word) - len(name)) <= _MOST_LETTERS
    return near or sorted(word) == sorted(name)
