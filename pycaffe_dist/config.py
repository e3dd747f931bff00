"""What a run was asked to do, as frozen dataclasses: filled from flags, read by the runtime."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass


class Action(enum.Enum):
    """What the outside asks of a running solver, between two iterations."""

    NONE = "none"
    STOP = "stop"
    SNAPSHOT = "snapshot"
    SNAPSHOT_AND_STOP = "snapshot and stop"


class Overlap(enum.Enum):
    """Until when a parameter's exchange may go on while layers compute."""

    BACKWARD = "backward"  # the end of backward: then all parameters are updated
    FORWARD = "forward"  # the parameter's first layer in the next iteration's forward


class Wire(enum.Enum):
    """In which form the numbers of gradients travel."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


class UpdatePriority(enum.Enum):
    """Which of the gradients that wait for a slow link goes to the parameter server first."""

    FIFO = "fifo"
    RANDOM = "random"
    RELATIVE_MAGNITUDE = "relative_magnitude"  # the largest in comparison with its weights


@dataclass(frozen=True)
class TrainOptions:
    """One training run.

    ``snapshot`` resumes and ``weights`` fine-tunes: not both, unless the snapshot is "latest", the
    newest of the solver's prefix, if there is any.  Of the snapshots, the newest ``keep`` are kept;
    0 means all.  ``gpu`` holds device numbers or
    "all", comma-separated, and is empty when the solver's own setting counts.  ``level`` and
    ``stages`` select the net's layers.  ``exchange`` names how gradients are combined across ranks;
    ``threads`` 0 means this rank's share of the machine's cores.  ``seed`` None leaves the solver's
    ``random_seed``, ``max_time`` None (else seconds) its ``max_time``.  ``stop_at_nan`` lets a loss
    that is NaN or infinite end the run.  ``staleness``, ``server_ranks`` and ``update_priority``
    are those of the parameter server, ``bandwidth_limit`` (bytes per second) that of every rank:
    see ExchangeSettings and ClusterSettings, also for ``wire``, ``stall_seconds`` and
    ``shutdown_seconds``.  The weights of all ranks are compared every ``check_interval``
    iterations; 0 means never.  ``overlap`` says until when gradients may travel, ``timeline`` into
    which file what all ranks do is written.
    """

    solver: str
    snapshot: str = ""
    weights: tuple[str, ...] = ()
    gpu: str = ""
    level: int = 0
    stages: tuple[str, ...] = ()
    exchange: str = "auto"
    overlap: Overlap = Overlap.BACKWARD
    timeline: str = ""
    staleness: int = 0
    server_ranks: int = 0
    update_priority: UpdatePriority = UpdatePriority.FIFO
    bandwidth_limit: float = math.inf
    wire: Wire = Wire.FLOAT32
    check_interval: int = 1000
    stall_seconds: float = 120.0
    shutdown_seconds: float = math.inf
    threads: int = 0
    global_batch: bool = False
    seed: int | None = None
    keep: int = 0
    stop_at_nan: bool = True
    max_time: float | None = None


@dataclass(frozen=True)
class ClusterSettings:
    """How the ranks of a run work together.

    A rank that has waited for others for ``stall_seconds`` says so, once per operation, and ends
    the run after ``shutdown_seconds``.  The last ``server_ranks`` ranks do not train but serve
    parameters; without any, all ranks do both.  Exchanges send at most ``bandwidth_limit`` bytes
    per second and rank.  ``hosts`` names every rank's host, where the machines' own names do not
    tell which ranks share one.
    """

    stall_seconds: float = 120.0
    shutdown_seconds: float = math.inf
    server_ranks: int = 0
    bandwidth_limit: float = math.inf
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExchangeSettings:
    """How gradients travel between ranks.

    Parameters that together have at most ``bucket_bytes`` travel as one; larger ones travel in
    slices of at most ``slice_bytes``.  A gradient is the sum of ``passes`` backward passes.
    ``overlap`` says until when gradients may travel, ``wire`` in which form.  A worker of the
    parameter server is at most ``staleness`` iterations ahead of the slowest, and
    ``update_priority`` says which of its gradients go first.  ``needs_gradients`` says why the
    solver must see mean gradients itself; empty if it need not.
    """

    bucket_bytes: int = 64 << 10
    slice_bytes: int = 4 << 20
    passes: int = 1
    overlap: Overlap = Overlap.BACKWARD
    wire: Wire = Wire.FLOAT32
    staleness: int = 0
    update_priority: UpdatePriority = UpdatePriority.FIFO
    needs_gradients: str = ""
