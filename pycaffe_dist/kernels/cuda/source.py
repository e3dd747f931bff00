"""Kernel sources: the ``.cu`` of a family, the signatures of its kernels, and their calls by name.

A kernel is a function template over the types of its arrays, ``T``, ``P`` and so on.  A call finds
them from its arguments, as C++ does, checks every argument against its parameter, and launches the
instantiation on the current device.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import get_ident
from typing import Any

import numpy as np

from pycaffe_dist import device
from pycaffe_dist.errors import DeviceError
from pycaffe_dist.kernels.cuda.arguments import POINTER, Arguments
from pycaffe_dist.precision import wide

THREADS = 256
# Indices are ints, and a loop over a grid may step once beyond the last one.
MOST_ELEMENTS = 2**31 - 2**24

# C++'s types by NumPy's, and the reverse.
C_TYPES = {
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "float32": "float",
    "float64": "double",
    "int8": "signed char",
    "uint8": "unsigned char",
    "int32": "int",
    "uint32": "unsigned int",
    "int64": "long long",
    "uint64": "unsigned long long",
    "bool": "bool",
}
_NAMES = {c_type: name for name, c_type in C_TYPES.items()}

_KERNEL = re.compile(
    r"(?:template\s*<(?P<template>[^>]*)>\s*)?__global__\s+void\s+"
    r"(?:__launch_bounds__\([^)]*\)\s*)?(?P<name>\w+)\s*\((?P<parameters>[^)]*)\)\s*\{"
)
_INCLUDE = re.compile(r'#include "(\w+\.cuh)"')
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)


@dataclass(frozen=True)
class Parameter:
    """A kernel's parameter: its type without ``const`` and ``*``, and whether it is an array."""

    type: str
    is_const: bool
    is_array: bool
    name: str


@dataclass(frozen=True)
class Signature:
    """A kernel as its source declares it; ``waits``: it calls ``__syncthreads`` somewhere."""

    name: str
    types: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    waits: bool

    def instance(self, binding: Mapping[str, np.dtype]) -> str:
        """Return the name of the kernel's instantiation, as C++ writes it."""
        if not self.types:
            return self.name
        return f"{self.name}<{', '.join(C_TYPES[binding[name].name] for name in self.types)}>"


def c_type(name: str, binding: Mapping[str, np.dtype]) -> str:
    """Return a parameter's type with the template's types inserted."""
    if name.startswith("Wide<"):
        return C_TYPES[wide(binding[name[5:-1].strip()]).name]
    return C_TYPES[binding[name].name] if name in binding else name


def argument_types(signature: Signature, binding: Mapping[str, np.dtype]) -> list[str]:
    """Return the parameters' types as `Arguments` knows them."""
    return [
        POINTER if parameter.is_array else _NAMES[c_type(parameter.type, binding)]
        for parameter in signature.parameters
    ]


@dataclass(frozen=True)
class Source:
    """The text of a ``.cu`` file and the kernels in it."""

    path: Path
    text: str
    signatures: Mapping[str, Signature]

    @functools.cached_property
    def types(self) -> tuple[str, ...]:
        """The names of the type parameters of all kernels, each once."""
        return tuple(
            dict.fromkeys(name for kernel in self.signatures.values() for name in kernel.types)
        )

    def __hash__(self) -> int:
        return hash(self.path)


@functools.cache
def common() -> str:
    """Return the text in front of every source."""
    return (Path(__file__).parent / "common.cuh").read_text()


def parse(path: Path) -> Source:
    """Read a source, and what it includes of this folder, where the compilers find nothing.

    Raises DeviceError for a kernel that is not declared as a template.
    """
    here = Path(__file__).parent
    text = _INCLUDE.sub(lambda match: (here / match[1]).read_text(), path.read_text())
    bare = _COMMENT.sub(" ", text)
    waiting = _waiting_functions(_COMMENT.sub(" ", common()) + bare)
    signatures = {}
    for match in _KERNEL.finditer(bare):
        template = match["template"] or ""
        types = tuple(word.split()[-1] for word in template.split(",") if word.strip())
        parameters = tuple(
            _parameter(path, match["name"], words)
            for words in match["parameters"].split(",")
            if words.strip()
        )
        signatures[match["name"]] = Signature(
            match["name"], types, parameters, match["name"] in waiting
        )
    if len(signatures) != bare.count("__global__"):
        raise DeviceError(
            f"{path.name}: {bare.count('__global__')} kernels, of which {len(signatures)} are "
            "declared as 'template <typename T> __global__ void name(…) {'"
        )
    return Source(path, text, signatures)


def _parameter(path: Path, kernel: str, words: str) -> Parameter:
    match = re.fullmatch(
        r"\s*(const\s+)?([\w\s]+?|Wide<\s*\w+\s*>)\s*(?:const\s*)?(\*)?\s*"
        r"(?:__restrict__\s+)?(\w+)\s*",
        words,
    )
    if match is None:
        raise DeviceError(f"{path.name}: kernel {kernel} has a parameter '{words.strip()}'")
    type_ = " ".join(match[2].split())
    return Parameter(type_, match[1] is not None, match[3] is not None, match[4])


def _waiting_functions(text: str) -> set[str]:
    """Return the names of the functions that call a barrier, directly or not."""
    waiting = {"__syncthreads"}
    bodies = dict(functions(text))
    while True:
        calls = re.compile(rf"\b(?:{'|'.join(waiting)})\s*(?:<[^<>()]*>)?\s*\(")
        more = {name for name, body in bodies.items() if calls.search(body)} - waiting
        if not more:
            return waiting
        waiting |= more


def functions(text: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the body of every function."""
    for match in re.finditer(r"(\w+)\s*\([^()]*(?:\([^()]*\)[^()]*)*\)\s*\{", text):
        depth, end = 1, match.end()
        while depth and end < len(text):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        if match[1] not in ("if", "for", "while", "switch", "EACH"):
            yield match[1], text[match.end() : end]


class Kernel:
    """A kernel of a source, called like a function."""

    def __init__(self, source: Source, signature: Signature):
        self._source, self._signature = source, signature
        self._places = [i for i, each in enumerate(signature.parameters) if each.is_array]
        self._instances: dict[tuple, tuple[Callable[..., None], Arguments]] = {}

    def __call__(self, n: int, *args: Any, threads: int = THREADS) -> None:
        """Launch it over ``n`` elements, for a loop ``for EACH(i, n)``; 0 launch nothing."""
        if n > MOST_ELEMENTS:
            raise DeviceError(f"{self._signature.name}: {n} elements are too many for a GPU kernel")
        if n > 0:
            gpu = device.current_gpu()
            blocks = min(-(-n // threads), gpu.most_blocks)
            self._launch(gpu, (blocks, 1, 1), (threads, 1, 1), 0, args)

    def blocks(
        self,
        blocks: int,
        *args: Any,
        threads: int = THREADS,
        shared: int = 0,
        behind: tuple = (),
    ) -> None:
        """Launch it over ``blocks`` pieces of work, for a loop ``for EACH_BLOCK(i, blocks)``.

        ``shared`` is the size of the block's DYNAMIC_SHARED memory in bytes; ``behind`` are arrays
        that the kernel finds in a table.
        """
        if blocks > 0:
            grid = min(blocks, 65535), 1, 1
            self._launch(device.current_gpu(), grid, (threads, 1, 1), shared, args, behind)

    def grid(
        self, grid: tuple[int, ...], block: tuple[int, ...], *args: Any, shared: int = 0
    ) -> None:
        """Launch it over a grid of one to three dimensions."""
        ones = 1, 1
        self._launch(device.current_gpu(), (*grid, *ones)[:3], (*block, *ones)[:3], shared, args)

    def _launch(
        self, gpu: Any, grid: Any, block: Any, shared: int, args: tuple, behind: tuple = ()
    ) -> None:
        # Small nets spend their time here, so checks that depend on types alone are made once for
        # each.  Every thread has its own memory for the arguments.
        if len(args) != len(self._signature.parameters):
            raise DeviceError(
                f"{self._signature.name} takes {len(self._signature.parameters)} arguments, "
                f"found {len(args)}"
            )
        values, key = list(args), [gpu, get_ident()]
        for place in self._places:
            array = values[place]
            if array is None:
                values[place] = 0
                key.append(None)
                continue
            try:
                key.append(array.dtype)
                values[place] = array.data.ptr
            except AttributeError:
                what = f"{self._signature.name}: {self._signature.parameters[place].name}"
                raise DeviceError(
                    f"{what} must be an array of the device, found {type(array)}"
                ) from None
        known = self._instances.get(tuple(key))
        if known is None:
            binding = self._binding(args)
            arguments = Arguments(self._checked_types(args, binding))
            known = gpu.function(self._source, self._signature, binding), arguments
            self._instances[tuple(key)] = known
        function, arguments = known
        try:
            arguments.put(values)
        except (struct.error, OverflowError) as error:
            raise DeviceError(f"{self._signature.name}: {error}") from None
        function(grid, block, arguments.address, shared, args + behind)

    def _binding(self, args: tuple) -> dict[str, np.dtype]:
        """Return the template's types, found from the arrays; raises DeviceError if they differ."""
        signature, binding = self._signature, {}
        for parameter, arg in zip(signature.parameters, args):
            if parameter.is_array and arg is not None and parameter.type in self._source.types:
                found = binding.setdefault(parameter.type, arg.dtype)
                if found != arg.dtype:
                    raise DeviceError(
                        f"{signature.name}: {parameter.name} has elements of {arg.dtype}, other "
                        f"arrays of its type {parameter.type} have {found}"
                    )
        # Types that the arrays leave open: parameters have the type that data is computed in.
        first = next(iter(binding.values()), np.dtype(np.float32))
        for name in self._source.types:
            binding.setdefault(name, wide(binding.get("T", first)))
        return {name: binding[name] for name in self._source.types}

    def _checked_types(self, args: tuple, binding: Mapping[str, np.dtype]) -> list[str]:
        """Return the parameters' types as `Arguments` knows them; raises DeviceError for others."""
        for parameter, arg in zip(self._signature.parameters, args):
            if parameter.is_array and arg is not None:
                kind = np.dtype(_NAMES[c_type(parameter.type, binding)])
                if arg.dtype != kind:
                    what = f"{self._signature.name}: {parameter.name}"
                    raise DeviceError(f"{what} needs elements of {kind}, found {arg.dtype}")
        return argument_types(self._signature, binding)


class Kernels:
    """The kernels of one ``.cu`` file, as attributes; the file is read at the first use."""

    def __init__(self, stem: str):
        self._path = Path(__file__).parents[1] / f"{stem}.cu"

    def __getattr__(self, name: str) -> Kernel:
        # Called for missing attributes: before the first use, and for wrong names.
        if name.startswith("_"):
            raise AttributeError(name)
        source = parse(self._path)
        if name not in source.signatures:
            raise DeviceError(f"{self._path.name} has no kernel '{name}'")
        for kernel, signature in source.signatures.items():
            self.__dict__.setdefault(kernel, Kernel(source, signature))
        return self.__dict__[name]


def kernels(stem: str) -> Kernels:
    """Return the kernels of ``<stem>.cu``, the file beside the CPU family of that name."""
    return Kernels(stem)
