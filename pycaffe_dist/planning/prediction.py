"""Predicts how fast a net would train on another cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING

from pycaffe_dist.comm.cluster import LocalCluster
from pycaffe_dist.comm.measured import Link
from pycaffe_dist.config import ExchangeSettings, Wire
from pycaffe_dist.errors import UsageError, did_you_mean
from pycaffe_dist.exchange.base import Exchange, candidates
from pycaffe_dist.net import Net
from pycaffe_dist.planning.layer_times import LayerTimes, Times
from pycaffe_dist.planning.plan import Plan, describe, make_plan
from pycaffe_dist.planning.search import Workload, predicted
from pycaffe_dist.planning.simulation import Iteration
from pycaffe_dist.profiling import Kind, Span
from pycaffe_dist.schema import text
from pycaffe_dist.schema.reading import read_lines
from pycaffe_dist.solvers import nets
from pycaffe_dist.solvers.method import Regularization, method_class
from pycaffe_dist.table import aligned

if TYPE_CHECKING:
    from pycaffe_dist.schema.caffe_pb2 import SolverParameter

UPDATE = "update"


@dataclass(frozen=True)
class Imagined:
    """A cluster of ``ranks`` hosts, one rank on each.

    ``link`` connects any two of them at once, like a switch; ``rate`` is FLOP/s in matrix products,
    or None for this machine's; ``wire`` is the format of gradients in messages.
    """

    ranks: int
    link: Link
    rate: float | None = None
    wire: Wire = Wire.FLOAT32


class ImaginedCluster(LocalCluster):
    """The rank 0 of an imagined cluster, as a plan sees it."""

    def __init__(self, imagined: Imagined):
        super().__init__()
        self.size = imagined.ranks
        self.hosts = tuple(f"host{rank}" for rank in range(imagined.ranks))
        self.measured.link = imagined.link
        self.measured.product_rate = imagined.rate


def open_net(path: str) -> tuple[Net, SolverParameter]:
    """Return a solver's train net, and the solver's parameters; raises PcaffeError."""
    param = text.read_solver(path)
    spec = nets.train_net(param)
    return Net(spec.param, seed=0, places=spec.places), param


def measure_times(net: Net, param: SolverParameter, iterations: int) -> Times:
    """Return the median times of a number of iterations here, after a first one that compiles."""
    method = method_class(param.type)(param, net.parameters)
    times, spans = LayerTimes(), list[Span]()
    net.record = spans.append
    for number in range(1 + iterations):
        net.forward()
        net.backward(accumulate=False)
        for index, parameter in enumerate(net.parameters):
            started = perf_counter()
            # Without a step, so that no weight can overflow.
            method.update(index, 0.0, Regularization(1.0, 0.0, 0.0), number)
            spans.append((Kind.UPDATE, parameter.key, started, perf_counter(), 0))
        times(spans)
        spans.clear()
        times.end_iteration()
    net.record = None
    return times.times(net, LocalCluster())


def read_times(path: str, net: Net) -> Times:
    """Read a file of lines ``LAYER FORWARD_MS BACKWARD_MS`` and ``update MS``.

    A layer that is not named takes no time.  Raises UsageError with the line that is wrong.
    """
    seconds = dict.fromkeys(net.layer_names, (0.0, 0.0))
    update = 0.0
    lines = read_lines(path, lambda message: UsageError(f"the file of times {path} {message}"))
    for number, line in enumerate(lines, 1):
        name, *values = line.partition("#")[0].split() or [""]
        if not name:
            continue
        try:
            milliseconds = [float(value) for value in values]
        except ValueError:
            milliseconds = []
        if name == UPDATE and len(milliseconds) == 1:
            update = milliseconds[0] / 1e3
        elif len(milliseconds) != 2:
            raise UsageError(f"{path}:{number}: expected LAYER FORWARD_MS BACKWARD_MS")
        elif name not in seconds:
            hint = did_you_mean(name, seconds)
            raise UsageError(f"{path}:{number}: the net has no layer '{name}'{hint}")
        else:
            seconds[name] = milliseconds[0] / 1e3, milliseconds[1] / 1e3
    forward, backward = zip(*(seconds[name] for name in net.layer_names))
    return Times(forward, backward, update)


def predict(
    net: Net, workload: Workload, imagined: Imagined, exchange: str
) -> tuple[Plan, Iteration]:
    """Return the exchange plan and one iteration on the imagined cluster."""
    cluster, exchanges = _imagine(workload, imagined, exchange)
    plan = make_plan(net.parameters, exchanges, cluster, exchange, workload)
    return plan, predicted(plan.choice, net.parameters, exchanges, workload, cluster)


def _imagine(
    workload: Workload, imagined: Imagined, exchange: str
) -> tuple[ImaginedCluster, list[Exchange]]:
    cluster = ImaginedCluster(imagined)
    settings = ExchangeSettings(
        passes=workload.passes, overlap=workload.overlap, wire=imagined.wire
    )
    return cluster, [kind(cluster, settings) for kind in candidates(exchange, imagined.wire)]


@dataclass(frozen=True)
class Speed:
    """One iteration on a number of ranks.

    ``speedup`` is of samples per second, with fixed batches.
    """

    ranks: int
    iteration: Iteration
    speedup: float


@dataclass(frozen=True)
class Forecast:
    """A net on an imagined cluster: the exchange of each parameter, and the speed of less of it."""

    cluster: str
    plan: Plan
    speeds: tuple[Speed, ...]

    def table(self) -> str:
        """Return the plan and the speeds as text."""
        lines: list[tuple[str, ...]] = [
            ("ranks", "ms", "computing", "wire", "waiting", "speed-up", "efficiency")
        ]
        for speed in self.speeds:
            found = speed.iteration
            seconds = [
                f"{1e3 * value:.3f}"
                for value in (found.total, found.computing, found.wire, found.waiting)
            ]
            efficiency = f"{100 * speed.speedup / speed.ranks:.0f} %"
            lines.append((str(speed.ranks), *seconds, f"{speed.speedup:.2f}", efficiency))
        plan = f"Exchange plan for {self.cluster}:\n{self.plan.table()}"
        return f"{plan}\n\n{aligned(lines, left=())}"


def forecast(net: Net, workload: Workload, imagined: Imagined, exchange: str) -> Forecast:
    """Return the forecast for 1, 2, 4, … ranks and for all of the imagined cluster."""
    counts = [2**power for power in range(imagined.ranks.bit_length()) if 2**power < imagined.ranks]
    found = [
        (ranks, *predict(net, workload, replace(imagined, ranks=ranks), exchange))
        for ranks in [*counts, imagined.ranks]
    ]
    alone = found[0][2].total
    speeds = (
        Speed(ranks, iteration, ranks * alone / iteration.total) for ranks, _, iteration in found
    )
    words = describe(*_imagine(workload, imagined, exchange))
    return Forecast(words, found[-1][1], tuple(speeds))
