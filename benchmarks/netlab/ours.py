"""Usage: ours.py NET WAY ITERATIONS [FLAG=VALUE…]: times iterations on the ranks of mpirun.

WAY is an exchange; "none" sends no messages, "alone:EXCHANGE" computes nothing, and with
"late:EXCHANGE" messages wait for the end of backward.  Rank 0 prints one line of JSON: the seconds
of each iteration, the prediction for an iteration from the layers' times in the first ones, in
which messages wait for the end of backward, and the hidden part of the exchange's time.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise
from typing import Any

import nets

from pycaffe_dist.config import ExchangeSettings, Overlap
from pycaffe_dist.planning.layer_times import LayerTimes, Times
from pycaffe_dist.schema import caffe_pb2, text
from pycaffe_dist.solvers import Solver
from pycaffe_dist.solvers.local_engine import LocalEngine
from pycaffe_dist.threads import set_threads
from pycaffe_dist.training.engine import ExchangeEngine
from pycaffe_dist.training.trainer import launched_cluster, make_solver

# As many iterations as a run with "auto" times.
MEASURED = 3


def iterations(solver: Solver, count: int) -> list[float]:
    """Train; return the seconds of each iteration."""
    ends = [time.perf_counter()]

    def note(solver: Solver) -> None:
        ends.append(time.perf_counter())

    solver.callbacks.end_of_iteration.append(note)
    solver.step(count)
    solver.callbacks.end_of_iteration.remove(note)
    return [after - before for before, after in pairwise(ends)]


def predicted(solver: Solver, times: Times) -> float:
    """Return the seconds that the simulator expects; all ranks must call it."""
    engine = solver.engine
    if not isinstance(engine, ExchangeEngine):
        return 0.0
    return engine.predict(solver.net.parameters, times).total


def trained(solver: Solver, count: int, late: bool) -> dict[str, Any]:
    """Train; return the seconds of iterations, of an iteration as predicted, and of backward.

    With ``late`` messages, nothing is hidden behind backward.
    """
    layers = LayerTimes()

    def note(solver: Solver) -> None:
        solver.profiler.hand_over()
        layers.end_iteration()

    solver.callbacks.end_of_iteration.append(note)
    solver.profile(layers)
    engine = solver.engine
    if isinstance(engine, ExchangeEngine):
        engine.keep_apart(True)
    seconds = iterations(solver, MEASURED)
    solver.profile(layers, wanted=False)
    if isinstance(engine, ExchangeEngine):
        engine.keep_apart(late)
        while engine.can_revise:  # "auto" tries its plans
            solver.step(1)
    seconds += iterations(solver, count - MEASURED)
    times = layers.times(solver.net, solver.cluster)
    return {
        "seconds": seconds,
        "predicted": predicted(solver, times),
        "backward": sum(times.backward),
    }


def exchanges(solver: Solver, count: int) -> list[float]:
    """Exchange gradients without computing them; return the seconds of each exchange."""
    solver.step(1)  # the plan, and the layers' factors
    parameters = solver.net.parameters
    found = []
    for _ in range(count):
        solver.cluster.barrier()
        started = time.perf_counter()
        for parameter in reversed(parameters):
            if parameter.receives_gradient:
                solver.engine.gradient_ready(parameter)
        for parameter in reversed(parameters):
            solver.engine.wait(parameter)
        found.append(time.perf_counter() - started)
    return found


def main(net: str, way: str, count: int, *settings: str) -> None:
    cluster = launched_cluster()
    options = dict(setting.split("=") for setting in settings)
    set_threads(int(options["threads"]))
    how, _, name = way.rpartition(":")
    param = text.parse(nets.solver(net), caffe_pb2.SolverParameter())
    solver = make_solver(
        param,
        cluster,
        exchange="naive" if name == "none" else name,
        settings=ExchangeSettings(overlap=Overlap(options.get("overlap", "backward"))),
    )
    if name == "none":
        solver.engine = LocalEngine()
    if how == "alone":
        found: dict[str, Any] = {"seconds": exchanges(solver, count)}
    else:
        found = trained(solver, count, how == "late")
    if cluster.rank == 0:
        print(json.dumps(found | {"hidden": solver.engine.hidden()}), flush=True)
    solver.close()
    cluster.close()


main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
