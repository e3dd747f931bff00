"""Starts every parameter's exchange the moment its gradient is final, and waits for it later."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from pycaffe_dist.comm.mpi import MPICluster
from pycaffe_dist.config import Action, ExchangeSettings, Overlap
from pycaffe_dist.errors import ClusterError, UsageError
from pycaffe_dist.exchange.base import (
    AUTO,
    Bucket,
    Exchange,
    FactorExchange,
    Moves,
    UpdateExchange,
    candidates,
)
from pycaffe_dist.log import logger
from pycaffe_dist.planning.plan import (
    STATISTICS,
    Plan,
    buckets,
    describe,
    known_plan,
    make_plan,
    make_plans,
    messages_of,
)
from pycaffe_dist.planning.search import Workload, predicted, spared_seconds, use_buckets
from pycaffe_dist.profiling import Kind, Record
from pycaffe_dist.solvers.engine import Engine, Factors
from pycaffe_dist.solvers.local_engine import LocalEngine
from pycaffe_dist.training.actions import Actions
from pycaffe_dist.training.tuning import TunableEngine

if TYPE_CHECKING:
    from pycaffe_dist.comm.cluster import Cluster
    from pycaffe_dist.comm.tasks import Handle
    from pycaffe_dist.net.parameter import Parameter
    from pycaffe_dist.planning.layer_times import Times
    from pycaffe_dist.planning.simulation import Iteration
    from pycaffe_dist.solvers.update.updater import Updater


class _Transfer:
    """A bucket's state: the parameters whose gradients are missing in the current round."""

    def __init__(self, exchange: Exchange, bucket: Bucket):
        self.exchange, self.bucket = exchange, bucket
        self.members = {piece.parameter.key for piece in bucket.slices}
        self.missing = set(self.members)
        self.round = 0  # counts its completed sets of gradients
        self.completed = 0  # counts the times that `complete` has done its work
        self.handle: Handle | None = None

    @property
    def has_arrived(self) -> bool:
        return self.handle is not None and self.handle.done

    def complete(self) -> bool:
        """Do the work after the messages, once; tell whether it was due."""
        if self.completed == self.round:
            return False
        self.completed = self.round
        self.exchange.complete(self.bucket)
        return True


class ExchangeEngine(TunableEngine):
    """Combines gradients on the ranks of ``cluster`` by the exchange of that name, or "auto"."""

    def __init__(self, cluster: MPICluster, exchange: str, settings: ExchangeSettings):
        self._cluster = cluster
        self._exchange = exchange
        self._settings = settings
        self._exchanges: list[Exchange] = []
        self._updating: list[UpdateExchange] = []
        self._updated: set[str] = set()  # the parameters that they update
        self._factored: frozenset[str] = frozenset()
        self._statistics: list[Parameter] = []
        self._transfers: list[_Transfer] = []
        self._held: list[_Transfer] = []
        self._of_parameter: dict[str, list[_Transfer]] = {}
        self._rounds: dict[str, int] = {}  # counts each gradient's announcements
        self._unawaited: set[str] = set()
        self._overlap = Overlap.BACKWARD
        self._apart = False
        self._waited = 0.0  # for messages, in seconds
        self._record: Record | None = None
        self._plan: Plan | None = None
        self._plans: list[Plan] = []  # others to try
        self._candidates: list[Exchange] = []  # the exchanges in them
        self._messages: dict[str, dict[str, float]] = {}
        self._given = b""
        self._plan_is_fixed = False
        self._actions = Actions(cluster, settings.staleness)

    def start(
        self,
        parameters: Sequence[Parameter],
        by_hand: bool = False,
        updater: Updater[Parameter] | None = None,
    ) -> None:
        """Make, log and prepare the plan; raises ClusterError when a parameter does not fit it."""
        if updater is not None:
            self._take_back(updater)
        self.finish()
        cluster, wanted = self._cluster, self._exchange
        kinds = self._kinds(wanted)
        if by_hand:
            # Nobody knows the factors of the passes before the last.
            kinds = [kind for kind in kinds if kind.moves is not Moves.FACTORS]
            wanted = wanted if wanted in [kind.type for kind in kinds] else AUTO
        exchanges = self._gather(kinds, parameters)
        plan = None
        if self._given and wanted == self._exchange == AUTO:
            plan = known_plan(self._given, parameters, exchanges, cluster)
        origin = " of the snapshot" if plan else ""
        self._plan_is_fixed = bool(plan) or wanted != self._exchange or wanted != AUTO
        plan = plan or make_plan(parameters, exchanges, cluster, wanted)
        measured = describe(cluster, exchanges)
        logger.info("Exchange plan%s for %s:\n%s", origin, measured, plan.table())
        self._adopt(plan, parameters, exchanges)
        self._hand_over(plan, updater)

    def _kinds(self, wanted: str) -> list[type[Exchange]]:
        kinds = candidates(wanted, self._settings.wire)
        return [kind for kind in kinds if not (self._cluster.is_elastic and kind.needs_all_ranks)]

    def _gather(
        self, kinds: Sequence[type[Exchange]], parameters: Sequence[Parameter]
    ) -> list[Exchange]:
        """Return the exchanges, after all ranks have agreed on what these can do here."""
        exchanges = [kind(self._cluster, self._settings) for kind in kinds]
        for exchange in exchanges:
            exchange.negotiate(parameters)
        return exchanges

    def _adopt(
        self, plan: Plan, parameters: Sequence[Parameter], exchanges: list[Exchange]
    ) -> None:
        """Prepare to follow a plan from the next gradient on."""
        self._plan, self._messages = plan, {}
        self._exchanges = exchanges
        self._statistics = [p for p in parameters if plan.row(p).exchange == STATISTICS]
        self._overlap = self._possible_overlap(plan)
        pairs = buckets(plan, parameters, exchanges, self._overlap)
        self._transfers = [_Transfer(*pair) for pair in pairs]
        self._of_parameter = {parameter.key: [] for parameter in parameters}
        for transfer in self._transfers:
            for key in transfer.members:
                self._of_parameter[key].append(transfer)
                self._rounds[key] = 0
        self._factored = frozenset(
            key
            for transfer in self._transfers
            if isinstance(transfer.exchange, FactorExchange)
            for key in transfer.members
        )
        for exchange in exchanges:
            exchange.prepare([w.bucket for w in self._transfers if w.exchange is exchange])
        self._cluster.communication.restart_order()

    @property
    def can_revise(self) -> bool:
        """Whether "auto" has not settled on a plan."""
        return not self._plan_is_fixed

    def keep_apart(self, apart: bool) -> None:
        """Start all exchanges after backward, so that layers can be timed, or when they can."""
        self._apart = apart

    def revise(self, parameters: Sequence[Parameter], times: Times) -> int:
        """Make plans by the simulated iteration; return how many :meth:`use_plan` may be given."""
        cluster, workload = self._cluster, self._workload(times)
        kinds = self._kinds(self._exchange)
        exchanges = self._gather(kinds, parameters)
        self._plans = make_plans(parameters, exchanges, cluster, self._exchange, workload)
        self._candidates = exchanges
        first = self._plans[0].choice
        seconds = predicted(first, parameters, exchanges, workload, cluster).total
        logger.info("With the layers' times, an iteration is predicted to take %.4g s", seconds)
        if self._plan is not None and self._plans[0].is_like(self._plan):
            logger.info("Exchange plan: it stays, now that the layers' times are known")
        self.use_plan(0, parameters, "now that the layers' times are known")
        return len(self._plans)

    def use_plan(self, number: int, parameters: Sequence[Parameter], words: str = "") -> None:
        """Change to one of the plans that :meth:`revise` made; nothing may be under way."""
        before, plan = self._plan, self._plans[number]
        if before is not None and plan.is_like(before):
            return
        if words:
            logger.info("Exchange plan, %s:\n%s", words, plan.table())
        self.finish()
        use_buckets(self._candidates, plan.bucket_bytes)
        self._adopt(plan, parameters, self._candidates)

    def predict(self, parameters: Sequence[Parameter], times: Times) -> Iteration:
        """Return the plan's predicted iteration with these times of layers."""
        choice = self._plan.choice if self._plan else {}
        workload = self._workload(times)
        return predicted(choice, parameters, self._exchanges, workload, self._cluster)

    def _workload(self, times: Times) -> Workload:
        """Return the work of an iteration, with the products that the plan saves the layers."""
        full = [*times.backward]
        for transfer in self._transfers:
            layer = transfer.bucket.slices[0].parameter.layer_index
            full[layer] += spared_seconds(transfer.exchange, transfer.bucket, self._cluster)
        times = replace(times, backward=tuple(full))
        return Workload(times, self._settings.passes, self._overlap)

    def messages(self) -> dict[str, dict[str, float]]:
        """Return the messages of the plan; see `Engine`."""
        pairs = [(transfer.exchange, transfer.bucket) for transfer in self._transfers]
        self._messages = self._messages or messages_of(pairs, self._cluster)
        return self._messages

    def fix_plan(self) -> bytes:
        """Fix and return the plan of "auto", which is not revised any more; else return nothing."""
        self._plan_is_fixed = True
        return self._plan.to_bytes() if self._plan and self._exchange == AUTO else b""

    def resume_plan(self, plan: bytes) -> None:
        """Use a plan of "auto", if it fits, at the next start."""
        self._given = plan

    def profile(self, record: Record | None) -> None:
        """Call ``record`` for all messages, and for waiting for them, from now on."""
        self._record = record
        self._cluster.communication.record = record

    def _hand_over(self, plan: Plan, updater: Updater[Parameter] | None) -> None:
        """Let exchanges that update parameters do so from now on."""
        used = {row.exchange for row in plan.rows}
        self._updating = [
            exchange
            for exchange in self._exchanges
            if isinstance(exchange, UpdateExchange) and exchange.type in used
        ]
        types = {exchange.type for exchange in self._updating}
        self._updated = {row.key for row in plan.rows if row.exchange in types}
        for exchange in self._updating:
            if updater is None:
                raise ClusterError(f"--exchange={exchange.type} needs a solver to start from")
            exchange.take_over(updater)

    def _take_back(self, updater: Updater[Parameter]) -> None:
        """Give rank 0's updater the history that exchanges hold."""
        for exchange in self._updating:
            for (slot, index), array in exchange.collect_history(updater).items():
                updater.method.slot(index, slot)[...] = array

    def updates(self, parameter: Parameter) -> bool:
        """Tell whether an exchange updates a parameter, so that the solver must not."""
        return parameter.key in self._updated

    @property
    def updates_some(self) -> bool:
        """Whether there is such a parameter."""
        return bool(self._updated)

    def begin(self, iteration: int, rate: float) -> None:
        """Note the number of the iteration whose gradients come next, and its learning rate."""
        for exchange in self._updating:
            exchange.begin(iteration, rate)

    def synchronize(self) -> None:
        """Give all ranks the same weights; some may have seen fewer updates than others."""
        for exchange in self._updating:
            exchange.synchronize()

    def collect_history(self, updater: Updater[Parameter]) -> list[np.ndarray]:
        """Return all history on rank 0, wherever it is; all ranks must call it."""
        elsewhere = [exchange.collect_history(updater) for exchange in self._updating]
        if self._cluster.rank:
            return []
        found = {place: array for arrays in elsewhere for place, array in arrays.items()}
        method = updater.method
        return [
            found[slot, index] if (slot, index) in found else method.slot(index, slot)
            for slot in range(method.slots)
            for index in range(len(updater.targets))
        ]

    def _possible_overlap(self, plan: Plan) -> Overlap:
        """Return the wanted overlap if all exchanges allow it; else log why not."""
        wanted = self._settings.overlap
        if wanted is Overlap.FORWARD and self._cluster.is_elastic:
            logger.info("Gradients do not travel during forward: --elastic needs them all before")
            return Overlap.BACKWARD
        used = {row.exchange for row in plan.rows}
        late = [e.type for e in self._exchanges if e.type in used and not e.during_backward]
        if wanted is Overlap.FORWARD and late:
            logger.info("Gradients do not travel during forward: %s starts after backward", late[0])
            return Overlap.BACKWARD
        return wanted

    @property
    def spans_forward(self) -> bool:
        """Whether gradients may arrive as late as the next forward of their layer."""
        return self._overlap is Overlap.FORWARD and not self._apart

    def commit(self, together: bool) -> None:
        """Return when this rank, or all ranks ``together``, have all mean gradients.

        Where ranks may be lost: a rank that cannot finish an update must not begin it.
        """
        if not self._cluster.is_elastic:
            return
        self._release()
        for transfer in self._transfers:
            if transfer.handle is not None:
                self._wait(transfer.handle, transfer.bucket.slices[0].parameter.key)
        # Without gradients, nothing else keeps ranks within one update of each other.
        if together or not self._transfers:
            self._cluster.commit()

    def has_arrived(self, parameter: Parameter) -> bool:
        """Tell whether all messages of a parameter have arrived."""
        return all(transfer.has_arrived for transfer in self._of_parameter.get(parameter.key, ()))

    @property
    def seconds_waited(self) -> float:
        """The time that this rank has waited for messages, in total."""
        return self._waited

    @property
    def seconds_under_way(self) -> float:
        """The time in which this rank has had messages under way, in total."""
        return self._cluster.communication.exchange_seconds()

    @property
    def factored(self) -> Collection[str]:
        """The keys of the parameters whose factors travel."""
        return self._factored

    def gradient_ready(self, parameter: Parameter) -> None:
        """Start the exchanges whose last missing gradient this is.

        Raises ClusterError when the gradient was announced already and nobody waited for its mean.
        """
        key = parameter.key
        if key not in self._rounds:
            raise ClusterError(f"a gradient of {key} is ready, but the exchange plan has none")
        if key in self._unawaited:
            raise ClusterError(f"the gradient of {key} is ready twice in one iteration")
        self._unawaited.add(key)
        self._rounds[key] += 1
        transfers = self._of_parameter[key]
        if not (key in self._factored or all(w.exchange.on_device for w in transfers)):
            parameter.blob.stage_diff()
        for transfer in transfers:
            transfer.missing.discard(key)
            if not transfer.missing:
                self._complete(transfer)

    def _complete(self, transfer: _Transfer) -> None:
        transfer.round += 1
        transfer.missing = set(transfer.members)
        if transfer.exchange.during_backward and not self._apart:
            self._submit(transfer)
        else:
            transfer.handle = None
            self._held.append(transfer)

    def _submit(self, transfer: _Transfer) -> None:
        order = (transfer.round - 1) * len(self._transfers) + transfer.bucket.number
        self._cluster.communication.place = f"in round {transfer.round} of exchanges"
        transfer.handle = transfer.exchange.submit(transfer.bucket, order)

    def wait(self, parameter: Parameter, rebuild: bool = True) -> Factors | None:
        """Return when ``parameter.blob.diff`` holds the mean gradient; more calls do no harm.

        If an exchange :meth:`updates` the parameter, return when its weights are updated.  Without
        ``rebuild``, return the factors of a gradient that came as factors.

        Raises ClusterError when backward has not announced a gradient of the bucket, and the
        exchange's own exceptions.
        """
        for transfer in self._arrived(parameter):
            exchange = transfer.exchange
            due = transfer.completed < transfer.round
            if due and not rebuild and isinstance(exchange, FactorExchange):
                transfer.completed = transfer.round
                return exchange.factors(transfer.bucket)
            started = perf_counter()
            if transfer.complete() and self._record is not None:
                self._record((Kind.REBUILD, parameter.key, started, perf_counter(), 0))
        return None

    def _arrived(self, parameter: Parameter) -> list[_Transfer]:
        """Return a parameter's transfers when all their messages have arrived."""
        key = parameter.key
        self._release()
        transfers = self._of_parameter.get(key, [])
        for transfer in transfers:
            if transfer.handle is None or transfer.round < self._rounds[key]:
                raise ClusterError(
                    f"waiting for the gradient of {key}, but backward has not made that of "
                    f"{', '.join(sorted(transfer.missing))}"
                )
            self._wait(transfer.handle, key)
        self._unawaited.discard(key)
        return transfers

    def _wait(self, handle: Handle, key: str) -> None:
        started = perf_counter()
        handle.wait()
        ended = perf_counter()
        self._waited += ended - started
        if self._record is not None:
            self._record((Kind.WAIT, key, started, ended, 0))

    def _release(self) -> None:
        """Start exchanges that waited for the end of backward, in the same order on all ranks."""
        held, self._held = self._held, []
        for transfer in sorted(held, key=lambda transfer: transfer.bucket.number):
            self._submit(transfer)

    @property
    def mean(self) -> Callable[[float], float] | None:
        """The mean of a number over several ranks; None for one, or if they may run apart."""
        if self._cluster.size == 1 or self._settings.staleness:
            return None
        return lambda value: float(self._cluster.mean(np.array(value))[()])

    def mean_statistics(self) -> None:
        """Replace the layers' running statistics by their means over ranks, on all ranks."""
        if not self._statistics:
            return
        arrays = [parameter.blob.data.reshape(-1) for parameter in self._statistics]
        means = self._cluster.mean(np.concatenate(arrays))
        begin = 0
        for array in arrays:
            array[:] = means[begin : begin + array.size]
            begin += array.size

    def agree(self, action: Action) -> Action:
        """Return the action that all ranks take; see `Actions`."""
        return self._actions.agree(action)

    def finish(self) -> None:
        """Forget the net without waiting, so that a rank that fails ends at once."""
        for exchange in self._exchanges:
            exchange.close()
        self._exchanges, self._transfers, self._held, self._statistics = [], [], [], []
        self._updating, self._updated = [], set()
        self._factored = frozenset()
        self._of_parameter.clear()
        self._rounds.clear()
        self._unawaited.clear()


def make_engine(
    cluster: Cluster, exchange: str = AUTO, settings: ExchangeSettings | None = None
) -> Engine:
    """Return the engine for ``cluster``: one rank needs no exchange.

    Raises ClusterError when there is no ``exchange`` of that name, or not with these settings, and
    UsageError for one that cannot go on without a rank on a cluster that can.
    """
    settings = settings or ExchangeSettings()
    kind, *_ = candidates(exchange, settings.wire)
    if settings.staleness < 0 or (settings.staleness and kind.moves is not Moves.UPDATE):
        raise ClusterError(
            f"staleness {settings.staleness} with exchange {exchange}: it must be 0, or more with "
            "parameter_server"
        )
    if cluster.is_elastic and kind.needs_all_ranks:
        raise UsageError(
            f"--elastic does not work with --exchange={exchange}: {kind.needs_all_ranks}; take "
            "allreduce, sufficient_factor or naive, or let auto choose"
        )
    if not isinstance(cluster, MPICluster) or (cluster.size == 1 and not cluster.has_servers):
        return LocalEngine()
    return ExchangeEngine(cluster, exchange, settings)
