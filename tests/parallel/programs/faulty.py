"""Usage: faulty.py pcaffe's arguments: pcaffe, of which chosen ranks die, leave or join.

FAULTS in the environment lists them as RANK:PHASE:ITERATION, separated by blanks.  A phase is a
key of PHASES below; ranks are those that the launcher gave.  In the phase "pause" a rank does not
die, but is stopped for `PAUSE` seconds; in the phase "late" it makes no update until another rank
dies.  CHANGES lists new numbers of ranks, as from the launcher,
with the iteration before which they are asked for: RANKS:ITERATION.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from pycaffe_dist.cli.main import main
from pycaffe_dist.comm import recovery
from pycaffe_dist.comm.mpi import MPICluster
from pycaffe_dist.comm.recovery import Recovery
from pycaffe_dist.comm.tasks import Step, Task
from pycaffe_dist.launch.resizing import RequestFile
from pycaffe_dist.net import Net
from pycaffe_dist.solvers import Solver
from pycaffe_dist.solvers.run_snapshots import RunSnapshots
from pycaffe_dist.solvers.testing import Testing
from pycaffe_dist.solvers.update.updates import Updates
from pycaffe_dist.training import engine

RANK = os.environ["OMPI_COMM_WORLD_RANK"]
PHASES: dict[str, tuple[Any, str]] = {
    "start": (Solver, "__init__"),
    "plan": (engine, "make_plan"),
    "forward": (Net, "start_forward"),
    "backward": (Net, "backward"),
    "exchange": (engine.ExchangeEngine, "gradient_ready"),
    "agreement": (Recovery, "agreement"),
    "update": (Updates, "run"),
    "test": (Testing, "run"),
    "snapshot": (RunSnapshots, "write"),
    "leaving": (Recovery, "stop"),
    "recovery": (MPICluster, "recover"),
    "error": (Net, "backward"),
    "pause": (Net, "backward"),
    "late": (engine.ExchangeEngine, "commit"),
}
PAUSE = 6
recovery.START_SECONDS = 25
iteration = 0
changes = {}
for change in os.environ.get("CHANGES", "").split():
    ranks, at = change.split(":")
    changes[int(at) - 1] = int(ranks)  # ranks agree on it in the iteration before


def faulty(function: Callable[..., Any], phase: str, at: int) -> Callable[..., Any]:
    """Return a function that ends this process if it is called in that iteration or later."""

    def die_or_call(*arguments: Any, **options: Any) -> Any:
        if iteration >= at:
            if phase == "error":
                raise OSError("a broken disk")
            if phase == "pause":
                return pause(function, *arguments, **options)
            if phase == "late":
                wait_for_death(*arguments, **options)
                return function(*arguments, **options)
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)

    return die_or_call


paused = False


def pause(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Stop this process once, and let another one wake it up; then call the function."""
    global paused
    if not paused:
        paused = True
        subprocess.Popen(["sh", "-c", f"sleep {PAUSE}; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
    return function(*arguments, **options)


waited = False


def wait_for_death(ranks: engine.ExchangeEngine, together: bool) -> None:
    """Wait, once, for what never comes; this rank's messages go on."""
    global waited

    def task() -> Task:
        yield Step([], late=lambda: (0,))

    if not waited:
        waited = True
        ranks._cluster.run(task(), "wait")


def count(solver: Solver) -> None:
    global iteration
    iteration = solver.iteration
    if solver.cluster.rank == 0 and iteration in changes:
        RequestFile().write({solver.cluster.host: changes[iteration]})


follow = Solver.__init__


def init(self: Solver, *arguments: Any, **options: Any) -> None:
    follow(self, *arguments, **options)
    self.callbacks.after_update.append(count)


Solver.__init__ = init  # type: ignore[method-assign]
for fault in os.environ["FAULTS"].split():
    rank, phase, at = fault.split(":")
    if rank == RANK:
        owner, name = PHASES[phase]
        setattr(owner, name, faulty(getattr(owner, name), phase, int(at)))
sys.exit(main())
