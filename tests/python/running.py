"""Runs programs written for pycaffe as their users would, for the tests of this folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pycaffe_dist.launch import mpirun

PROGRAMS = Path(__file__).with_name("programs")
BIN = Path(sys.executable).parent
TIMEOUT_SECONDS = 240
ENVIRONMENT = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **mpirun.ENVIRONMENT}


def run(
    folder: Path,
    *arguments: str | Path,
    ranks: int = 1,
    expect_failure: bool = False,
    python_path: str = "",
) -> str:
    """Run ``python -m pycaffe_dist.as_caffe`` with arguments in a folder; return what it printed.

    A program of ``programs`` may be given by its name alone.
    """
    shown = [
        str(PROGRAMS / word) if (PROGRAMS / str(word)).is_file() else str(word)
        for word in arguments
    ]
    command = [sys.executable, "-m", "pycaffe_dist.as_caffe", *shown]
    if ranks > 1:
        command = ["mpirun", "-n", str(ranks), *command]
    environment = {**os.environ, **ENVIRONMENT, "MPLBACKEND": "Agg"}
    if python_path:
        environment["PYTHONPATH"] = python_path
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert (done.returncode != 0) == expect_failure, done.stdout[-4000:]
    return done.stdout
