"""Settings of a run, as frozen dataclasses.

A setting that is a flag, too, is declared here alone: `pycaffe_dist.cli.flags` makes the flags of a
class, and an instance of their values.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# The key of a field's `SettingsFlag` in its metadata.
FLAG = "flag"


@dataclass(frozen=True)
class SettingsFlag:
    """How a field of settings is given on the command line.

    The flag is called ``name``, or else like the field, and is of type ``kind`` or one of
    ``choices``, which have their values.  A number times ``unit`` is the field's value, and 0 means
    ``off``.  Only with ``negative`` it may be below 0.  Given without a value, it has the value
    ``alone``.  ``needs`` names the one exchange that reads it.
    """

    help: str
    name: str = ""
    kind: type = str
    metavar: str = ""
    choices: Mapping[str, Any] = field(default_factory=dict)
    unit: float = 1
    off: Any = None
    negative: bool = False
    alone: str = ""
    needs: str = ""


def flag(default: Any, help: str, **more: Any) -> Any:
    """Return a dataclass field that is a flag; ``more`` are other fields of its `SettingsFlag`."""
    if isinstance(default, enum.Enum):
        more["choices"] = {choice.value: choice for choice in type(default)}
    elif default is not None and "choices" not in more:
        more["kind"] = type(default)
    return field(default=default, metadata={FLAG: SettingsFlag(help, **more)})


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


# To which type inference on a CPU rounds the factors of products.
PRECISIONS = ("float32", "bfloat16")


class UpdatePriority(enum.Enum):
    """Which of the gradients that wait for a slow link goes to the parameter server first."""

    FIFO = "fifo"
    RANDOM = "random"
    RELATIVE_MAGNITUDE = "relative_magnitude"  # the largest in comparison with its weights


@dataclass(frozen=True)
class ClusterSettings:
    """How the ranks of a run work together.

    ``hosts`` names every rank's host, where the machines' own names do not tell which ranks share
    one.  The bandwidth is in bytes per second, times are in seconds.
    """

    bandwidth_limit: float = flag(
        math.inf,
        "megabytes (10^6 bytes) of gradients and weights that a rank sends per second; 0 is as "
        "many as it can",
        metavar="MBPS",
        unit=1e6,
        off=math.inf,
    )
    stall_seconds: float = flag(
        120.0,
        "when a rank has waited this long, it says for which others; 0 never does",
        name="stall_timeout",
        metavar="SECONDS",
        off=math.inf,
    )
    shutdown_seconds: float = flag(
        math.inf,
        "when a rank has waited this long for others, it ends the run, which pcaffe launch "
        "--restarts then starts again; take more than the longest snapshot or test; 0 never does",
        name="stall_shutdown",
        metavar="SECONDS",
        off=math.inf,
    )
    server_ranks: int = flag(
        0,
        "with --exchange=parameter_server: the last N ranks serve parameters and do not train; 0 "
        "lets all ranks do both",
        metavar="N",
        needs="parameter_server",
    )
    elastic: int = flag(
        0,
        "when ranks die, the others go on, as long as MIN are left: they repeat the iteration that "
        "was under way; needs an MPI with fault tolerance, as pcaffe launch --elastic starts it; "
        "0 ends the run",
        metavar="MIN",
        alone="1",
    )
    respawn: bool = flag(True, "with --elastic: start new ranks in place of lost ones")
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExchangeSettings:
    """How gradients travel between ranks.

    Parameters that together have at most ``bucket_bytes`` travel as one; larger ones travel in
    slices of at most ``slice_bytes``.  A gradient is the sum of ``passes`` backward passes.
    ``needs_gradients`` says why the solver must see mean gradients itself; empty if it need not.
    """

    bucket_bytes: int = 64 << 10
    slice_bytes: int = 4 << 20
    passes: int = 1
    overlap: Overlap = flag(
        Overlap.BACKWARD,
        "until when gradients may travel: the end of backward, or the next forward of the layer "
        "that needs them, the first layers' first",
    )
    wire: Wire = flag(
        Wire.FLOAT32,
        "the form in which gradients travel; of 16 bits, they take half the time, and what "
        "rounding loses of a gradient is added to the next one",
    )
    staleness: int = flag(
        0,
        "with --exchange=parameter_server: how many iterations a rank may be ahead of the "
        "slowest; 0 trains synchronously",
        metavar="S",
        needs="parameter_server",
    )
    update_priority: UpdatePriority = flag(
        UpdatePriority.FIFO,
        "with --exchange=parameter_server: what goes first when the link or --bandwidth_limit "
        "holds gradients up",
        needs="parameter_server",
    )
    needs_gradients: str = ""


@dataclass(frozen=True)
class TrainOptions:
    """One training run.

    ``snapshot`` resumes and ``weights`` fine-tunes: not both, unless the snapshot is "latest", the
    newest of the solver's prefix, if there is any.  ``gpu`` holds device numbers or "all",
    comma-separated, and is empty when the solver's own setting counts.  ``level`` and ``stages``
    select the net's layers.  ``seed`` None leaves the solver's ``random_seed``, ``max_time`` None
    (else seconds) its ``max_time``.  ``flags`` has those of the command line that differ from their
    defaults, for records of the run.
    """

    solver: str
    snapshot: str = ""
    weights: tuple[str, ...] = ()
    gpu: str = ""
    level: int = 0
    stages: tuple[str, ...] = ()
    flags: Mapping[str, Any] = field(default_factory=dict)
    exchange: str = flag(
        "auto",
        "how gradients are combined over ranks: auto takes the cheapest for each parameter "
        "(of allreduce, sufficient_factor, where several hosts have several ranks hierarchical, "
        "and on GPUs nccl and cuda_mpi, which leave gradients in their memory); naive "
        "does it after backward; one_sided puts into other ranks' memory; with "
        "parameter_server, owners of shards update them and send weights back",
        metavar="NAME",
    )
    gradients: ExchangeSettings = ExchangeSettings()
    cluster: ClusterSettings = ClusterSettings()
    timeline: str = flag(
        "",
        "write what every rank does when, in Chrome's trace format (for ui.perfetto.dev)",
        metavar="FILE",
    )
    metrics: str = flag(
        "",
        "append loss, outputs, speed and shares of time to this file at every display and test, a "
        "line of JSON each; a resumed run replaces the lines of repeated iterations",
        metavar="FILE",
    )
    tensorboard: str = flag(
        "",
        "write the run for TensorBoard: the same records as curves, histograms, filters, maps, "
        "inputs, what tests find, the net",
        metavar="FOLDER",
    )
    layer_metrics: bool = flag(
        False,
        "records of metrics have norms of weights, gradients and updates, times of layers and of "
        "messages, and shares of dead channels of ReLUs, too",
    )
    check_interval: int = flag(
        1000,
        "compare the weights of all ranks every N iterations, and end the run when they differ; 0 "
        "never does, nor does a run with --staleness",
        metavar="N",
    )
    threads: int = flag(
        0, "threads of each rank; 0 is its share of the machine's cores", metavar="N"
    )
    cuda_graph: bool = flag(
        True,
        "on one rank with a GPU, launch the work of an iteration as CUDA graphs; -v 1 says what "
        "cannot be one",
    )
    global_batch: bool = flag(
        False, "the prototxt's batch sizes are for all ranks together, not for each rank"
    )
    scale_lr: int = flag(
        0,
        "multiply the learning rate by the number of ranks, as the batch is; in the first N "
        "iterations the factor grows from 1 to that (alone: in 500)",
        metavar="N",
        alone="500",
    )
    seed: int | None = flag(
        None,
        "make the run repeatable, as random_seed in the solver does; on several ranks name an "
        "--exchange, too, since auto's choice depends on what it measures",
        kind=int,
        metavar="N",
        negative=True,
    )
    keep: int = flag(
        0, "keep only the newest N snapshots of the solver's prefix; 0 keeps all", metavar="N"
    )
    keep_best: str = flag(
        "",
        "keep the weights of the best test in PREFIX_best.caffemodel: the one with the best value "
        "of this output of a test net; as best_output in the solver",
        metavar="OUTPUT",
    )
    check: bool = flag(
        False,
        "check everything, make two iterations, a test and a snapshot, which goes to a temporary "
        "folder, and print the time, memory and disk space of the whole run",
    )
    json: bool = flag(False, "with --check: print the result as JSON instead of a table")
    stop_at_nan: bool = flag(
        True,
        "what a loss that is NaN or infinite does",
        name="nan",
        choices={"stop": True, "continue": False},
    )
    max_time: float | None = flag(
        None,
        "write a snapshot and stop after this time",
        kind=float,
        metavar="SECONDS",
        negative=True,
    )
