"""The kernels' sources: every primitive has its partner, and CUDA's compiler accepts them."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import nvrtc
import pytest

import pycaffe_dist.kernels
from pycaffe_dist.kernels import partner
from pycaffe_dist.kernels.cuda.source import common, parse
from pycaffe_dist.precision import bfloat16

FOLDER = Path(pycaffe_dist.kernels.__file__).parent
SOURCES = sorted(FOLDER.glob("*.cu"))
# The types that a program may store: data T, parameters P.
FLOAT, DOUBLE, HALF = (np.dtype(name) for name in ("float32", "float64", "float16"))
STORED = ((FLOAT, FLOAT), (DOUBLE, DOUBLE), (HALF, FLOAT), (bfloat16(), FLOAT))


# Messages between ranks, records of norms, and layers that choose boxes, mark cells or warp maps
# are on the host.
HOST_FAMILIES = {
    f"pycaffe_dist.kernels.{name}"
    for name in ("checksum", "coverage", "detection", "half", "norms", "proposals", "warping")
}


def primitives():
    """Return every primitive of every family that layers and solvers use."""
    found = []
    for module in pkgutil.iter_modules(pycaffe_dist.kernels.__path__, "pycaffe_dist.kernels."):
        if not module.ispkg and module.name not in HOST_FAMILIES:
            members = vars(importlib.import_module(module.name)).values()
            found += [
                member
                for member in members
                if getattr(member, "is_primitive", False) is True
                and member.__module__ == module.name
            ]
    return found


def parameters(function):
    # A plan's __new__ has the parameters of __init__.
    function = function.__init__ if inspect.isclass(function) else function
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


def public(cls):
    return {name for name, _ in inspect.getmembers(cls, callable) if not name.startswith("_")}


@pytest.mark.parametrize(
    "primitive", primitives(), ids=lambda p: f"{p.__module__[21:]}.{p.__name__}"
)
def test_every_primitive_has_a_partner_of_the_same_signature(primitive):
    other = partner(primitive)
    assert parameters(other) == parameters(inspect.unwrap(primitive))
    if inspect.isclass(primitive):
        assert public(primitive) <= public(other)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_every_kernel_is_launched_by_a_partner(path):
    partners = ast.parse((FOLDER / "cuda" / f"{path.stem}.py").read_text())
    used = {node.attr for node in ast.walk(partners) if isinstance(node, ast.Attribute)}
    if path.stem == "update":  # `UpdateOfMany` finds adam_updates by the name of adam_update
        used |= {f"{name}s" for name in used if name.endswith("_update")}
    assert set(parse(path).signatures) <= used


def instances(source):
    """Return the names of all kernels for all types that a program may store."""
    names = []
    for data, parameter in STORED:
        binding = {name: data if name == "T" else parameter for name in source.types}
        names += [signature.instance(binding) for signature in source.signatures.values()]
    return list(dict.fromkeys(names))


@pytest.mark.long
def test_nvcc_compiles_them(tmp_path):
    compiler = shutil.which("nvcc")
    if compiler is None:
        pytest.skip("there is no nvcc")
    parts = [common()]
    for path in SOURCES:  # together: nvcc takes as long for its own headers as for a source
        source = parse(path)
        kept = enumerate(instances(source))
        uses = "\n".join(f"void* use{i}() {{ return (void*)({name}); }}" for i, name in kept)
        text = f'#line 1 "{path.name}"\n{source.text}\n{uses}'
        parts.append(f"namespace {path.stem}_source {{\n{text}\n}}")
    program = tmp_path / "sources.cu"
    program.write_text("\n".join(parts))
    done = subprocess.run(
        [compiler, "--ptx", "-std=c++17", "-arch=compute_75", "-o", tmp_path / "out.ptx", program],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.parametrize("architecture", [75, 80, 90])
@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_nvrtc_compiles_it(path, architecture):
    found = nvrtc.find()
    if found is None:
        pytest.skip("there is no NVRTC")
    source = parse(path)
    code = f'{common()}\n#line 1 "{path.name}"\n{source.text}'
    assert not nvrtc.compile_source(found, code, instances(source), architecture)


# Kernels that should move 16 bytes at a time: most of the bytes of elementwise layers.
WIDE = {
    "activation": ["relu_forward", "relu_backward"],
    "channel_affine": ["affine", "normalize_gradient"],
    "columns": ["copy_wide_columns"],
    "dropout": ["dropout"],
    "eltwise": ["weighted_sum", "sum_gradients"],
}


@pytest.mark.long
@pytest.mark.parametrize("stem", WIDE)
def test_elementwise_kernels_move_16_bytes_at_a_time(stem):
    found = nvrtc.find()
    if found is None:
        pytest.skip("there is no NVRTC")
    source = parse(FOLDER / f"{stem}.cu")
    text, errors = nvrtc.to_ptx(found, f"{common()}\n{source.text}", instances(source), 80)
    assert not errors
    kernels = {part.split("(")[0]: part for part in text.split(".entry ")[1:]}
    for name in WIDE[stem]:
        bodies = [body for entry, body in kernels.items() if f"{len(name)}{name}" in entry]
        assert bodies
        for body in bodies:
            assert re.search(r"ld\.global(?:\.nc)?\.v(?:4\.[a-z]32|2\.[a-z]64)", body), name
            assert re.search(r"st\.global\.v(?:4\.[a-z]32|2\.[a-z]64)", body), name
            assert ".local" not in body, name
