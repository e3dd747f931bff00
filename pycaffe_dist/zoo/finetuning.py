"""Fine-tuning on a folder of images: writes nets, solver and lists to a new folder."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from pycaffe_dist.atomic import write
from pycaffe_dist.data.image_folders import ImageFolder, read_folder, write_classes
from pycaffe_dist.data.image_list import ImageList
from pycaffe_dist.errors import DataError, UsageError
from pycaffe_dist.log import logger
from pycaffe_dist.schema import caffe_pb2, text
from pycaffe_dist.zoo.models import Model
from pycaffe_dist.zoo.new_classes import Lists, classifiers, read_folders, renew
from pycaffe_dist.zoo.preparation import input_shape, usual_size

# The learning rate falls to a tenth after this part of the training.
_FIRST_STEP = 0.7
_DISPLAYS_PER_EPOCH = 5


@dataclass(frozen=True)
class FineTuning:
    """What to fine-tune, how, and the new folder.

    ``part`` of every class is for tests; ``batch`` 0 is the model's.
    """

    model: Model
    data: str
    folder: Path
    part: float
    epochs: int
    rate: float
    batch: int
    seed: int = 0

    @property
    def solver(self) -> Path:
        """The solver's file."""
        return self.folder / "solver.prototxt"


def prepare(task: FineTuning) -> None:
    """Write the new folder; raises UsageError and DataError before anything is written."""
    if os.path.lexists(task.folder):
        raise UsageError(f"'{task.folder}' exists already; remove it, or name another with --to")
    images = read_folder(task.data, task.part, task.seed)
    _check(images, task.data)
    train_net, deploy_net = task.model.train_net, task.model.deploy_net
    if train_net is None or deploy_net is None:
        missing = "train_val.prototxt" if train_net is None else "deploy.prototxt"
        raise UsageError(f"model '{task.model.folder}' cannot be fine-tuned: it has no {missing}")
    train, deploy = text.read_net(train_net), text.read_net(deploy_net)
    names = classifiers(train, str(train_net))
    suffix = "_" + re.sub(r"\W", "_", Path(task.data).resolve().name)
    _, channels, *shape = input_shape(deploy, str(deploy_net))
    lists = Lists(
        os.path.join(os.path.abspath(task.data), ""),
        str(task.folder / "train.txt"),
        str(task.folder / "val.txt"),
    )
    sources = read_folders(train, lists, channels, usual_size(train, shape), str(train_net))
    epoch, tests = _batches(task, sources, images)
    for net in (train, deploy):
        renew(net, names, suffix, len(images.classes))
    solver = _solver(task, epoch, tests)
    _write(task, {"train_val": train, "deploy": deploy, "solver": solver}, images)
    logger.info(
        "%d classes, %d images for training, %d for tests: see %s",
        *(len(images.classes), len(images.train), len(images.val), task.folder),
    )


def _check(images: ImageFolder, folder: str) -> None:
    if len(images.classes) < 2:
        raise DataError(f"'{folder}' has one subfolder: expected two classes or more")
    if not len(images.val):
        raise DataError(f"'{folder}' has one image of each class: expected two or more")


def _batches(
    task: FineTuning, sources: dict[int, caffe_pb2.LayerParameter], images: ImageFolder
) -> tuple[int, int]:
    """Set the batch sizes; return the iterations of an epoch and of a test.

    A test's batches have equal parts of its images, so that it sees hardly any of them twice.
    """
    train, test = (sources[phase].image_data_param for phase in (caffe_pb2.TRAIN, caffe_pb2.TEST))
    train.batch_size = min(task.batch or train.batch_size, len(images.train))
    tests = -(-len(images.val) // test.batch_size)
    test.batch_size = -(-len(images.val) // tests)
    return -(-len(images.train) // train.batch_size), tests


def _solver(task: FineTuning, epoch: int, tests: int) -> caffe_pb2.SolverParameter:
    """Return the solver: SGD with one step of the rate, and a test and a snapshot every epoch."""
    last = epoch * task.epochs
    return caffe_pb2.SolverParameter(
        net=str(task.folder / "train_val.prototxt"),
        test_iter=[tests],
        test_interval=epoch,
        base_lr=task.rate,
        lr_policy="step",
        gamma=0.1,
        stepsize=max(1, round(last * _FIRST_STEP)),
        momentum=0.9,
        weight_decay=0.0005,
        max_iter=last,
        display=max(1, epoch // _DISPLAYS_PER_EPOCH),
        snapshot=epoch,
        snapshot_prefix=str(task.folder / task.folder.name),
        random_seed=task.seed,
    )


def _write(task: FineTuning, files: dict[str, caffe_pb2.NetParameter], images: ImageFolder) -> None:
    try:
        task.folder.mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"cannot create '{task.folder}': {error.strerror}") from None
    for name, message in files.items():
        write(task.folder / f"{name}.prototxt", [text.to_text(message).encode()])
    write_classes(str(task.folder / "labels.txt"), images.classes)
    for name, some in (("train", images.train), ("val", images.val)):
        write(task.folder / f"{name}.txt", [_lines(some)])


def _lines(images: ImageList) -> bytes:
    lines = (f"{path} {label}\n" for path, label in zip(images.paths, images.labels))
    return "".join(lines).encode("utf-8", "surrogateescape")
