"""detect: the boxes of a small SSD, and windows that a small net classifies."""

from __future__ import annotations

import json
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
from small_model import write_images, write_model

import pycaffe_dist as caffe
from pycaffe_dist.cli import main as cli
from pycaffe_dist.errors import WRONG_INPUT

SIDE, HEIGHT, WIDTH, CLASSES = 24, 48, 36, 3
SSD = """
layer { name: 'data' type: 'Input' top: 'data'
  input_param { shape { dim: 1 dim: 3 dim: 24 dim: 24 } } }
layer { name: 'map' type: 'Convolution' bottom: 'data' top: 'map'
  convolution_param { num_output: 6 kernel_size: 4 stride: 8 weight_filler { type: 'xavier' } } }
layer { name: 'loc' type: 'Convolution' bottom: 'map' top: 'loc'
  convolution_param { num_output: 8 kernel_size: 1 weight_filler { type: 'xavier' } } }
layer { name: 'loc_p' type: 'Permute' bottom: 'loc' top: 'loc_p'
  permute_param { order: 0 order: 2 order: 3 order: 1 } }
layer { name: 'loc_f' type: 'Flatten' bottom: 'loc_p' top: 'loc_f' }
layer { name: 'conf' type: 'Convolution' bottom: 'map' top: 'conf'
  convolution_param { num_output: 6 kernel_size: 1 weight_filler { type: 'xavier' } } }
layer { name: 'conf_p' type: 'Permute' bottom: 'conf' top: 'conf_p'
  permute_param { order: 0 order: 2 order: 3 order: 1 } }
layer { name: 'conf_r' type: 'Reshape' bottom: 'conf_p' top: 'conf_r'
  reshape_param { shape { dim: 0 dim: -1 dim: 3 } } }
layer { name: 'soft' type: 'Softmax' bottom: 'conf_r' top: 'soft' softmax_param { axis: 2 } }
layer { name: 'soft_f' type: 'Flatten' bottom: 'soft' top: 'soft_f' }
layer { name: 'priors' type: 'PriorBox' bottom: 'map' bottom: 'data' top: 'priors'
  prior_box_param { min_size: 8 max_size: 14 } }
layer { name: 'out' type: 'DetectionOutput' bottom: 'loc_f' bottom: 'soft_f' bottom: 'priors'
  top: 'out'
  detection_output_param { num_classes: 3 code_type: CENTER_SIZE keep_top_k: 9
    confidence_threshold: 0.1 nms_param { nms_threshold: 0.45 top_k: 20 } } }
"""
MAP = "item { name: 'none' label: 0 } item { name: 'cat' label: 1 } item { name: 'dog' label: 2 }"


@pytest.fixture
def ssd(tmp_path, monkeypatch) -> Path:
    """Return a folder with a small SSD of random weights, and two images."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "ssd"
    folder.mkdir()
    (folder / "deploy.prototxt").write_text(SSD)
    caffe.set_random_seed(5)
    caffe.Net("ssd/deploy.prototxt", caffe.TEST).save("ssd/ssd.caffemodel")
    (folder / "map.prototxt").write_text(MAP)
    (tmp_path / "images").mkdir()
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        image = rng.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
        cv2.imwrite(f"images/{name}.png", image)
    return tmp_path


def expected(path: str) -> np.ndarray:
    """Return the rows that the net finds: class, score and edges in pixels, the best first."""
    net = caffe.Net("ssd/deploy.prototxt", caffe.TEST, weights="ssd/ssd.caffemodel")
    image = cv2.resize(cv2.imread(path), (SIDE, SIDE)).astype(np.float32).transpose(2, 0, 1)
    net.blobs["data"].data[0] = (image - np.float32([[[90]], [[100]], [[110]]])) * np.float32(0.01)
    rows = net.forward()["out"][0, 0]
    edges = rows[:, 3:].clip(0, 1) * [WIDTH, HEIGHT, WIDTH, HEIGHT]
    rows = np.column_stack([rows[:, 1:3], edges])
    return rows[np.argsort(-rows[:, 1], kind="stable")]


FLAGS = "--model=ssd", "--mean=90,100,110", "--scale=0.01"


def test_boxes_are_those_of_the_net(ssd, capsys):
    args = ["detect", "images", *FLAGS, "--label_map=ssd/map.prototxt"]
    assert cli.main([*args, "--threshold=0", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["images"]
    assert [row["image"] for row in rows] == ["images/a.png", "images/b.png"]
    for row in rows:
        found = [
            [box[key] for key in ("index", "score", "xmin", "ymin", "xmax", "ymax")]
            for box in row["boxes"]
        ]
        wanted = expected(row["image"])
        assert len(found) > 2
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)
        assert all(box["label"] == ("", "cat", "dog")[box["index"]] for box in row["boxes"])
    least = wanted[1, 1]
    assert cli.main([*args[:1], "images/b.png", *args[2:], f"--threshold={least - 1e-5}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "images/b.png"
    assert len(lines) == 1 + (wanted[:, 1] >= least - 1e-5).sum()
    assert re.fullmatch(r"  0\.\d{4} +[12]  \d+ \d+ \d+ \d+  (cat|dog)", lines[1])


def test_windows_are_classified_as_by_pycaffe(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "photos", 1)
    weights = write_model(tmp_path / "small")
    (tmp_path / "small/labels.txt").write_text("".join(f"class {i}\n" for i in range(10)))
    images = [f"photos/{name}/image 0.png" for name in ("bars", "dots")]
    windows = [
        (images[0], (2, 3, 15, 12)),
        (images[0], (0, 0, 19, 19)),
        (images[1], (5, 1, 18, 16)),
    ]
    lines = [",".join(map(str, (*window, path))) for path, window in windows]
    Path("w.csv").write_text("\n".join(["ymin,xmin,ymax,xmax,filename", *lines]))
    args = ["detect", "--windows=w.csv", "--model=small", "--context_pad=2", "--json"]
    assert cli.main([*args, "--threshold=0"]) == 0
    rows = json.loads(capsys.readouterr().out)["images"]
    detector = caffe.Detector(
        "small/deploy.prototxt",
        str(weights),
        mean=np.array([90, 100, 110]),
        input_scale=0.02,
        raw_scale=255,
        channel_swap=(2, 1, 0),
        context_pad=2,
    )
    wanted = detector.detect_windows([(path, [window]) for path, window in windows])
    found = [(row["image"], box) for row in rows for box in row["boxes"]]
    assert [image for image, _ in found] == [path for path, _ in windows]
    for (_, box), one in zip(found, wanted):
        assert [box[edge] for edge in ("ymin", "xmin", "ymax", "xmax")] == list(one["window"])
        assert box["index"] == one["prediction"].argmax()
        assert box["label"] == f"class {box['index']}"
        assert box["score"] == pytest.approx(one["prediction"].max(), rel=1e-5)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["images"], "need a model to detect with"),
        (["--model=ssd"], "give images, or a list of windows"),
        (["images", "--windows=w.csv", "--model=ssd"], "give images, or a list of windows"),
        (["none.png", *FLAGS], "there is no image or folder 'none.png'"),
        (["--windows=w.csv", *FLAGS], "'w.csv' is no list of windows"),
        (["images", "--model=small"], "has no DetectionOutput: a net that classifies windows"),
    ],
)
def test_bad_use_of_detect(ssd, capsys, args, words):
    write_model(ssd / "small")
    assert cli.main(["detect", *args]) == WRONG_INPUT
    captured = capsys.readouterr()
    assert words in captured.err.splitlines()[-1] and captured.out == ""
