"""Usage: keeping.py PORT: run one program after the other, as the socket at this port says.

Each of its lines has a program and its arguments, a folder to run it in, and a folder where file R
gets what rank R prints.  The answer to each is one digit, 0 if the program has succeeded.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import socket
import sys
import traceback
from collections.abc import Iterator

from pycaffe_dist.cli.main import OBJECTS_PER_COLLECTION
from pycaffe_dist.cli.main import main as pcaffe
from pycaffe_dist.launch import environment


@contextlib.contextmanager
def printing_to(path: str) -> Iterator[None]:
    """Redirect this process's output to a file, also the output of libraries."""
    kept = [os.dup(number) for number in (1, 2)]
    with open(path, "wb") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, copy in zip((1, 2), kept):
            os.dup2(copy, number)
            os.close(copy)


def status_of(words: list[str]) -> int:
    """Run ``pcaffe …``, or the file of a program, in this process."""
    try:
        if words[0] == "pcaffe":
            return pcaffe(words[1:])
        sys.argv[:] = words
        runpy.run_path(words[0], run_name="__main__")
        return 0
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1


def main(port: int) -> None:
    if environment.find() is not None:
        # MPI that is started here outlives the programs' clusters; a cluster that starts MPI ends
        # it.
        environment.prepare_mpi()
        from mpi4py import rc

        rc.thread_level = "serialized"
        from mpi4py import MPI  # noqa: F401
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for line in connection.makefile():
            words, folder, outputs = json.loads(line)
            os.chdir(folder)
            with printing_to(os.path.join(outputs, str(environment.rank()))):
                status = status_of(words)
            connection.sendall(b"%d" % bool(status))


gc.set_threshold(OBJECTS_PER_COLLECTION)
main(int(sys.argv[1]))
