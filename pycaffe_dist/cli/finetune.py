"""Fine-tune a published model on your own images, in a folder with a subfolder for each class.

Writes nets, solver, lists of images and the names of the classes to a new folder, and trains.  The
last layer starts afresh; the others start from --weights.  Under mpirun, rank 0 writes, and the
ranks share the batch.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pycaffe_dist.cli.flags import (
    FlagParser,
    add_flag,
    add_settings_flags,
    require_utf8,
    settings_of,
    split_list,
)
from pycaffe_dist.config import Action, TrainOptions
from pycaffe_dist.data.options import ReadingOptions
from pycaffe_dist.errors import UsageError

if TYPE_CHECKING:
    from pycaffe_dist.zoo.finetuning import FineTuning

_MODEL = "bvlc_reference_caffenet"
_KEPT_SNAPSHOTS = 2


def add_flags(parser: FlagParser) -> None:
    """Give ``parser`` this command's flags."""
    for name, kind, default, metavar, text in (
        ("data", str, "", "FOLDER", "the images: a subfolder for each class"),
        ("model", str, _MODEL, "NAME", "the model to start from, or its folder"),
        ("weights", str, "", "FILE", "its weights (default: those in the model's folder)"),
        ("to", str, "", "FOLDER", "the new folder (default: finetune_ and the data's name)"),
        ("split", float, 0.2, "PART", "the part of each class for tests"),
        ("epochs", int, 10, "N", "how often training sees each image"),
        ("base_lr", float, 0.001, "RATE", "the learning rate; the new layer's is ten times it"),
        ("batch_size", int, 0, "N", "images in an iteration, on all ranks; 0 is the model's"),
        ("write_only", bool, False, "", "write the new folder, and print the command that trains"),
        ("gpu", str, "", "IDS", "run on these GPUs: numbers separated by commas, or 'all'"),
    ):
        add_flag(parser, name, kind, default=default, metavar=metavar, help=text)
    add_settings_flags(parser, TrainOptions)
    add_settings_flags(parser, ReadingOptions)


def run(options: argparse.Namespace) -> int:
    """Write the new folder and train; raises PcaffeError."""
    from pycaffe_dist.launch import environment
    from pycaffe_dist.zoo.finetuning import prepare

    task, weights = _task(options)
    if options.write_only:
        if environment.rank() == 0:
            prepare(task)
            print(f"pcaffe train --solver={task.solver}" + f" --weights={weights}" * bool(weights))
        return 0
    from pycaffe_dist.cli.train import start

    wanted = settings_of(
        options,
        TrainOptions,
        solver=str(task.solver),
        weights=split_list(weights),
        gpu=options.gpu,
        flags=options.given,
    )
    wanted = replace(wanted, global_batch=True, keep=wanted.keep or _KEPT_SNAPSHOTS)
    return start(options, wanted, (Action.STOP, Action.SNAPSHOT), lambda: prepare(task))


def _task(options: argparse.Namespace) -> tuple[FineTuning, str]:
    """Return what the flags ask for, and the files of weights; raises UsageError."""
    from pycaffe_dist.zoo.finetuning import FineTuning
    from pycaffe_dist.zoo.models import find

    if not options.data:
        raise UsageError("need a folder of images to fine-tune on: --data=FOLDER")
    require_utf8(options, ("data", "weights", "to"))
    if not 0 < options.split < 1:
        raise UsageError(f"flag --split needs a part between 0 and 1, not {options.split:g}")
    for name, least in (("epochs", 1), ("batch_size", 0)):
        if getattr(options, name) < least:
            raise UsageError(f"flag --{name} needs {least} or more, not {getattr(options, name)}")
    if options.base_lr <= 0:
        raise UsageError(f"flag --base_lr needs more than 0, not {options.base_lr:g}")
    model = find(options.model)
    weights = options.weights or str(model.weights() or "")
    if not weights and not options.write_only:
        model.required_weights()
    for path in split_list(weights):
        if not Path(path).exists():
            raise UsageError(f"flag --weights: there is no file '{path}'")
    folder = Path(options.to or f"finetune_{Path(options.data).resolve().name}")
    task = FineTuning(
        model=model,
        data=options.data,
        folder=folder,
        part=options.split,
        epochs=options.epochs,
        rate=options.base_lr,
        batch=options.batch_size,
        seed=options.seed or 0,
    )
    return task, weights
