"""Train or fine-tune a net.

Under mpirun, every rank runs this command: gradients are averaged, and rank 0 logs and writes the
snapshots.  The effective batch size is the prototxt's times the number of ranks.
"""

from __future__ import annotations

import argparse
import math

from pycaffe_dist.cli.flags import FlagParser, add_caffe_flags, add_flag, split_list
from pycaffe_dist.cli.reading import add_reading_flags, use_reading_flags
from pycaffe_dist.config import Action, Overlap, TrainOptions, UpdatePriority, Wire
from pycaffe_dist.errors import UsageError

_CAFFE_FLAGS = ("solver", "snapshot", "weights", "gpu", "level", "stage")
_PARAMETER_SERVER = "parameter_server"
_NOT_NEGATIVE = (
    "threads",
    "keep",
    "staleness",
    "server_ranks",
    "bandwidth_limit",
    "check_interval",
    "stall_timeout",
)
# Flags that only this exchange reads, with their defaults.
_FOR_SERVERS = {
    "staleness": TrainOptions.staleness,
    "server_ranks": TrainOptions.server_ranks,
    "update_priority": TrainOptions.update_priority.value,
}
_SIGNAL_FLAGS = ("sigint_effect", "sighup_effect")


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags."""
    add_caffe_flags(parser, _CAFFE_FLAGS + _SIGNAL_FLAGS)
    add_flag(
        parser,
        "exchange",
        default=TrainOptions.exchange,
        metavar="NAME",
        help="how gradients are combined over ranks: auto takes the cheapest for each parameter "
        "(of allreduce, sufficient_factor and, where ranks share a host, hierarchical); naive "
        "does it after backward; one_sided puts into other ranks' memory; with "
        "parameter_server, owners of shards update them and send weights back",
    )
    add_flag(
        parser,
        "overlap",
        default=TrainOptions.overlap.value,
        choices=[overlap.value for overlap in Overlap],
        help="until when gradients may travel: the end of backward, or the next forward of the "
        "layer that needs them, the first layers' first",
    )
    add_flag(
        parser,
        "timeline",
        metavar="FILE",
        help="write what every rank does when, in Chrome's trace format (for ui.perfetto.dev)",
    )
    add_flag(
        parser,
        "staleness",
        int,
        default=TrainOptions.staleness,
        metavar="S",
        help="with --exchange=parameter_server: how many iterations a rank may be ahead of the "
        "slowest; 0 trains synchronously",
    )
    add_flag(
        parser,
        "server_ranks",
        int,
        default=TrainOptions.server_ranks,
        metavar="N",
        help="with --exchange=parameter_server: the last N ranks serve parameters and do not "
        "train; 0 lets all ranks do both",
    )
    add_flag(
        parser,
        "bandwidth_limit",
        float,
        default=0.0,
        metavar="MBPS",
        help="megabytes (10^6 bytes) of gradients and weights that a rank sends per second; 0 is "
        "as many as it can",
    )
    add_flag(
        parser,
        "update_priority",
        default=TrainOptions.update_priority.value,
        choices=[priority.value for priority in UpdatePriority],
        help="with --exchange=parameter_server: what goes first when the link or "
        "--bandwidth_limit holds gradients up",
    )
    add_flag(
        parser,
        "wire",
        default=TrainOptions.wire.value,
        choices=[wire.value for wire in Wire],
        help="the form in which gradients travel; of 16 bits, they take half the time, and what "
        "rounding loses of a gradient is added to the next one",
    )
    add_flag(
        parser,
        "check_interval",
        int,
        default=TrainOptions.check_interval,
        metavar="N",
        help="compare the weights of all ranks every N iterations, and end the run when they "
        "differ; 0 never does, nor does a run with --staleness",
    )
    add_flag(
        parser,
        "stall_timeout",
        float,
        default=TrainOptions.stall_seconds,
        metavar="SECONDS",
        help="when a rank has waited this long, it says for which others; 0 never does",
    )
    add_flag(
        parser,
        "threads",
        int,
        default=TrainOptions.threads,
        metavar="N",
        help="threads of each rank; 0 is its share of the machine's cores",
    )
    add_flag(
        parser,
        "global_batch",
        bool,
        help="read the prototxt's batch sizes as those of all ranks together, not of each",
    )
    add_flag(
        parser,
        "seed",
        int,
        metavar="N",
        help="make the run repeatable, as random_seed in the solver does; on several ranks name "
        "an --exchange, too, since auto's choice depends on what it measures",
    )
    add_reading_flags(parser)

    add_flag(
        parser,
        "keep",
        int,
        default=TrainOptions.keep,
        metavar="N",
        help="keep only the newest N snapshots of the solver's prefix; 0 keeps all",
    )
    add_flag(
        parser,
        "nan",
        default="stop",
        choices=("stop", "continue"),
        help="what a loss that is NaN or infinite does",
    )
    add_flag(
        parser,
        "max_time",
        float,
        metavar="SECONDS",
        help="write a snapshot and stop after this time",
    )


def run(options: argparse.Namespace) -> int:
    """Train as the flags say; raises PcaffeError."""
    if not options.solver:
        raise UsageError("need a solver definition to train: --solver=FILE")
    if options.snapshot and options.weights and not options.snapshot.startswith("latest"):
        raise UsageError("give a snapshot to resume training or weights to finetune, but not both")
    for name in _NOT_NEGATIVE:
        if getattr(options, name) < 0:
            raise UsageError(f"flag --{name} needs 0 or more, not {getattr(options, name):g}")
    if options.exchange != _PARAMETER_SERVER:
        for name, default in _FOR_SERVERS.items():
            if getattr(options, name) != default:
                raise UsageError(f"flag --{name} is for --exchange={_PARAMETER_SERVER}")
    use_reading_flags(options)
    from pycaffe_dist.cli.progress import Progress
    from pycaffe_dist.runtime import trainer

    wanted = TrainOptions(
        solver=options.solver,
        snapshot=options.snapshot,
        weights=split_list(options.weights),
        gpu=options.gpu,
        level=options.level,
        stages=split_list(options.stage),
        sigint_effect=Action(options.sigint_effect),
        sighup_effect=Action(options.sighup_effect),
        exchange=options.exchange,
        overlap=Overlap(options.overlap),
        timeline=options.timeline,
        staleness=options.staleness,
        server_ranks=options.server_ranks,
        update_priority=UpdatePriority(options.update_priority),
        bandwidth_limit=options.bandwidth_limit * 1e6 or TrainOptions.bandwidth_limit,
        wire=Wire(options.wire),
        check_interval=options.check_interval,
        stall_seconds=options.stall_timeout or math.inf,
        threads=options.threads,
        global_batch=options.global_batch,
        seed=options.seed,
        keep=options.keep,
        stop_at_nan=options.nan == "stop",
        max_time=options.max_time,
    )
    with Progress() as progress:
        return trainer.train(wanted, [progress])
