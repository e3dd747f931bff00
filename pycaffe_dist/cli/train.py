"""Train or fine-tune a net.

Under mpirun, every rank runs this command: gradients are averaged, and rank 0 logs and writes the
snapshots.  The effective batch size is the prototxt's times the number of ranks.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from pycaffe_dist.cli.flags import (
    FlagParser,
    add_caffe_flags,
    add_settings_flags,
    require_exchange,
    require_utf8,
    settings_of,
    split_list,
)
from pycaffe_dist.config import Action, TrainOptions
from pycaffe_dist.data.options import ReadingOptions, set_options
from pycaffe_dist.errors import UsageError

_CAFFE_FLAGS = ("solver", "snapshot", "weights", "gpu", "level", "stage")
# A solver and its state contain these paths; protobuf's texts are UTF-8.
_PATHS_IN_MESSAGES = ("solver", "weights", "snapshot")
_SIGNAL_FLAGS = ("sigint_effect", "sighup_effect")


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags."""
    add_caffe_flags(parser, _CAFFE_FLAGS + _SIGNAL_FLAGS)
    add_settings_flags(parser, TrainOptions)
    add_settings_flags(parser, ReadingOptions)


def run(options: argparse.Namespace) -> int:
    """Train as the flags say; raises PcaffeError."""
    if not options.solver:
        raise UsageError("need a solver definition to train: --solver=FILE")
    if options.snapshot and options.weights and not options.snapshot.startswith("latest"):
        raise UsageError("give a snapshot to resume training or weights to finetune, but not both")
    require_utf8(options, _PATHS_IN_MESSAGES)
    wanted = settings_of(
        options,
        TrainOptions,
        solver=options.solver,
        snapshot=options.snapshot,
        weights=split_list(options.weights),
        gpu=options.gpu,
        level=options.level,
        stages=split_list(options.stage),
        flags=options.given,
    )
    effects = Action(options.sigint_effect), Action(options.sighup_effect)
    return start(options, wanted, effects)


def start(
    options: argparse.Namespace,
    wanted: TrainOptions,
    effects: tuple[Action, Action],
    prepare: Callable[[], None] | None = None,
) -> int:
    """Train as ``wanted``; ``effects`` are those of SIGINT and SIGHUP; return the exit status.

    ``prepare`` is as in `trainer.train`.  Raises PcaffeError.
    """
    require_exchange(options, TrainOptions)
    if wanted.json and not wanted.check:
        raise UsageError(
            "flag --json is for --check; --metrics=FILE writes a run's records as JSON"
        )
    if wanted.scale_lr and wanted.global_batch:
        raise UsageError(
            "--scale_lr is for a batch that grows with the number of ranks; with --global_batch it "
            "does not: give one of the two"
        )
    set_options(settings_of(options, ReadingOptions))
    from pycaffe_dist.cli.progress import Progress
    from pycaffe_dist.training.signals import SignalActions

    # First of all: a signal that comes while modules are imported and MPI starts, which takes
    # seconds, would end the process, and the job with it.
    with SignalActions(*effects) as actions, Progress() as progress:
        from pycaffe_dist.training import trainer

        return trainer.train(wanted, actions, [progress], prepare)
