"""Fine-tuning on several ranks: rank 0 writes the folder, and the ranks share the batch."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from kept_jobs import run_kept, run_pcaffe
from small_model import write_images, write_model

FLAGS = "finetune", "--data=photos", "--model=small", "--epochs=6", "--base_lr=0.01"

ENDINGS = ".caffemodel", ".solverstate", ".solverstate.json"
LISTS = "labels.txt", "train.txt", "val.txt"
FILES = ("deploy.prototxt", "solver.prototxt", "train_val.prototxt", *LISTS)


@pytest.fixture
def folder(tmp_path) -> Path:
    write_images(tmp_path / "photos", 12)
    write_model(tmp_path / "small")
    return tmp_path


def test_ranks_train_as_one_rank_does(folder):
    losses = []
    for count in (1, 2, 4):
        name = f"on{count}"
        output = run_pcaffe(count, [*FLAGS, "--exchange=allreduce", f"--to={name}"], folder)
        assert output.count("3 classes, 30 images for training, 6 for tests") == 1
        assert output.count("fresh: fc_photos") == 1
        losses.append(
            [float(loss) for loss in re.findall(r"Iteration \d+.*, loss = (\S+)", output)]
        )
        written = sorted(os.listdir(folder / name))
        states = [f"{name}_iter_{i}{end}" for i in (10, 12) for end in ENDINGS]
        assert written == sorted([*states, *FILES])
    one, two, four = losses
    assert len(one) == 13  # the last one after the last update
    assert two == pytest.approx(one, rel=1e-3)
    assert four == pytest.approx(one, rel=1e-3)


def test_wrong_input_ends_all_ranks(folder):
    (folder / "photos" / "empty").mkdir()
    finished = run_kept(2, ["pcaffe", *FLAGS, "--to=new"], folder)
    assert finished.status != 0
    assert "'photos/empty' has no image" in finished.output
    assert not (folder / "new").exists()
