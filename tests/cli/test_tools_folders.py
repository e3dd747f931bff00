"""convert_imageset on folders of classes, and how roots and paths are joined."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import cv2
import numpy as np
import pytest
from tool_runs import fails, records_of, run

from pycaffe_dist.cli import convert_annoset, convert_imageset
from pycaffe_dist.schema import caffe_pb2

COUNTS = {"cat": 8, "dog": 4, "fox": 1}


@pytest.fixture
def photos(tmp_path, monkeypatch) -> Path:
    """Return a folder of images whose first pixel is the label."""
    monkeypatch.chdir(tmp_path)
    for label, (name, count) in enumerate(COUNTS.items()):
        for number in range(count):
            path = tmp_path / "photos" / name / f"deep {number % 2}" / f"{number}.PNG"
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(path), np.full((3, 4, 3), label, np.uint8))
    (tmp_path / "photos/.hidden").mkdir()
    (tmp_path / "photos/cat/notes.txt").write_text("no image")
    return tmp_path / "photos"


def labels_of(database: str) -> Counter:
    """Return how often each label occurs, after comparing it with the image's."""
    datums = [caffe_pb2.Datum.FromString(value) for _, value in records_of(Path(database))]
    assert all(datum.label == datum.data[0] for datum in datums)
    return Counter(datum.label for datum in datums)


@pytest.mark.parametrize("slash", ["", "/"])
def test_subfolders_are_the_classes(photos, capsys, slash):
    assert run(convert_imageset, f"photos{slash}", "db") == 0
    assert labels_of("db") == {0: 8, 1: 4, 2: 1}
    assert Path("labels.txt").read_text() == "cat\ndog\nfox\n"
    keys = [key for key, _ in records_of(Path("db"))]
    assert any(key.endswith(b"_cat/deep 1/3.PNG") for key in keys)
    names = [key[9:12] for key in keys]
    assert names != sorted(names)
    assert run(convert_imageset, "photos", "again", "--seed=0") == 0
    assert records_of(Path("again")) == records_of(Path("db"))


def test_a_split_has_a_part_of_every_class(photos):
    assert run(convert_imageset, "photos", "db", "--split=0.25", "--seed=3") == 0
    assert sorted(os.listdir()) == ["db_train", "db_val", "labels.txt", "photos"]
    assert labels_of("db_train") == {0: 6, 1: 3, 2: 1}
    assert labels_of("db_val") == {0: 2, 1: 1}
    keys = [key[9:] for part in ("db_train", "db_val") for key, _ in records_of(Path(part))]
    assert len(set(keys)) == 13


def test_images_that_are_divided_already(photos, capsys):
    (photos / "fox" / "deep 0" / "1.png").write_bytes((photos / "fox/deep 0/0.PNG").read_bytes())
    for name in COUNTS:
        for part, files in (("train", ("0",)), ("test", ("1",))):
            folder = Path("divided", part, name)
            folder.mkdir(parents=True)
            for file in photos.glob(f"{name}/*/{files[0]}.*"):
                os.replace(file, folder / file.name)
    assert run(convert_imageset, "divided", "db", "--split=0.5") == 0
    assert labels_of("db_train") == labels_of("db_val") == {0: 1, 1: 1, 2: 1}
    os.replace("divided/test/dog", "divided/test/cow")
    words = ("class 'cow' is in 'test' only",)
    fails(capsys, convert_imageset, "divided", "db2", "--split=0.5", words=words)


def test_bad_folders(photos, capsys, tmp_path):
    Path("empty/class").mkdir(parents=True)
    Path("labels.txt").write_text("others\n")
    for args, words in [
        (("photos", "db"), ("labels.txt exists already, with other classes",)),
        (("none", "db"), ("cannot read the folder of images 'none/'",)),
        (("empty", "db"), ("'empty/class' has no image", "remove the folder")),
        (("photos/fox/deep 0", "db"), ("has no subfolder", "found 1 file(s)")),
        (("photos", "db", "--split=1"), ("--split needs a part from 0 to 1, not 1",)),
        (("photos", "list", "db", "--split=0.5"), ("give no list",)),
        (("photos", "no/db"), ("there is no folder '",)),
    ]:
        fails(capsys, convert_imageset, *args, words=words)
    Path("labels.txt").unlink()
    Path("db_val").mkdir()
    fails(capsys, convert_imageset, "photos", "db", "--split=0.5", words=("'db_val' exists",))
    assert sorted(os.listdir()) == ["db_val", "empty", "photos"]


def test_a_root_needs_no_slash(photos, capsys):
    Path("list").write_text("deep 0/0.PNG 0\nnone.png 0\n")
    assert run(convert_imageset, "photos/cat", "list", "db") == 0
    assert labels_of("db") == {0: 1}
    # As in Caffe, a root may end within a name.
    Path("rest").write_text("t/deep 0/0.PNG 0\n")
    assert run(convert_imageset, "photos/ca", "rest", "db2") == 0


@pytest.mark.parametrize("tool", [convert_imageset, convert_annoset])
def test_when_no_file_is_there_the_joined_path_is_shown(photos, capsys, tool):
    Path("list").write_text("none.png 0\nno.png 1\n")
    words = ("none of the list's 2 image(s) is there", "'photos/'", "make 'photos/none.png'")
    fails(capsys, tool, "photos", "list", "db", words=words)
    words = ("'phot' and the first path, 'none.png', make 'photnone.png'",)
    fails(capsys, tool, "phot", "list", "db", words=words)
    assert not Path("db").exists()
