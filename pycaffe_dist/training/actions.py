"""Agrees among ranks on what the outside asks of the run: a snapshot, its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pycaffe_dist.config import Action

if TYPE_CHECKING:
    from pycaffe_dist.comm.cluster import Cluster

_ACTIONS = (Action.SNAPSHOT, Action.STOP, Action.SNAPSHOT_AND_STOP)


class Actions:
    """The requests of all ranks; one rank may lead the others by ``staleness`` iterations."""

    def __init__(self, cluster: Cluster, staleness: int):
        self._cluster = cluster
        self._lag = 1 + staleness  # what ranks said before that has arrived
        # The number of requests for each action on this rank, and of actions of all ranks.
        self._asked = dict.fromkeys(_ACTIONS, 0)
        self._done = dict.fromkeys(_ACTIONS, 0)

    def agree(self, action: Action) -> Action:
        """Return the action that all ranks take, at the latest one call after a rank asked for it.

        A request to all ranks, such as mpirun's signals, may reach them in different iterations. It
        is still done once: a rank's n-th request for an action is the same as the other ranks'
        n-th.
        """
        asked = self._asked
        if action is not Action.NONE:
            asked[action] += 1
        mine = [*asked.values(), self._cluster.has_request()]
        *agreed, requested = self._cluster.agree_max(mine, self._lag).tolist()
        self._cluster.is_requested = bool(requested)
        new = {action for action, count in zip(asked, agreed) if count > self._done[action]}
        self._done.update(zip(asked, agreed))
        if Action.SNAPSHOT_AND_STOP in new or len(new) > 1:
            return Action.SNAPSHOT_AND_STOP
        return new.pop() if new else Action.NONE
