"""Lets programs that say ``import caffe`` run on pcaffe: ``python -m pycaffe_dist.as_caffe FILE``.

Programs of one's own may call :func:`install_as_caffe` before they import caffe.  A Caffe that is
installed is never hidden unless that is asked for.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from pycaffe_dist.errors import PcaffeError, UsageError

# pycaffe's modules, and where their contents are.
_MODULES = {
    "caffe._caffe": "pycaffe_dist.pycaffe",
    "caffe.classifier": "pycaffe_dist.classifier",
    "caffe.coord_map": "pycaffe_dist.coord_map",
    "caffe.detector": "pycaffe_dist.detector",
    "caffe.draw": "pycaffe_dist.draw",
    "caffe.io": "pycaffe_dist.io",
    "caffe.net_spec": "pycaffe_dist.net_spec",
    "caffe.proto": "pycaffe_dist.proto",
    "caffe.proto.caffe_pb2": "pycaffe_dist.schema.caffe_pb2",
    "caffe.pycaffe": "pycaffe_dist.pycaffe",
}
# Names that mean something else in pycaffe_dist.
_OWN_HOMES = {"layers": "pycaffe_dist.net_spec", "log": "pycaffe_dist.pycaffe"}
# The version of Caffe whose behaviour this is.
_VERSION = "1.0.0"


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives ``caffe`` and its modules; each is the very module of pycaffe_dist."""

    def find_spec(
        self, fullname: str, path: Any = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a spec for pycaffe's modules only."""
        if fullname == "caffe" or fullname in _MODULES:
            is_package = fullname in ("caffe", "caffe.proto")
            return importlib.machinery.ModuleSpec(fullname, self, is_package=is_package)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Return the facade for ``caffe`` itself; the other modules come with exec_module."""
        return _Caffe("caffe") if spec.name == "caffe" else ModuleType(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Put the module of pycaffe_dist in the place of the empty one."""
        if module.__name__ in _MODULES:
            sys.modules[module.__name__] = importlib.import_module(_MODULES[module.__name__])


class _Caffe(ModuleType):
    """The module ``caffe``: pycaffe_dist's API, looked up when first used."""

    __version__ = _VERSION

    def __getattr__(self, name: str) -> Any:
        import pycaffe_dist

        if name.startswith("__"):
            raise AttributeError(f"module 'caffe' has no attribute '{name}'")
        if f"caffe.{name}" in _MODULES:
            return importlib.import_module(f"caffe.{name}")
        home = _OWN_HOMES.get(name)
        value = getattr(importlib.import_module(home) if home else pycaffe_dist, name)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        import pycaffe_dist

        return sorted({*super().__dir__(), *pycaffe_dist.__all__})


def install_as_caffe(force: bool = False, cpu: bool = False) -> None:
    """Let ``import caffe`` give pcaffe in this process.

    ``force`` allows that although a Caffe is installed, or imported already; without it that raises
    UsageError.  ``cpu`` lets programs that ask for a GPU go on on the CPU.
    """
    if cpu:
        from pycaffe_dist.api.process import process

        process.cpu_instead = True
    loaded = sys.modules.get("caffe")
    if isinstance(loaded, _Caffe):
        return
    if not force:
        place = getattr(loaded, "__file__", None) if loaded else _installed()
        if loaded or place:
            raise UsageError(
                f"there is a Caffe already: {place or loaded}; install_as_caffe(force=True), or "
                "as_caffe --force, hides it from this program"
            )
    for name in [name for name in sys.modules if name.split(".")[0] == "caffe"]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Finder())
    importlib.import_module("caffe")


def _installed() -> str | None:
    """Return the place of an installed Caffe; a mere folder of that name is none."""
    try:
        spec = importlib.util.find_spec("caffe")
    except (ImportError, ValueError):
        return None
    return spec.origin if spec is not None and spec.loader is not None else None


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
    # As a module of its own, not as __main__: programs may import it, too.
    sys.exit(importlib.import_module("pycaffe_dist.as_caffe").main())
