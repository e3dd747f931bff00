"""Compiles microkernels to object files, keeps these in a per-user cache, and loads them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import threading
from pathlib import Path
from typing import Protocol

import llvmlite
import llvmlite.binding as llvm
from llvmlite import ir

from pycaffe_dist.kernels import caching
from pycaffe_dist.kernels.jit.target import Target

ENTRY = "kernel"


class Specification(Protocol):
    """What `address_of` compiles; equal specifications are one kernel."""

    def build(self, target: Target) -> ir.Module:
        """Return a module with one function called ``kernel``."""


class _Loader:
    """The code that is loaded in this process: one address per specification and target."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._addresses: dict[tuple[Specification, Target], int] = {}
        self._libraries: list[llvm.ResourceTracker] = []  # dropping one would unload its code
        self._session = None
        self._generator = ""

    def address_of(self, spec: Specification, target: Target) -> int:
        with self._lock:
            address = self._addresses.get((spec, target))
            if address is None:
                address = self._load(_object_code(spec, target, self._key(spec, target)))
                self._addresses[spec, target] = address
            return address

    def _key(self, spec: Specification, target: Target) -> str:
        if not self._generator:
            # A change of the generator's source is a new version of every kernel.
            sources = caching.digest(*sorted(Path(__file__).parent.glob("*.py")))
            versions = f"{llvmlite.__version__} {llvm.llvm_version_info}"
            self._generator = sources + versions
        words = f"{self._generator}\n{target}\n{spec}"
        return hashlib.sha256(words.encode()).hexdigest()[:40]

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


def address_of(spec: Specification, target: Target) -> int:
    """Return the address of the machine code of ``spec``, compiling it when it is new."""
    return _loader.address_of(spec, target)


def _machine(target: Target | None = None) -> llvm.TargetMachine:
    with contextlib.suppress(RuntimeError):  # newer releases initialise themselves and refuse
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    names = {"cpu": target.cpu, "features": target.features} if target else {}
    triple = llvm.Target.from_triple(llvm.get_process_triple())
    return triple.create_target_machine(
        opt=3, reloc="default", codemodel="jitdefault", jit=True, **names
    )


def compile_module(module: ir.Module, target: Target) -> bytes:
    """Return the object file of ``module``."""
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    return _machine(target).emit_object(parsed)


def _object_code(spec: Specification, target: Target, key: str) -> bytes:
    path = caching.cache_directory() / f"{key}.o"
    code = _read(path)
    if code is not None:
        return code
    # A few locks for all kernels: processes of a host may compile different ones at a time.
    with caching.exclusive(path.parent / f"lock-{key[0]}", path.exists):
        code = _read(path)  # another process may have compiled it meanwhile
        if code is None:
            caching.announce()
            code = compile_module(spec.build(target), target)
            _write(path, code)
    return code


def _read(path: Path) -> bytes | None:
    try:
        data = path.read_bytes()
    except OSError:
        return None
    code, digest = data[:-32], data[-32:]
    return code if hashlib.sha256(code).digest() == digest else None


def _write(path: Path, code: bytes) -> None:
    # A cache that cannot be written costs time at the next start, nothing else.
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        with os.fdopen(handle, "wb") as file:
            file.write(code + hashlib.sha256(code).digest())
        os.replace(temporary, path)
