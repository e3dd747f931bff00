"""Fine-tuning on a folder of images, and classifying with the result, from the command line."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from small_model import CLASSES, TRANSFORM, write_images, write_model

from pycaffe_dist import log
from pycaffe_dist.cli import main as cli
from pycaffe_dist.data.image_list import read_list
from pycaffe_dist.errors import FAILURE, WRONG_INPUT
from pycaffe_dist.net import Net
from pycaffe_dist.net.rules import with_state
from pycaffe_dist.schema import caffe_pb2, text
from pycaffe_dist.zoo.models import Model
from pycaffe_dist.zoo.new_classes import classifiers, renew
from pycaffe_dist.zoo.preparation import prepare

MODELS = Path(__file__).parents[2] / "models"
COUNT = 12


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """Return the current folder, with images and a small model."""
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "photos", COUNT)
    write_model(tmp_path / "models" / "small")
    return tmp_path


def finetune(*flags: str) -> int:
    return cli.main(["finetune", "--data=photos", "--model=small", *flags])


def test_the_new_folder_has_all_that_training_needs(here, capsys):
    assert finetune("--write_only", "--split=0.25", "--epochs=3", "--base_lr=0.02") == 0
    folder = Path("finetune_photos")
    out = capsys.readouterr().out
    assert out == (
        "pcaffe train --solver=finetune_photos/solver.prototxt "
        "--weights=models/small/small.caffemodel\n"
    )
    train, val = read_list(str(folder / "train.txt")), read_list(str(folder / "val.txt"))
    assert (len(train), len(val)) == (27, 9)
    assert sorted(val.labels) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert len({*train.paths, *val.paths}) == 36
    for images in (train, val):
        assert all(path.startswith(CLASSES[k]) for path, k in zip(images.paths, images.labels))
    assert (folder / "labels.txt").read_text().split() == list(CLASSES)
    solver = text.read_solver(folder / "solver.prototxt")
    assert (solver.max_iter, solver.test_interval, list(solver.test_iter)) == (6, 2, [2])
    assert solver.base_lr == np.float32(0.02)
    net = text.read_net(folder / "train_val.prototxt")
    data = net.layer[0]
    assert (data.type, data.image_data_param.batch_size) == ("ImageData", 16)
    assert (data.image_data_param.new_height, data.transform_param.crop_size) == (16, 14)
    assert net.layer[1].image_data_param.batch_size == 5
    deploy = text.read_net(folder / "deploy.prototxt")
    for one in (net, deploy):
        (last,) = [layer for layer in one.layer if layer.type == "InnerProduct"]
        assert (last.name, last.top[0]) == ("fc_photos", "fc_photos")
        assert last.inner_product_param.num_output == 3
        assert [param.lr_mult for param in last.param] == [10, 10]
    assert [layer.name for layer in net.layer if layer.type == "Accuracy"] == ["acc"]


def test_training_starts_and_the_result_classifies(here, capsys):
    assert finetune("--epochs=8", "--base_lr=0.01") == 0
    shown = capsys.readouterr().err
    assert "small.caffemodel: 1 layer(s) loaded: conv1" in shown
    assert "small.caffemodel: 1 layer(s) not in the file: fresh: fc_photos" in shown
    assert "small.caffemodel: 1 layer(s) not in the net: unused: fc" in shown
    accuracy = float(re.findall(r"acc = (\S+)", shown)[-1])
    assert accuracy > 0.8
    assert len(list(Path("finetune_photos").glob("*.solverstate"))) == 2
    val = read_list("finetune_photos/val.txt")
    paths = [f"photos/{path}" for path in val.paths]
    args = ["classify", *paths, "--model=finetune_photos", "--json"]
    for crops in ("1", "10"):
        assert cli.main([*args, f"--crops={crops}"]) == 0
        rows = json.loads(capsys.readouterr().out)["images"]
        assert [row["image"] for row in rows] == paths
        best = [row["classes"][0] for row in rows]
        assert all(CLASSES[one["index"]] == one["label"] for one in best)
        right = np.mean([one["index"] == label for one, label in zip(best, val.labels)])
        assert right > 0.8
        if crops == "1":  # is what the tests of training do
            assert right == pytest.approx(accuracy, abs=1e-4)
        assert cli.main([*args, f"--crops={crops}", "--precision=bfloat16"]) == 0
        rounded = json.loads(capsys.readouterr().out)["images"]
        assert [row["classes"][0]["index"] for row in rounded] == [one["index"] for one in best]
    assert cli.main(["classify", "photos/dots", "--model=finetune_photos", "--top=1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * COUNT and lines[0] == "photos/dots/image 0.png"
    assert re.fullmatch(r"  [01]\.\d{4} +\d  (bars|dots|stripes)", lines[1])


def test_inputs_equal_those_of_the_tests_of_training(here, capsys):
    """The centre crop of an image, its mean and scale, bit by bit."""
    assert finetune("--write_only") == 0
    folder = Path("finetune_photos")
    net = text.read_net(folder / "train_val.prototxt")
    with log.silent():
        test_net = Net(with_state(net, caffe_pb2.TEST, 0, ()), seed=0)
    test_net.forward()
    expected = test_net.blobs["data"].data
    test_net.close()
    prepared = prepare(Model(folder))
    paths = read_list(str(folder / "val.txt")).paths[: len(expected)]
    found = np.concatenate([prepared.crops(f"photos/{path}", ten=False) for path in paths])
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    ten = prepared.crops(f"photos/{paths[0]}", ten=True)
    np.testing.assert_array_equal(ten[4], found[0])
    np.testing.assert_array_equal(ten[5:], ten[:5, :, :, ::-1])


def test_folders_that_divide_the_images_themselves(here):
    for name in CLASSES:
        for number, path in enumerate(sorted((here / "photos" / name).iterdir())):
            part = here / "divided" / ("val" if number < 2 else "train") / name
            part.mkdir(parents=True, exist_ok=True)
            shutil.move(path, part)
    assert cli.main(["finetune", "--data=divided", "--model=small", "--write_only"]) == 0
    val = read_list("finetune_divided/val.txt")
    assert len(val) == 6 and all(path.startswith("val/") for path in val.paths)
    assert Path("finetune_divided/labels.txt").read_text().split() == list(CLASSES)


@pytest.mark.parametrize(
    ("flags", "status", "words"),
    [
        (["--data="], WRONG_INPUT, "need a folder of images to fine-tune on"),
        (["--data=none"], FAILURE, "cannot read the folder of images 'none': No such file"),
        (["--data=photos/dots"], FAILURE, "has no subfolder: expected one for each class, found"),
        (["--data=models"], FAILURE, "'models/small' has no image: expected files that end in"),
        (["--model=smal"], WRONG_INPUT, "no model or folder 'smal'; did you mean 'small'?"),
        (["--model=photos"], WRONG_INPUT, "the folder 'photos' has no prototxt"),
        (["--model=vgg16"], WRONG_INPUT, "`pcaffe models fetch vgg16` gets the published ones"),
        (["--weights=none"], WRONG_INPUT, "--weights: there is no file 'none'"),
        (["--split=1"], WRONG_INPUT, "--split needs a part between 0 and 1, not 1"),
        (["--epochs=0"], WRONG_INPUT, "--epochs needs 1 or more, not 0"),
        (["--base_lr=0"], WRONG_INPUT, "--base_lr needs more than 0"),
        (["--to=photos"], WRONG_INPUT, "'photos' exists already"),
        (
            ["--model=char_lstm", "--weights=models/small/small.caffemodel"],
            WRONG_INPUT,
            "char_lstm.prototxt has no input for images: expected an Input layer with 4 dims",
        ),
        (
            ["--model=mnist_autoencoder", "--weights=models/small/small.caffemodel"],
            WRONG_INPUT,
            "cannot be fine-tuned: it has no train_val.prototxt",
        ),
        (
            ["--model=mnist_siamese", "--weights=models/small/small.caffemodel"],
            WRONG_INPUT,
            "has no classifier: expected InnerProduct or Convolution layers before a Softmax",
        ),
    ],
)
def test_wrong_input_ends_in_one_line_and_writes_nothing(here, capsys, flags, status, words):
    before = sorted(here.rglob("*"))
    assert finetune(*flags) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert sorted(here.rglob("*")) == before


def test_a_class_and_an_image_alone_are_refused(here, capsys):
    shutil.rmtree("photos/dots")
    shutil.rmtree("photos/bars")
    assert finetune() == FAILURE
    assert "one subfolder: expected two classes" in capsys.readouterr().err
    for name in ("a", "b"):
        Path("few", name).mkdir(parents=True)
        shutil.copy("photos/stripes/image 0.png", f"few/{name}")
    assert finetune("--data=few") == FAILURE
    assert "one image of each class: expected two" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "last"),
    [
        ("bvlc_reference_caffenet", ["fc8"]),
        ("bvlc_googlenet", ["loss1/classifier", "loss2/classifier", "loss3/classifier"]),
        ("vgg16", ["fc8"]),
        ("resnet50", ["fc1000"]),
        ("squeezenet_v1.1", ["conv10"]),
        ("mobilenet_v1", ["fc7"]),
        ("nin_imagenet", ["cccp8-1024"]),
        ("cifar10_quick", ["ip2"]),
    ],
)
def test_classifiers_of_published_models(model, last):
    """They are found and renamed, and the other layers keep their bottoms."""
    file = Model(MODELS / model).train_net
    net = text.read_net(file)
    assert classifiers(net, str(file)) == last
    renew(net, last, "_new", 4)
    tops = {top for layer in net.layer for top in layer.top}
    assert {bottom for layer in net.layer for bottom in layer.bottom} <= tops
    assert {f"{name}_new" for name in last} <= {layer.name for layer in net.layer}
    assert not {*last} & {layer.name for layer in net.layer}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["photos"], "need a model to classify with"),
        (["none.png", "--model=small"], "there is no image or folder 'none.png'"),
        (["models", "--model=small"], "the folder 'models' has no images"),
        (["photos", "--model=small", "--top=0"], "--top needs 1 or more"),
        (["photos", "--model=small", "--crops=2"], "--crops is one of auto, 1, 10, not '2'"),
        (["photos", "--model=small", "--mean=a"], "--mean needs a file, or values separated by"),
        (["photos", "--model=small", "--mean=1,2"], "the mean has 2 channel(s), the net's input 3"),
        (["photos", "--model=lenet"], "there are no weights in"),
        (["photos", "--model=small", "--labels=short"], "short has 1 names, the net 10 classes"),
    ],
)
def test_bad_use_of_classify(here, capsys, args, words):
    Path("short").write_text("one\n")
    assert cli.main(["classify", *args]) == WRONG_INPUT
    captured = capsys.readouterr()
    assert words in captured.err.splitlines()[-1] and captured.out == ""


def test_an_unreadable_image_is_named(here, capsys):
    Path("bad.png").write_bytes(b"no image")
    assert cli.main(["classify", "bad.png", "--model=small"]) == FAILURE
    assert "image 'bad.png' cannot be decoded" in capsys.readouterr().err


def test_gray_images_for_a_net_of_one_channel(here):
    write_model(here / "gray", channels=1, transform="scale: 0.01")
    args = ["--model=gray", "--to=new", "--write_only"]
    assert finetune(*args) == 0
    data = text.read_net("new/train_val.prototxt").layer[0].image_data_param
    assert (data.is_color, data.new_height, data.new_width) == (False, 14, 14)


def test_a_missing_mean_of_imagenet_becomes_its_values(here):
    mean = TRANSFORM.partition("mean_value")[0] + "mean_file: 'data/imagenet_mean.binaryproto'"
    write_model(here / "one", transform=mean)
    assert finetune("--model=one", "--to=new", "--write_only") == 0
    param = text.read_net("new/train_val.prototxt").layer[0].transform_param
    assert list(param.mean_value) == [104, 117, 123] and not param.mean_file
    write_model(here / "other", transform=mean.replace("imagenet_mean", "mean"))
    assert finetune("--model=other", "--to=newer", "--write_only") == WRONG_INPUT
    assert not Path("newer").exists()
