"""Command-line flags in gflags' spellings: ``-x 1``, ``-x=1``, ``--x 1``, ``--x=1``, ``--nox``."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar

from pycaffe_dist.config import FLAG, PRECISIONS, SettingsFlag
from pycaffe_dist.errors import UsageError, did_you_mean
from pycaffe_dist.schema.reading import read_lines

T = TypeVar("T")
_TRUE = ("1", "t", "true", "y", "yes")
_FALSE = ("0", "f", "false", "n", "no")
_KIND_NAMES: dict[type, str] = {int: "an integer", float: "a number", bool: "true or false"}
_BOOLEAN = "true|false"
_NUMBER = re.compile(r"-[\d.]")


class Flag(NamedTuple):
    """A flag's name, type (str, int, float or bool), default and help text."""

    name: str
    kind: type
    default: Any
    help: str
    metavar: str = ""
    choices: tuple[str, ...] = ()
    alone: str = ""  # the value if none is given

    def parse(self, text: str) -> Any:
        """Return ``text`` as a value of this flag; raises UsageError."""
        if self.choices and text not in self.choices:
            known = ", ".join(filter(None, self.choices))
            raise UsageError(f"flag --{self.name} is one of {known}, not '{text}'")
        if self.kind is bool and text.lower() in _TRUE + _FALSE:
            return text.lower() in _TRUE
        try:
            value = None if self.kind is bool else self.kind(text)
        except ValueError:
            value = None
        # NaN is refused: it passes every comparison with a limit.
        if value is not None and value == value:
            return value
        raise UsageError(f"flag --{self.name} needs {_KIND_NAMES[self.kind]}, not '{text}'")


# Caffe's own flags, which every `caffe` command accepts, even if it does not use them.
CAFFE_FLAGS = (
    Flag("solver", str, "", "the solver definition (prototxt)", "FILE"),
    Flag("model", str, "", "the net definition (prototxt)", "FILE"),
    Flag(
        "weights",
        str,
        "",
        "trained weights to start from; several files are separated by commas and loaded in order",
        "FILE[,FILE…]",
    ),
    Flag(
        "snapshot",
        str,
        "",
        "the solver state to resume training from; 'latest' finds the prefix's newest good one",
        "FILE",
    ),
    Flag("iterations", int, 50, "the number of iterations to run", "N"),
    Flag("gpu", str, "", "run on these GPUs: numbers separated by commas, or 'all'", "IDS"),
    Flag("phase", str, "", "the net's phase", choices=("TRAIN", "TEST", "")),
    Flag("level", int, 0, "the net's level", "N"),
    Flag("stage", str, "", "the net's stages, separated by commas", "NAMES"),
    Flag(
        "sigint_effect",
        str,
        "stop",
        "what SIGINT (Ctrl-C) does; a second one quits at once after 'stop'",
        choices=("snapshot", "stop", "none"),
    ),
    Flag(
        "sighup_effect",
        str,
        "snapshot",
        "what SIGHUP does",
        choices=("snapshot", "stop", "none"),
    ),
)


class _HelpFormatter(argparse.HelpFormatter):
    """Shows useful defaults, and booleans as ``--[no]name``."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=28)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if action.metavar == _BOOLEAN:
            return f"--[no]{action.dest}"
        return super()._format_action_invocation(action)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        shown = action.default not in ("", None, True, False, argparse.SUPPRESS)
        if shown and action.option_strings:
            return f"{action.help} (default: %(default)s)"
        return action.help


def _in_usage(positional: argparse.Action) -> str:
    name = str(positional.metavar or positional.dest)
    return {"?": f"[{name}]", "+": f"{name} …"}.get(str(positional.nargs), name)


class FlagParser(argparse.ArgumentParser):
    """An argparse parser whose options are gflags flags; errors are raised as UsageError.

    Positional arguments are added with ``add_argument`` as usual, flags with :func:`add_flag`.
    With ``flags_first``, arguments after the first positional one are not parsed.
    """

    def __init__(self, prog: str, description: str = ""):
        super().__init__(
            prog=prog,
            description=description,
            add_help=False,
            allow_abbrev=False,
            formatter_class=_HelpFormatter,
        )
        self._optionals.title = "flags"
        self._positionals.title = "arguments"
        self.flags: dict[str, Flag] = {}
        self.without_effect: dict[str, Flag] = {}
        self.given_without_effect: list[str] = []
        self.flags_first = False
        self.add_argument("-h", "--help", action="help", help="show this text and exit")

    def parse(self, args: Sequence[str]) -> argparse.Namespace:
        """Return the values of all flags and arguments; raises UsageError.

        ``given`` has the flags whose values differ from their defaults.
        """
        self.given_without_effect = []
        found = self.parse_args(self._canonical(list(args)))
        values = {name: getattr(found, name) for name in self.flags}
        found.given = {k: value for k, value in values.items() if value != self.flags[k].default}
        return found

    def format_help(self) -> str:
        """Return the help text, with a short usage line."""
        self.usage = self.usage_line()
        return super().format_help()

    def usage_line(self) -> str:
        """Return the command with its arguments."""
        return " ".join([self.prog, "[flags]", *map(_in_usage, self.positionals())])

    def positionals(self) -> list[argparse.Action]:
        """Return the arguments that are not flags."""
        return [action for action in self._actions if not action.option_strings]

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")

    def _canonical(self, args: list[str]) -> list[str]:
        """Rewrite gflags' spellings to ``--name=value``, flags first."""
        options: list[str] = []
        positionals: list[str] = []
        while args:
            arg = args.pop(0)
            if arg == "--":
                positionals += args
                break
            if self.flags_first and not arg.startswith("-"):
                positionals += [arg, *args]
                break
            if not arg.startswith("-") or arg == "-" or _NUMBER.match(arg):
                positionals.append(arg)
            elif arg in ("-h", "-help", "--help"):
                options.append("--help")
            else:
                options += self._canonical_flag(arg, args)
        if positionals and not self.positionals():
            raise UsageError(f"unexpected argument '{positionals[0]}' (see {self.prog} --help)")
        return [*options, "--", *positionals] if positionals else options

    def _canonical_flag(self, arg: str, rest: list[str]) -> list[str]:
        body = arg[2:] if arg.startswith("--") else arg[1:]
        name, has_value, value = body.partition("=")
        name = name.replace("-", "_")
        if name == "flagfile":
            rest[:0] = _flag_file(value if has_value else self._next(name, rest))
            return []
        known = self.flags | self.without_effect
        if name not in known and name.startswith("no") and not has_value:
            positive = known.get(name[2:])
            if positive is not None and positive.kind is bool:
                return [f"--{positive.name}=false"]
        if name not in known:
            hint = did_you_mean(f"--{name}", [f"--{flag}" for flag in self.flags])
            hint = hint or f" (see {self.prog} --help)"
            raise UsageError(f"unknown flag {arg.partition('=')[0]}{hint}")
        if not has_value:
            alone = "true" if known[name].kind is bool else known[name].alone
            value = alone or self._next(name, rest)
        if name in self.without_effect:
            self.without_effect[name].parse(value)
            self.given_without_effect.append(name)
            return []
        return [f"--{name}={value}"]

    def _next(self, name: str, rest: list[str]) -> str:
        following = rest[0].partition("=")[0].lstrip("-").replace("-", "_") if rest else ""
        if not rest or (rest[0].startswith("-") and following in self.flags):
            raise UsageError(f"flag --{name} needs a value")
        return rest.pop(0)


def add_flag(
    parser: FlagParser,
    name: str,
    kind: type = str,
    *,
    default: Any = None,
    help: str,
    metavar: str = "",
    choices: Iterable[str] = (),
    alone: str = "",
) -> None:
    """Give ``parser`` a flag of type ``kind``; its value is the attribute ``name``.

    The default of a str is the empty string, of a bool False, as in Caffe.
    """
    if default is None and kind in (str, bool):
        default = kind()
    _add(parser, Flag(name, kind, default, help, metavar, tuple(choices), alone))


def add_settings_flags(parser: FlagParser, settings: type, **only: str) -> None:
    """Give ``parser`` the flags of a class of settings, and of the settings inside it.

    With help texts in ``only``, it gets these flags alone.
    """
    for field, declared in _flags_of(settings):
        if not only or field.name in only:
            name, kind, choices = declared.name or field.name, declared.kind, declared.choices
            text = only.get(field.name, declared.help)
            default = _given(field.default, declared)
            more = tuple(choices), declared.alone
            _add(parser, Flag(name, kind, default, text, declared.metavar, *more))


def settings_of(options: argparse.Namespace, settings: type[T], **others: Any) -> T:
    """Return the settings that flags stand for, with values for ``others``; raises UsageError."""
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]
        declared = field.metadata.get(FLAG)
        if dataclasses.is_dataclass(field.default):
            others[field.name] = settings_of(options, type(field.default))
        elif declared is not None:
            name = declared.name or field.name
            if not declared.choices and declared.kind in (int, float) and not declared.negative:
                require_not_negative(options, (name,))
            others[field.name] = _meant(getattr(options, name), declared)
    return settings(**others)


def require_exchange(options: argparse.Namespace, settings: type) -> None:
    """Raise UsageError for a flag that differs from its default and that the exchange ignores."""
    for field, declared in _flags_of(settings):
        name = declared.name or field.name
        given = getattr(options, name) != _given(field.default, declared)
        if given and declared.needs not in ("", options.exchange):
            raise UsageError(f"flag --{name} is for --exchange={declared.needs}")


def _flags_of(settings: type) -> Iterator[tuple[dataclasses.Field, SettingsFlag]]:
    for field in dataclasses.fields(settings):
        if dataclasses.is_dataclass(field.default):
            yield from _flags_of(type(field.default))
        elif FLAG in field.metadata:
            yield field, field.metadata[FLAG]


def _given(value: Any, declared: SettingsFlag) -> Any:
    """Return what a flag is given for a value of its field."""
    for text, choice in declared.choices.items():
        if choice == value:
            return text
    if declared.off is not None:
        return 0.0 if value == declared.off else value / declared.unit
    return value


def _meant(given: Any, declared: SettingsFlag) -> Any:
    """Return the value of a field for what its flag was given."""
    if declared.choices:
        return declared.choices[given]
    return given if declared.off is None else given * declared.unit or declared.off


def add_caffe_flags(parser: FlagParser, used: Sequence[str], **help_texts: str) -> None:
    """Give ``parser`` Caffe's flags: ``used`` ones with help, the others hidden.

    Caffe's commands accept each other's flags, so scripts pass them; flags without an effect are
    listed in ``parser.given_without_effect``.  ``help_texts`` replace texts by name.
    """
    for flag in CAFFE_FLAGS:
        if flag.name in used:
            _add(parser, flag._replace(help=help_texts.get(flag.name, flag.help)))
        else:
            parser.without_effect[flag.name] = flag


def _add(parser: FlagParser, flag: Flag) -> None:
    parser.flags[flag.name] = flag
    shown = "|".join(filter(None, flag.choices)) or flag.metavar
    if flag.kind is bool:
        shown = _BOOLEAN
    parser.add_argument(
        f"--{flag.name}",
        type=flag.parse,
        default=flag.default,
        help=flag.help.replace("%", "%%"),
        metavar=f"[{shown}]" if flag.alone else shown or flag.kind.__name__.upper(),
    )


def add_json_flag(parser: FlagParser) -> None:
    """Give ``parser`` --json, for a command that prints its result by `results.show`."""
    add_flag(parser, "json", bool, help="print the result as JSON instead of a table")


def add_precision_flag(parser: FlagParser) -> None:
    """Give ``parser`` --precision, for a command that runs nets without keeping their blobs."""
    text = (
        "bfloat16 rounds weights and the inputs of products, where this processor multiplies such "
        "numbers faster"
    )
    add_flag(parser, "precision", default=PRECISIONS[0], choices=PRECISIONS, help=text)


def require_not_negative(options: argparse.Namespace, names: Iterable[str]) -> None:
    """Raise UsageError when one of these flags has a value below 0."""
    for name in names:
        value = getattr(options, name)
        if value is not None and value < 0:
            raise UsageError(f"flag --{name} needs 0 or more, not {value:g}")


def require_utf8(options: argparse.Namespace, names: Iterable[str]) -> None:
    """Raise UsageError when the value of one of these flags is not UTF-8."""
    for name in names:
        value = getattr(options, name)
        try:
            value.encode()
        except UnicodeEncodeError:
            shown = value.encode("utf-8", "backslashreplace").decode()
            raise UsageError(
                f"flag --{name} needs a path in UTF-8, not '{shown}': rename the folder, or change "
                "to it and give the path from there"
            ) from None


def split_list(text: str) -> tuple[str, ...]:
    """Return the parts of a comma-separated flag value; an empty text has none."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _flag_file(path: str) -> list[str]:
    """Return the flags in a file, one on a line; ``#`` starts a comment line."""
    lines = read_lines(path, lambda message: UsageError(f"the flag file {path} {message}"))
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
