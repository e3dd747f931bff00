"""CUDA's run-time compiler, called as CuPy calls it, if its library is installed."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import sys
from pathlib import Path


def find() -> tuple[str, list[str]] | None:
    """Return the library and the folders of CUDA's headers, or None.

    They come from $CUDA_PATH, from NVIDIA's packages for pip, or from the system.
    """
    roots = [Path(path) / "nvidia" for path in sys.path if path]
    roots += [Path(os.environ[name]) for name in ("CUDA_PATH", "CUDA_HOME") if name in os.environ]
    roots += [Path("/usr/local/cuda")]
    libraries = [path for root in roots for path in root.glob("**/libnvrtc.so*")]
    headers = [str(path.parent) for root in roots for path in root.glob("**/cuda_fp16.h")]
    name = str(libraries[0]) if libraries else ctypes.util.find_library("nvrtc")
    return (name, headers) if name and headers else None


def compile_source(
    found: tuple[str, list[str]], code: str, names: list[str], architecture: int
) -> str:
    """Compile ``code`` with the instantiations ``names``; return the errors, empty if it works."""
    return to_ptx(found, code, names, architecture)[1]


def to_ptx(
    found: tuple[str, list[str]], code: str, names: list[str], architecture: int
) -> tuple[str, str]:
    """Compile like `compile_source`; return the PTX and the errors, one of them empty."""
    library, program = ctypes.CDLL(found[0]), ctypes.c_void_p()
    library.nvrtcCreateProgram(ctypes.byref(program), code.encode(), b"kernels.cu", 0, None, None)
    for name in names:
        library.nvrtcAddNameExpression(program, name.encode())
    options = ["--std=c++17", f"--gpu-architecture=compute_{architecture}"]
    options += [f"-I{folder}" for folder in found[1][:1]]
    encoded = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    failed = library.nvrtcCompileProgram(program, len(options), encoded)
    what = "ProgramLog" if failed else "PTX"
    size = ctypes.c_size_t()
    getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{what}")(program, text)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return ("", text.value.decode() or "failed") if failed else (text.value.decode(), "")
