"""The ``pcaffe`` program: finds the command, parses flags, runs it, turns errors into a line."""

from __future__ import annotations

import gc
import importlib
import os
import pkgutil
import sys
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pycaffe_dist
from pycaffe_dist import cli, log
from pycaffe_dist.caffe_modules import TOOLS
from pycaffe_dist.cli.flags import Flag, FlagParser, add_flag
from pycaffe_dist.errors import WRONG_INPUT, UsageError, did_you_mean, exit_status
from pycaffe_dist.launch import environment, messages, processes

INTERRUPTED = 130
BROKEN_PIPE = 141
RANK_0_FIRST_SECONDS = 3
# Python's own number is so small that the collector takes an eighth of a start, for its looks at
# the modules that a command imports.
OBJECTS_PER_COLLECTION = 10_000
_LAST_STANDARD_STREAM = 2
# GLOG_ and the name is the environment variable of the default.
GLOG_FLAGS = (
    Flag("v", int, 0, "1 logs details, too: solver and nets as text, their building", "N"),
    Flag(
        "minloglevel",
        int,
        0,
        "log from this severity on: 0 all, 1 warnings, 2 errors, 3 only fatal errors",
        "N",
    ),
    Flag("log_dir", str, "", "write the log with details to a file in this folder, too", "FOLDER"),
    Flag("logtostderr", bool, False, "write no log file, even with log_dir"),
    Flag(
        "alsologtostderr",
        bool,
        True,
        "log to standard error also when there is a log file (the default, as in Caffe)",
    ),
    Flag(
        "stderrthreshold",
        int,
        2,
        "with log_dir and --noalsologtostderr: the least severity for standard error",
        "N",
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``pcaffe`` with ``argv`` (default: the process's arguments); return the exit status.

    An exception becomes one line on standard error and its exit status; with ``--debug`` its
    traceback follows.
    """
    _open_closed_streams()
    if argv is None:
        gc.set_threshold(OBJECTS_PER_COLLECTION)
    args = [*_tool(), *sys.argv[1:]] if argv is None else list(argv)
    log.start(rank=environment.rank(), debug="debug" in (arg.lstrip("-") for arg in args))
    try:
        processes.end_earlier_attempts()
        status = _run(args)
        sys.stdout.flush()
        if status == 0 and environment.rank() == 0:
            messages.report(messages.DONE)
        return status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes standard output at exit; give it a place to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:
        if environment.rank() > 0:
            # Most errors occur on all ranks: rank 0 reports them, and its end ends this rank.
            time.sleep(RANK_0_FIRST_SECONDS)
        log.fatal(error)
        return exit_status(error)
    finally:
        log.stop()


def _tool() -> list[str]:
    """Return the command that the program's own name is, if it was started by Caffe's name."""
    name = os.path.basename(sys.argv[0]).removesuffix(".bin")
    return [name] if name in TOOLS and name != "caffe" else []


def _open_closed_streams() -> None:
    """Open the null device in place of standard streams that are closed (``2>&-``).

    Otherwise the next open files would get their numbers, and libraries would print into them.
    """
    while (file := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD_STREAM:
        os.set_inheritable(file, True)
    os.close(file)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


def commands() -> dict[str, ModuleType]:
    """Return every command's module by name, sorted."""
    names = sorted(module.name for module in pkgutil.iter_modules(cli.__path__))
    modules = {name: _import(name) for name in names}
    return {name: module for name, module in modules.items() if hasattr(module, "run")}


def _run(args: list[str]) -> int:
    if not args:
        print(_usage(), file=sys.stderr)
        return WRONG_INPUT
    if args[0] in ("-h", "-help", "--help", "help") and len(args) == 1:
        print(_usage())
        return 0
    if args[0] in ("-version", "--version"):
        print(f"pcaffe {pycaffe_dist.__version__}")
        return 0
    if args[0] == "help":
        args = [*args[1:], "--help"]
    name, rest = _split_command(args)
    command = _command(name)
    parser = FlagParser(f"pcaffe {name}", command.__doc__ or "")
    command.add_flags(parser)
    _add_log_flags(parser)
    try:
        options = parser.parse(rest)
    except SystemExit:
        # argparse has shown the help text.
        return 0
    _start_log(options)
    for flag in parser.given_without_effect:
        log.logger.warning(f"--{flag} has no effect on '{name}' (nor has it in Caffe)")
    return command.run(options)


def _split_command(args: list[str]) -> tuple[str, list[str]]:
    """Separate the command's name from the arguments: flags may precede it, as in Caffe."""
    at = 0
    if args[0].startswith("-"):
        known = commands()
        at = next((i for i, arg in enumerate(args) if arg in known), -1)
        if at < 0:
            raise UsageError(f"no command is given; known are {', '.join(known)}")
    return args[at], args[:at] + args[at + 1 :]


def _command(name: str) -> ModuleType:
    """Return a command's module; in its name, - is the same as _."""
    name = name.replace("-", "_")
    if name.isidentifier() and any(m.name == name for m in pkgutil.iter_modules(cli.__path__)):
        module = _import(name)
        if hasattr(module, "run"):
            return module
    known = list(commands())
    hint = did_you_mean(name, known) or f"; known are {', '.join(known)}"
    raise UsageError(f"unknown command '{name}'{hint}")


def _import(name: str) -> ModuleType:
    return importlib.import_module(f"{cli.__name__}.{name}")


def _usage() -> str:
    lines = ["usage: pcaffe COMMAND [flags]", "", "commands:"]
    known = commands()
    width = max(map(len, known)) + 2
    for name, module in known.items():
        summary = (module.__doc__ or "").strip().splitlines()[0].rstrip(".")
        lines.append(f"  {name:<{width}}{summary[:1].lower()}{summary[1:]}")
    lines += [
        "",
        "pcaffe COMMAND --help shows a command's flags; -x 1, -x=1, --x 1 and --x=1 are the same.",
        "pcaffe launch -n P train --solver=FILE trains on P ranks.",
    ]
    return "\n".join(lines)


def _add_log_flags(parser: FlagParser) -> None:
    """Give ``parser`` --debug and glog's flags."""
    for flag in GLOG_FLAGS:
        # argparse parses a text default like a value.
        default = os.environ.get(f"GLOG_{flag.name}") or flag.default
        add_flag(
            parser, flag.name, flag.kind, default=default, metavar=flag.metavar, help=flag.help
        )
    add_flag(parser, "debug", bool, help="show the traceback of an error that ends the command")


def _start_log(options: Any) -> None:
    log.start(
        level=_severity(options, "minloglevel"),
        rank=environment.rank(),
        log_dir="" if options.logtostderr else options.log_dir,
        to_stream=options.alsologtostderr,
        debug=options.debug,
        verbosity=options.v,
        threshold=_severity(options, "stderrthreshold"),
    )


def _severity(options: Any, flag: str) -> int:
    number = getattr(options, flag)
    if not 0 <= number < len(log.SEVERITIES):
        raise UsageError(f"flag --{flag} goes from 0 to 3, not {number}")
    return log.SEVERITIES[number]
