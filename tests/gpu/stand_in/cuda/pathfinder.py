"""How CuPy finds CUDA's libraries."""

from __future__ import annotations

loaded: list[str] = []


def load_nvidia_dynamic_lib(libname: str) -> None:
    loaded.append(libname)
