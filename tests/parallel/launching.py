"""Running pcaffe under mpirun, as a user does, for the tests of this folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pycaffe_dist.runtime import mpirun

BIN = Path(sys.executable).parent
TIMEOUT_SECONDS = 240
ENVIRONMENT = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **mpirun.ENVIRONMENT}


def run(ranks: int, arguments: list[str], folder: Path, expect_failure: bool = False) -> str:
    """Run ``pcaffe arguments`` on some ranks in a folder; return what it printed."""
    command = ["pcaffe", *arguments]
    if ranks > 1:
        command = ["mpirun", "-n", str(ranks), *command]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **ENVIRONMENT},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert (done.returncode != 0) == expect_failure, done.stdout[-4000:]
    return done.stdout
