"""Usage: read_damaged.py FOLDER SEED FIRST COUNT KIND…: reads damaged files, and reports on each.

There are COUNT cases of each kind; FIRST is the number of the first one to run.  The file of a case
depends only on SEED, KIND and its number within the kind. The program prints a case's number before
it, and its result, in JSON, after it.  A case that takes too long ends the process by SIGALRM.
"""

from __future__ import annotations

import gc
import json
import logging
import random
import resource
import shutil
import signal
import sys
from pathlib import Path

from kinds import READERS, TEXTS, WRITERS
from mutations import damaged

from pycaffe_dist.errors import PcaffeError

SECONDS = 10
MOST_ADDRESSES = 1000 << 20
# Bytes of memory that a case may need in addition.
MOST_GROWTH = 400 << 20


def _memory(field: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{field}:")[2].split()[0]) << 10


def _damage(whole: Path, path: Path, rng: random.Random, text: bool) -> None:
    if whole.is_dir():
        shutil.copytree(whole, path)
        files = sorted(file for file in path.iterdir() if file.stat().st_size)
        path = whole = rng.choice(files)
    path.write_bytes(damaged(whole.read_bytes(), rng, text))


def _outcome(kind: str, path: Path) -> str:
    """Return "read" or "refused", or what is wrong."""
    try:
        READERS[kind](path)
    except PcaffeError as error:
        message = str(error)
        if "\n" in message:
            return f"more than a line: {message}"
        return "refused" if path.name in message else f"names no file: {message}"
    except MemoryError as error:
        # A net may ask for any size.
        return "refused" if kind == "net.prototxt" else f"MemoryError: {error}"
    except Exception as error:
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        place = "" if frame is None else f" ({frame.tb_frame.f_code.co_filename}:{frame.tb_lineno})"
        return f"{type(error).__name__}: {error}{place}"
    return "read"


def _prepare(folder: Path, kind: str) -> Path:
    """Write a valid file, and limit the memory to somewhat more than reading it takes."""
    whole = folder / f"whole-{kind}"
    if not whole.exists():
        WRITERS[kind](whole)
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    READERS[kind](whole)
    resource.setrlimit(resource.RLIMIT_AS, (_memory("VmSize") + MOST_ADDRESSES, hard))
    gc.collect()
    return whole


def _run(whole: Path, path: Path, kind: str, seed: str) -> str:
    _damage(whole, path, random.Random(seed), kind in TEXTS)
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
    before = _memory("VmRSS")
    signal.alarm(SECONDS)
    outcome = _outcome(kind, path)
    signal.alarm(0)
    growth = _memory("VmHWM") - before
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    if growth > MOST_GROWTH and kind != "net.prototxt":
        return f"took {growth >> 20} MiB: {outcome}"
    return outcome


def main(folder: str, seed: str, first: str, count: str, *kinds: str) -> None:
    logging.disable()
    at, whole = -1, Path()
    for case in range(int(first), int(count) * len(kinds)):
        print(json.dumps(case), flush=True)
        number = case % int(count)
        if case // int(count) != at:
            at = case // int(count)
            whole = _prepare(Path(folder), kinds[at])
        path = Path(folder) / f"{number}-{kinds[at]}"
        print(json.dumps(_run(whole, path, kinds[at], f"{seed} {kinds[at]} {number}")), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
