"""Train or fine-tune a net.

Under mpirun, every rank runs this command: gradients are averaged, and rank 0 logs and writes the
snapshots.  The effective batch size is the prototxt's times the number of ranks.
"""

from __future__ import annotations

import argparse

from pycaffe_dist.cli.exchanging import add_exchange_flags, check_exchange_flags, exchange_options
from pycaffe_dist.cli.flags import (
    FlagParser,
    add_caffe_flags,
    add_flag,
    require_not_negative,
    require_utf8,
    split_list,
)
from pycaffe_dist.cli.reading import add_reading_flags, use_reading_flags
from pycaffe_dist.config import Action, TrainOptions
from pycaffe_dist.errors import UsageError

_CAFFE_FLAGS = ("solver", "snapshot", "weights", "gpu", "level", "stage")
# A solver and its state keep these; protobuf's texts are UTF-8.
_PATHS_IN_MESSAGES = ("solver", "weights", "snapshot")
_NOT_NEGATIVE = ("threads", "keep")
_SIGNAL_FLAGS = ("sigint_effect", "sighup_effect")


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags."""
    add_caffe_flags(parser, _CAFFE_FLAGS + _SIGNAL_FLAGS)
    add_exchange_flags(parser)
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
    require_not_negative(options, _NOT_NEGATIVE)
    require_utf8(options, _PATHS_IN_MESSAGES)
    check_exchange_flags(options)
    use_reading_flags(options)
    from pycaffe_dist.cli.progress import Progress
    from pycaffe_dist.training.signals import SignalActions

    wanted = TrainOptions(
        solver=options.solver,
        snapshot=options.snapshot,
        weights=split_list(options.weights),
        gpu=options.gpu,
        level=options.level,
        stages=split_list(options.stage),
        **exchange_options(options),
        threads=options.threads,
        global_batch=options.global_batch,
        seed=options.seed,
        keep=options.keep,
        stop_at_nan=options.nan == "stop",
        max_time=options.max_time,
    )
    effects = Action(options.sigint_effect), Action(options.sighup_effect)
    # First of all: a signal that comes while modules are imported and MPI starts, which takes
    # seconds, would end the process, and the job with it.
    with SignalActions(*effects) as actions, Progress() as progress:
        from pycaffe_dist.training import trainer

        return trainer.train(wanted, actions, [progress])
