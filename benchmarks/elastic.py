"""Measures what a rank's death costs, beside restarts, and what ``--elastic`` costs without one.

``python benchmarks/elastic.py [FLAGS]`` trains LeNet on ranks of this machine and kills rank 1.
Shown are the seconds from then until the ranks make the iteration after the last one, by ways that
take turns; launch --restarts and torchrun start all ranks again, from the last snapshot.
``--agreement 2 4 …`` compares, in one job for each number of ranks, blocks of iterations that take
turns: updates that begin as soon as one gradient is there, that wait for all gradients (as with
``--elastic``), and that wait for an agreement of all ranks, too (as where one is displayed).
TORCH_PYTHON is an interpreter with PyTorch, without which torchrun is left out.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from ranks import ENVIRONMENT

from pycaffe_dist.launch.mpirun import FAULT_TOLERANCE

LENET = Path(__file__).parent.parent / "models" / "lenet" / "lenet_train_test.prototxt"
HERE = Path(__file__).resolve().parent
EVERY = 50  # iterations between snapshots, of elastic_torch.py, too
DEATH = 90
LAST = 100000
SURELY = 0.15  # seconds; in less, no rank can have noticed a death
WARM_UP = 20
BLOCK = 4  # iterations of one kind, before those of the next
KINDS = 3
COMPARED = 380
SOLVER = """
net: "net.prototxt" base_lr: 0.01 momentum: 0.9 weight_decay: 0.0005 lr_policy: "fixed" display: %d
max_iter: %d snapshot: %d snapshot_prefix: "lenet" solver_mode: CPU random_seed: 1
"""
DATA = """
layer { name: "mnist" type: "HDF5Data" top: "data" top: "label"
  hdf5_data_param { source: "files.txt" batch_size: 64 } }
"""


def prepare(folder: Path, iterations: int, display: int) -> None:
    """Write the net, the solver and random images."""
    import h5py

    from pycaffe_dist.schema import caffe_pb2, text

    rng = np.random.default_rng(0)
    with h5py.File(folder / "images.h5", "w") as file:
        file["data"] = rng.random((2048, 1, 28, 28), np.float32)
        file["label"] = rng.integers(10, size=2048).astype(np.float32)
    (folder / "files.txt").write_text(str(folder / "images.h5"))
    net = text.parse(LENET.read_text(), caffe_pb2.NetParameter())
    kept = [layer for layer in net.layer if layer.type != "Data" and not layer.include]
    rest = "".join(f"layer {{ {text.to_text(layer)} }}\n" for layer in kept)
    (folder / "net.prototxt").write_text(DATA + rest)
    (folder / "solver.prototxt").write_text(SOLVER % (display, iterations, EVERY))


def rank_1_of(mark: str) -> int:
    """Return the process of rank 1 among those with ``mark`` in their environment."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            variables = (process / "environ").read_bytes().split(b"\0")
            if f"BENCHMARK={mark}".encode() in variables and (
                b"OMPI_COMM_WORLD_RANK=1" in variables or b"RANK=1" in variables
            ):
                return int(process.name)
    raise SystemExit("there is no rank 1")


def heal(way: str, ranks: int, python: str) -> float:
    """Return the seconds from a rank's death to the end of the iteration after the last one."""
    train = ["train", "--solver=solver.prototxt", "--exchange=allreduce"]
    launch = [sys.executable, "-m", "pycaffe_dist", "launch", "-n", str(ranks)]
    torchrun = [python, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    line = {
        "--elastic": [*launch, "--elastic", *train],
        "--elastic, --norespawn": [*launch, "--elastic", *train, "--norespawn"],
        "--restarts": [*launch, "--restarts=1", *train],
        "torchrun": [*torchrun, "--max-restarts=2", str(HERE / "elastic_torch.py")],
    }[way]
    mark, killed, last, output = secrets.token_hex(8), 0.0, 0, []
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder), LAST, 1)
        process = subprocess.Popen(
            line,
            cwd=folder,
            env={**ENVIRONMENT, "BENCHMARK": mark, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
        assert process.stdout is not None
        for text in process.stdout:
            output.append(text)
            # An iteration is shown before its update.
            found = re.search(r"Iteration (\d+) \(", text)
            if found and not killed and int(found[1]) == DEATH:
                last, killed = DEATH, time.monotonic()
                os.kill(rank_1_of(mark), signal.SIGKILL)
            elif found and killed and int(found[1]) > last + 1:
                if time.monotonic() - killed > SURELY:
                    break
                last = int(found[1])  # it had been made, or was under way
        seconds = time.monotonic() - killed
        process.send_signal(signal.SIGINT)
        time.sleep(1)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        end_all(mark)
    if not killed or process.returncode is None:
        raise SystemExit("".join(output[-40:]))
    return seconds


def end_all(mark: str) -> None:
    """End what is left of a job."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"BENCHMARK={mark}".encode() in (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)


def rank_that_agrees() -> int:
    """Run pcaffe, whose updates wait for more in every second and third block of iterations."""
    from pycaffe_dist.cli.main import main
    from pycaffe_dist.solvers import Solver
    from pycaffe_dist.training.engine import ExchangeEngine

    begin, commit = Solver.__init__, ExchangeEngine.commit
    seconds: list[float] = []  # of an iteration, block by block
    now = [0.0, time.perf_counter()]

    def init(self: Any, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)
        self.callbacks.after_update.append(note)

    def some(self: Any, together: bool) -> None:
        if kind := now[0] // BLOCK % KINDS:
            commit(self, together=kind == KINDS - 1)

    def note(solver: Any) -> None:
        now[0] = done = solver.iteration
        if done % BLOCK:
            return
        before, now[1] = now[1], time.perf_counter()
        seconds.append((now[1] - before) / BLOCK)
        if done == COMPARED and solver.cluster.rank == 0:
            turns = np.array(seconds[: len(seconds) // KINDS * KINDS]).reshape(-1, KINDS)
            turns = turns[WARM_UP // BLOCK :]
            more = np.median(turns / turns[:, :1], axis=0) - 1
            print("result", np.median(turns[:, 0]), *more[1:], flush=True)

    Solver.__init__ = init  # type: ignore[method-assign]
    ExchangeEngine.commit = some  # type: ignore[method-assign]
    return main()


def agreement(ranks: int) -> tuple[float, ...]:
    """Return an iteration's seconds, and by what share the two ways of waiting add to them."""
    line = ["mpirun", *FAULT_TOLERANCE, "-n", str(ranks), sys.executable, str(HERE / "elastic.py")]
    line += ["train", "--solver=solver.prototxt", "--exchange=allreduce", "--elastic"]
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder), COMPARED, 0)
        done = subprocess.run(line, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)
    found = re.search(r"result (\S+) (\S+) (\S+)", done.stdout)
    if not found:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
    return tuple(map(float, found.groups()))


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--agreement", type=int, nargs="*", default=[], metavar="RANKS")
    options = parser.parse_args()
    for ranks in options.agreement:
        seconds, waiting, agreeing = agreement(ranks)
        print(
            f"{ranks:3} ranks: an iteration takes {1e3 * seconds:.2f} ms; {waiting:+.1%} when "
            f"updates wait for all gradients, {agreeing:+.1%} when they wait for an agreement, too",
            flush=True,
        )
    if options.agreement:
        return
    python = os.environ.get("TORCH_PYTHON", "")
    ways = ["--elastic", "--elastic, --norespawn", "--restarts", *(["torchrun"] if python else [])]
    found: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(options.rounds):
        for way in ways:
            found[way].append(heal(way, options.ranks, python))
            print(f"{way:24} {found[way][-1]:6.2f} s", flush=True)
    for way, seconds in found.items():
        low, high = min(seconds), max(seconds)
        print(f"{way:24} median {statistics.median(seconds):6.2f} s ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    sys.exit(rank_that_agrees() if "train" in sys.argv[1:2] else main())
