"""Give pcaffe Caffe's own names: caffe, convert_imageset and others, and the module caffe.

Without a folder, the names go to where pcaffe itself was installed.  In another folder, they are
found when PATH and PYTHONPATH name it.  An installed Caffe is not hidden, unless --force is given;
--remove removes the names again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from pycaffe_dist.caffe_modules import MODULE, TOOLS, installed, is_ours
from pycaffe_dist.cli.flags import FlagParser, add_flag
from pycaffe_dist.errors import UsageError


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags and arguments."""
    parser.add_argument("folder", nargs="?", default="", help="the folder for the names")
    add_flag(parser, "remove", bool, help="remove the names from there")
    add_flag(parser, "force", bool, help="install the names even if they hide a Caffe")


def run(options: argparse.Namespace) -> int:
    """Install or remove the names; raises UsageError before anything is changed."""
    program = _program()
    tools, module = _places(options.folder)
    try:
        if options.remove:
            _remove(tools, module, program)
        else:
            _install(tools, module, program, options.force)
    except OSError as error:
        raise UsageError(f"cannot write '{error.filename}': {error.strerror}") from None
    if options.folder and not options.remove:
        print(f'export PATH="{tools[0].parent}:$PATH" PYTHONPATH="{module.parent}:$PYTHONPATH"')
    return 0


def _program() -> Path:
    """Return the file of the installed program pcaffe."""
    import shutil
    import sysconfig

    found = shutil.which("pcaffe", path=sysconfig.get_path("scripts")) or shutil.which("pcaffe")
    if not found:
        raise UsageError("there is no program pcaffe beside this Python or on PATH: pip install it")
    return Path(found).resolve()


def _places(folder: str) -> tuple[list[Path], Path]:
    """Return where programs and module go."""
    import sysconfig

    programs = Path(folder).absolute() if folder else Path(sysconfig.get_path("scripts"))
    modules = programs if folder else Path(sysconfig.get_path("purelib"))
    return [programs / name for name in TOOLS], modules / "caffe.py"


def _install(tools: list[Path], module: Path, program: Path, force: bool) -> None:
    for path in [*tools, module]:
        ours = is_ours(path) if path == module else _leads_to(path, program)
        if (path.exists() or path.is_symlink()) and not ours:
            raise UsageError(f"'{path}' exists already and is not pcaffe's: choose another folder")
    other = next(_others(tools, program), None)
    if other and not force:
        raise UsageError(
            f"there is a Caffe already: {other}; --force hides it where the new names come first"
        )
    for tool in tools:
        tool.parent.mkdir(parents=True, exist_ok=True)
        if not tool.exists():
            tool.unlink(missing_ok=True)
            tool.symlink_to(program)
        print(f"{tool} -> {program}")
    module.write_text(MODULE)
    print(module)


def _remove(tools: list[Path], module: Path, program: Path) -> None:
    found = [tool for tool in tools if _leads_to(tool, program)]
    found += [module] if is_ours(module) else []
    if not found:
        raise UsageError(f"there are none of pcaffe's names in '{tools[0].parent}'")
    for path in found:
        path.unlink()
        print(f"removed {path}")


def _others(tools: list[Path], program: Path) -> Iterator[str]:
    """Return the programs and the module of an installed Caffe."""
    import shutil

    for tool in tools:
        found = shutil.which(tool.name)
        if found and not _leads_to(Path(found), program):
            yield found
    if module := installed():
        yield module


def _leads_to(path: Path, program: Path) -> bool:
    return path.is_symlink() and path.resolve() == program
