"""Starts every parameter's exchange the moment its gradient is final, and waits for it later."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from pycaffe_dist.config import Action, ExchangeSettings, Overlap
from pycaffe_dist.errors import ClusterError
from pycaffe_dist.exchange.base import AUTO, Exchange, Moves, Shipment, candidates
from pycaffe_dist.log import logger
from pycaffe_dist.runtime.mpi import MPICluster
from pycaffe_dist.runtime.plan import STATISTICS, Plan, describe, make_plan, shipments

if TYPE_CHECKING:
    from pycaffe_dist.net.parameter import Parameter
    from pycaffe_dist.runtime.cluster import Cluster
    from pycaffe_dist.runtime.communication import Handle

_ACTIONS = (Action.SNAPSHOT, Action.STOP, Action.SNAPSHOT_AND_STOP)


class Engine(abc.ABC):
    """What the solver knows of other ranks' gradients.

    Per iteration: :meth:`gradient_ready` for every parameter during backward, then :meth:`wait` for
    every parameter.
    """

    @abc.abstractmethod
    def start(self, parameters: Sequence[Parameter], by_hand: bool = False) -> None:
        """Prepare for a net's parameters; their values are equal on all ranks already.

        In a loop ``by_hand``, gradients may be sums over any number of backward passes.
        """

    @abc.abstractmethod
    def gradient_ready(self, parameter: Parameter) -> None:
        """Take note that ``parameter.blob.diff`` holds this rank's final gradient."""

    @abc.abstractmethod
    def wait(self, parameter: Parameter) -> None:
        """Return when ``parameter.blob.diff`` holds the mean gradient over ranks."""

    def has_arrived(self, parameter: Parameter) -> bool:
        """Tell whether :meth:`wait` would find all messages of a parameter there."""
        return True

    @property
    def spans_forward(self) -> bool:
        """Whether the solver is to leave each update to the next forward of the layer."""
        return False

    def hidden(self) -> str:
        """Say how much of the messages' time was hidden since the last call; empty if unknown."""
        return ""

    @abc.abstractmethod
    def mean_statistics(self) -> None:
        """Give the layers' running statistics their mean over ranks, on all ranks."""

    @abc.abstractmethod
    def agree(self, action: Action) -> Action:
        """Return what all ranks do, at the latest one call after a rank asked for it."""

    @abc.abstractmethod
    def finish(self) -> None:
        """Forget the net; waits for nothing, so that a rank that fails ends at once."""


class LocalEngine(Engine):
    """One rank: its gradient is the mean."""

    def start(self, parameters: Sequence[Parameter], by_hand: bool = False) -> None:
        """Do nothing."""

    def gradient_ready(self, parameter: Parameter) -> None:
        """Do nothing."""

    def wait(self, parameter: Parameter) -> None:
        """Return at once."""

    def mean_statistics(self) -> None:
        """Do nothing."""

    def agree(self, action: Action) -> Action:
        """Return ``action``."""
        return action

    def finish(self) -> None:
        """Do nothing."""


class _Waybill:
    """A shipment's state: which of its parameters' gradients are missing in the current round."""

    def __init__(self, exchange: Exchange, shipment: Shipment):
        self.exchange, self.shipment = exchange, shipment
        self.members = {piece.parameter.key for piece in shipment.pieces}
        self.missing = set(self.members)
        self.round = 0  # how often it has been complete
        self.completed = 0  # how often what follows the messages has been done
        self.handle: Handle | None = None

    @property
    def has_arrived(self) -> bool:
        return self.handle is not None and self.handle.done

    def complete(self) -> None:
        """Do, once, what follows the messages."""
        if self.completed < self.round:
            self.completed = self.round
            self.exchange.complete(self.shipment)


class ExchangeEngine(Engine):
    """Combines gradients on the ranks of ``cluster`` by the exchange of that name, or "auto"."""

    def __init__(self, cluster: MPICluster, exchange: str, settings: ExchangeSettings):
        self._cluster = cluster
        self._exchange = exchange
        self._settings = settings
        self._exchanges: list[Exchange] = []
        self._statistics: list[Parameter] = []
        self._waybills: list[_Waybill] = []
        self._held: list[_Waybill] = []
        self._of_parameter: dict[str, list[_Waybill]] = {}
        self._rounds: dict[str, int] = {}  # how often each gradient has been ready
        self._unawaited: set[str] = set()
        self._overlap = Overlap.BACKWARD
        self._waited = 0.0  # for messages, in seconds
        self._reported = (0.0, 0.0)  # what hidden() spoke of: seconds under way, and waited
        # How often this rank was asked for an action, and how often all did it.
        self._asked = dict.fromkeys(_ACTIONS, 0)
        self._done = dict.fromkeys(_ACTIONS, 0)

    def start(self, parameters: Sequence[Parameter], by_hand: bool = False) -> None:
        """Make, log and prepare the plan; raises ClusterError when a parameter does not fit it."""
        self.finish()
        cluster, wanted = self._cluster, self._exchange
        kinds = candidates(wanted, self._settings.wire)
        if by_hand:
            # Nobody knows the factors of the passes before the last.
            kinds = [kind for kind in kinds if kind.moves is not Moves.FACTORS]
            wanted = wanted if wanted in [kind.type for kind in kinds] else AUTO
        exchanges = [kind(cluster, self._settings) for kind in kinds]
        plan = make_plan(parameters, exchanges, cluster, wanted)
        logger.info("Exchange plan for %s:\n%s", describe(cluster, exchanges), plan.table())
        self._exchanges = exchanges
        self._statistics = [p for p in parameters if plan.row(p).exchange == STATISTICS]
        self._overlap = self._possible_overlap(plan)
        pairs = shipments(plan, parameters, exchanges, self._overlap)
        self._waybills = [_Waybill(*pair) for pair in pairs]
        self._of_parameter = {parameter.key: [] for parameter in parameters}
        for waybill in self._waybills:
            for key in waybill.members:
                self._of_parameter[key].append(waybill)
                self._rounds[key] = 0
        for exchange in exchanges:
            exchange.prepare([w.shipment for w in self._waybills if w.exchange is exchange])
        cluster.communication.restart_order()

    def _possible_overlap(self, plan: Plan) -> Overlap:
        """Return the overlap that was asked for, if all exchanges allow it; else log why not."""
        wanted = self._settings.overlap
        used = {row.exchange for row in plan.rows}
        late = [e.type for e in self._exchanges if e.type in used and not e.during_backward]
        if wanted is Overlap.FORWARD and late:
            logger.info("Gradients do not travel during forward: %s starts after backward", late[0])
            return Overlap.BACKWARD
        return wanted

    @property
    def spans_forward(self) -> bool:
        """Whether gradients may arrive as late as the next forward of their layer."""
        return self._overlap is Overlap.FORWARD

    def has_arrived(self, parameter: Parameter) -> bool:
        """Tell whether :meth:`wait` would find all messages of a parameter there."""
        return all(waybill.has_arrived for waybill in self._of_parameter.get(parameter.key, ()))

    def hidden(self) -> str:
        """Say how much of the messages' time was hidden since the last call; empty without any."""
        now = self._cluster.communication.exchange_seconds(), self._waited
        under_way, waited = (new - old for new, old in zip(now, self._reported))
        self._reported = now
        if under_way <= 0:
            return ""
        share = max(0.0, 1 - waited / under_way)
        return f"{under_way:.3f} s of exchange, {100 * share:.0f} % hidden behind computing"

    def gradient_ready(self, parameter: Parameter) -> None:
        """Start the exchanges that waited for this gradient only.

        Raises ClusterError when the gradient was announced already and nobody waited for its mean.
        """
        key = parameter.key
        if key not in self._rounds:
            raise ClusterError(f"a gradient of {key} is ready, but the exchange plan has none")
        if key in self._unawaited:
            raise ClusterError(f"the gradient of {key} is ready twice in one iteration")
        self._unawaited.add(key)
        self._rounds[key] += 1
        for waybill in self._of_parameter[key]:
            waybill.missing.discard(key)
            if not waybill.missing:
                self._complete(waybill)

    def _complete(self, waybill: _Waybill) -> None:
        waybill.round += 1
        waybill.missing = set(waybill.members)
        if waybill.exchange.during_backward:
            self._submit(waybill)
        else:
            waybill.handle = None
            self._held.append(waybill)

    def _submit(self, waybill: _Waybill) -> None:
        order = (waybill.round - 1) * len(self._waybills) + waybill.shipment.number
        waybill.handle = waybill.exchange.submit(waybill.shipment, order)

    def wait(self, parameter: Parameter) -> None:
        """Return when ``parameter.blob.diff`` holds the mean gradient; once more does no harm.

        Raises ClusterError when backward has not announced the gradient or one that travels with
        it, and whatever went wrong on the way.
        """
        key = parameter.key
        self._release()
        for waybill in self._of_parameter.get(key, ()):
            if waybill.handle is None or waybill.round < self._rounds[key]:
                raise ClusterError(
                    f"waiting for the gradient of {key}, but backward has not made that of "
                    f"{', '.join(sorted(waybill.missing))}"
                )
            self._wait(waybill.handle)
            waybill.complete()
        self._unawaited.discard(key)

    def _wait(self, handle: Handle) -> None:
        started = perf_counter()
        handle.wait()
        self._waited += perf_counter() - started

    def _release(self) -> None:
        """Start what waited for the end of backward, in the same order on all ranks."""
        held, self._held = self._held, []
        for waybill in sorted(held, key=lambda waybill: waybill.shipment.number):
            self._submit(waybill)

    def mean_statistics(self) -> None:
        """Give the layers' running statistics their mean over ranks, on all ranks."""
        if not self._statistics:
            return
        arrays = [parameter.blob.data.reshape(-1) for parameter in self._statistics]
        means = self._cluster.mean(np.concatenate(arrays))
        begin = 0
        for array in arrays:
            array[:] = means[begin : begin + array.size]
            begin += array.size

    def agree(self, action: Action) -> Action:
        """Return what all ranks do, at the latest one call after a rank asked for it.

        What is asked of all ranks at once, as mpirun does with signals, may reach them in different
        iterations.  It is still done once: the n-th time that a rank is asked for something is
        taken to be what the others were asked for their n-th time.
        """
        asked = self._asked
        if action is not Action.NONE:
            asked[action] += 1
        agreed = self._cluster.agree_max([asked[action] for action in asked])
        new = {action for action, count in zip(asked, agreed) if count > self._done[action]}
        self._done.update(zip(asked, agreed.tolist()))
        if Action.SNAPSHOT_AND_STOP in new or len(new) > 1:
            return Action.SNAPSHOT_AND_STOP
        return new.pop() if new else Action.NONE

    def finish(self) -> None:
        """Forget the net; waits for nothing, so that a rank that fails ends at once."""
        for exchange in self._exchanges:
            exchange.close()
        self._exchanges, self._waybills, self._held, self._statistics = [], [], [], []
        self._of_parameter.clear()
        self._rounds.clear()
        self._unawaited.clear()


def make_engine(
    cluster: Cluster, exchange: str = AUTO, settings: ExchangeSettings | None = None
) -> Engine:
    """Return the engine that suits ``cluster``: one rank needs no exchange.

    Raises ClusterError when there is no ``exchange`` of that name, or not with these settings.
    """
    settings = settings or ExchangeSettings()
    candidates(exchange, settings.wire)
    if cluster.size == 1 or not isinstance(cluster, MPICluster):
        return LocalEngine()
    return ExchangeEngine(cluster, exchange, settings)
