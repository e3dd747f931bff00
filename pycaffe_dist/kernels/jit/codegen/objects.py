"""Compiles microkernels to object files, keeps these in a per-user cache, and loads them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import llvmlite
import llvmlite.binding as llvm
from llvmlite import ir

from pycaffe_dist.errors import DeviceError
from pycaffe_dist.kernels import caching, dry_run, workers
from pycaffe_dist.kernels.jit.codegen.target import Target
from pycaffe_dist.kernels.workers import Worker, WorkerDied
from pycaffe_dist.log import logger

ENTRY = "kernel"
# For tests: the name of a kind of specification at which workers end.
ABORT = "PCAFFE_ABORT_COMPILING"


class Specification(Protocol):
    """A kernel for `address_of` to compile; equal specifications are one kernel."""

    def build(self, target: Target) -> ir.Module:
        """Return a module with one function called ``kernel``."""


class _Loader:
    """The code that is loaded in this process: one address per specification and target."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._addresses: dict[tuple[Specification, Target], int] = {}
        self._libraries: list[llvm.ResourceTracker] = []  # dropping one would unload its code
        self._session = None

    def address_of(self, spec: Specification, target: Target) -> int:
        with self._lock:
            address = self._addresses.get((spec, target))
            if address is None:
                needs = dry_run.active()
                if needs is not None:
                    needs.add_microkernel(spec, target)
                    return 0
                address = self._load(_object_code(spec, target))
                self._addresses[spec, target] = address
            return address

    def has(self, spec: Specification, target: Target) -> bool:
        return (spec, target) in self._addresses

    def _load(self, code: bytes) -> int:
        if self._session is None:
            self._session = llvm.create_lljit_compiler(_machine())
        name = f"pcaffe{len(self._libraries)}"
        library = (
            llvm.JITLibraryBuilder()
            .add_object_img(code)
            .export_symbol(ENTRY)
            .link(self._session, name)
        )
        self._libraries.append(library)
        return library[ENTRY]


_loader = _Loader()
_told: set[str] = set()  # the layers that a warning has named


def address_of(spec: Specification, target: Target) -> int:
    """Return the address of the machine code of ``spec``, compiling it when it is new.

    In a dry run a new kernel has address 0.  Raises DeviceError when LLVM fails at plainer code,
    too.
    """
    return _loader.address_of(spec, target)


def is_ready(spec: Specification, target: Target) -> bool:
    """Tell whether ``spec`` needs no compiling."""
    return _loader.has(spec, target) or any(map(Path.exists, _paths(spec, target)))


def compile_microkernel(
    spec: Specification, target: Target, worker: Worker, wanted_by: str = ""
) -> None:
    """Compile ``spec`` by ``worker`` for the layer ``wanted_by``, and keep the object file."""
    _compile(spec, target, worker, _paths(spec, target), wanted_by)


def _machine(target: Target | None = None) -> llvm.TargetMachine:
    with contextlib.suppress(RuntimeError):  # newer releases initialise themselves and refuse
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    triple, names = llvm.get_process_triple(), {}
    if target is not None:
        names = {"cpu": target.cpu, "features": target.features, "opt": target.optimize}
    if target is not None and target.triple:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        triple = target.triple
    return llvm.Target.from_triple(triple).create_target_machine(
        reloc="default", codemodel="jitdefault", jit=True, **names
    )


def compile_module(module: ir.Module, target: Target) -> bytes:
    """Return the object file of ``module``."""
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    return _machine(target).emit_object(parsed)


def compile_here(spec: Specification, target: Target, code_for: Target) -> bytes:
    """Return the object file of ``spec``, with tiles for ``target`` and code for ``code_for``.

    LLVM may end the process.
    """
    if target == code_for and os.environ.get(ABORT) == type(spec).__name__:
        os.abort()
    return compile_module(spec.build(target), code_for)


@functools.lru_cache(maxsize=1)
def _generator() -> str:
    # A change of the generator's source is a new version of every kernel.
    sources = caching.digest(*sorted(Path(__file__).parents[1].rglob("*.py")))
    return f"{sources}{llvmlite.__version__} {llvm.llvm_version_info}"


def _paths(spec: Specification, target: Target) -> tuple[Path, Path]:
    """Return the files for the code of ``spec``, and for the plainer code if LLVM fails."""
    words = f"{_generator()}\n{target}\n{spec}"
    key = hashlib.sha256(words.encode()).hexdigest()[:40]
    folder = caching.cache_directory()
    return folder / f"{key}.o", folder / f"{key}.plain.o"


def _object_code(spec: Specification, target: Target) -> bytes:
    path, _ = paths = _paths(spec, target)
    code = _kept(spec, paths)
    if code is not None:
        return code
    # A few locks for all kernels, so that processes of a host can compile different ones at a time.
    with caching.exclusive(path.parent / f"lock-{path.name[0]}", path.exists):
        code = _kept(spec, paths)  # another process may have compiled it meanwhile
        if code is None:
            caching.announce()
            code = _compile(spec, target, workers.shared, paths)
    return code


def _kept(spec: Specification, paths: tuple[Path, Path]) -> bytes | None:
    """Return the code that the cache has, if it has any."""
    code = _read(paths[0])
    if code is None:
        code = _read(paths[1])
        if code is not None and not _told:
            # The process that compiled it has warned; all ranks of a host come here.
            _tell(logger.info, spec, "in an earlier run or another process", "", paths[1])
    return code


def _compile(
    spec: Specification,
    target: Target,
    worker: Worker,
    paths: tuple[Path, Path],
    wanted_by: str = "",
) -> bytes:
    """Return the code that ``worker`` makes, and keep it; if LLVM fails, plainer code."""
    reason = ""
    for code_for in (target, *target.plainer()):
        try:
            code = worker.run(compile_here, spec, target, code_for)
        except WorkerDied as error:
            reason = reason or str(error)
            continue
        _write(paths[1 if reason else 0], code)
        if reason and wanted_by not in _told:
            _tell(logger.warning, spec, reason, wanted_by, paths[1])
        return code
    raise DeviceError(f"LLVM cannot compile {_short(spec)} for {target.cpu}: {reason}")


def _tell(
    log: Callable[..., None], spec: Specification, reason: str, wanted_by: str, path: Path
) -> None:
    _told.add(wanted_by)
    log(
        "%s%s has slower code than this processor could run, because LLVM failed: %s "
        "(delete %s to try again)",
        f"layer '{wanted_by}': " if wanted_by else "",
        _short(spec),
        reason,
        path,
    )


def _short(spec: Specification) -> str:
    words = str(spec)
    return words if len(words) <= 80 else f"{words[:80]}…)"


def _read(path: Path) -> bytes | None:
    try:
        data = path.read_bytes()
    except OSError:
        return None
    code, digest = data[:-32], data[-32:]
    return code if hashlib.sha256(code).digest() == digest else None


def _write(path: Path, code: bytes) -> None:
    # A cache that cannot be written costs time at the next start, and nothing else.
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        with os.fdopen(handle, "wb") as file:
            file.write(code + hashlib.sha256(code).digest())
        os.replace(temporary, path)
