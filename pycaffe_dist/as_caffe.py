"""Lets programs that say ``import caffe`` run on pcaffe: ``python -m pycaffe_dist.as_caffe FILE``.

Programs may also call :func:`install_as_caffe` before they import caffe.  An installed Caffe is
hidden only on request.
"""

from __future__ import annotations

import argparse
import importlib
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from pycaffe_dist import caffe_modules
from pycaffe_dist.errors import PcaffeError, UsageError


def install_as_caffe(force: bool = False, cpu: bool = False) -> None:
    """Let ``import caffe`` give pcaffe in this process.

    If a Caffe is installed or already imported, this raises UsageError unless ``force`` is set.
    With ``cpu``, programs that request a GPU run on the CPU.
    """
    if cpu:
        from pycaffe_dist.api.process import process

        process.cpu_instead = True
    caffe_modules.install(force)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a program with ``caffe`` meaning pcaffe; return its exit status, or 1 for a usage error.

    An exception of the program keeps its traceback.
    """
    parser = argparse.ArgumentParser(
        prog="python -m pycaffe_dist.as_caffe",
        description="Run a Python program written for pycaffe on pcaffe.",
        epilog="mpirun -n 4 python -m pycaffe_dist.as_caffe train.py trains on four ranks.",
    )
    parser.add_argument("--force", action="store_true", help="hide a Caffe that is installed")
    parser.add_argument("--cpu", action="store_true", help="compute on the CPU if a GPU is wanted")
    parser.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module's name")
    parser.add_argument("program", metavar="PROGRAM", help="a Python file, or - for standard input")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="its arguments")
    options = parser.parse_args(argv)
    try:
        if not options.module and options.program != "-" and not Path(options.program).exists():
            raise UsageError(f"there is no program '{options.program}'")
        # The program's own folder counts, as when it is run by itself.
        folder = "" if options.module else str(Path(options.program).resolve().parent)
        sys.path[0] = folder
        install_as_caffe(force=options.force, cpu=options.cpu)
    except PcaffeError as error:
        print(f"as_caffe: {error}", file=sys.stderr)
        return 1
    sys.argv = [options.program, *options.arguments]
    if options.module:
        runpy.run_module(options.program, run_name="__main__", alter_sys=True)
    elif options.program == "-":
        exec(compile(sys.stdin.read(), "<stdin>", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_path(options.program, run_name="__main__")
    return 0


if __name__ == "__main__":
    # Under its own name, not as __main__, because programs may import it, too.
    sys.exit(importlib.import_module("pycaffe_dist.as_caffe").main())
