"""Runs pcaffe on several ranks of this machine, also more ranks than cores."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pycaffe_dist.launch import mpirun

BIN = Path(sys.executable).parent
# With this PATH, mpirun and pcaffe belong to this Python.
ENVIRONMENT = {
    **os.environ,
    **mpirun.ENVIRONMENT,
    "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
}
