"""Images, Datums, preprocessing, Classifier, Detector and drawing."""

import csv
import runpy
import shutil
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

import pycaffe_dist as caffe
from pycaffe_dist import draw
from pycaffe_dist.errors import WRONG_INPUT, ArgumentError, DataError, UsageError
from pycaffe_dist.proto import caffe_pb2
from pycaffe_dist.schema import text

ROOT = Path(__file__).parent.parent.parent
DEPLOY = """
name: 'deploy'
layer { name: 'data' type: 'Input' top: 'data'
  input_param { shape { dim: 2 dim: 3 dim: 6 dim: 6 } } }
layer { name: 'pool' type: 'Pooling' bottom: 'data' top: 'pool'
  pooling_param { pool: AVE global_pooling: true } }
layer { name: 'prob' type: 'InnerProduct' bottom: 'pool' top: 'prob'
  inner_product_param { num_output: 3 bias_term: false } }
"""


@pytest.fixture
def deploy(tmp_path):
    """Return the files of a net whose output is each channel's mean."""
    net, weights = tmp_path / "deploy.prototxt", tmp_path / "deploy.caffemodel"
    net.write_text(DEPLOY)
    made = caffe.Net(net, caffe.TEST)
    made.params["prob"][0].data[...] = np.eye(3)
    made.save(weights)
    return net, weights


def test_blobprotos():
    array = np.arange(6.0).reshape(1, 2, 3)
    blob = caffe.io.array_to_blobproto(array, diff=array + 1)
    np.testing.assert_array_equal(caffe.io.blobproto_to_array(blob), array)
    np.testing.assert_array_equal(caffe.io.blobproto_to_array(blob, return_diff=True), array + 1)
    old = caffe_pb2.BlobProto(num=1, channels=1, height=2, width=3, data=range(6))
    assert caffe.io.blobproto_to_array(old).shape == (1, 1, 2, 3)
    assert caffe.io.blobproto_to_array(caffe_pb2.BlobProto(data=[123])) == 123
    with pytest.raises(ValueError, match="cannot hold 2 values"):
        caffe.io.blobproto_to_array(caffe_pb2.BlobProto(data=[1, 2]))
    packed = caffe.io.arraylist_to_blobprotovector_str([array, array[0]])
    for found, wanted in zip(caffe.io.blobprotovector_str_to_arraylist(packed), (array, array[0])):
        np.testing.assert_array_equal(found, wanted)


def test_datums():
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    datum = caffe.io.array_to_datum(pixels, label=np.int64(7))
    assert (datum.data, datum.label) == (pixels.tobytes(), 7)
    again = caffe.io.datum_to_array(datum)
    again += 1
    np.testing.assert_array_equal(again, pixels + 1)
    floats = caffe.io.array_to_datum(pixels / 2)
    assert not floats.HasField("label")
    np.testing.assert_array_equal(caffe.io.datum_to_array(floats), pixels / 2)
    with pytest.raises(ValueError, match="Incorrect array shape"):
        caffe.io.array_to_datum(pixels[0])
    with pytest.raises(ArgumentError, match="encoded"):
        caffe.io.datum_to_array(caffe_pb2.Datum(data=b"jpeg", encoded=True))


def test_images(tmp_path):
    rng = np.random.default_rng(0)
    rgba = rng.integers(0, 256, (5, 4, 4), np.uint8)
    cv2.imwrite(str(tmp_path / "a.png"), rgba[:, :, [2, 1, 0, 3]])
    rgb = rgba[:, :, :3] / np.float32(255)
    found = caffe.io.load_image(tmp_path / "a.png")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, rgb, rtol=1e-6)
    gray = caffe.io.load_image(str(tmp_path / "a.png"), color=False)
    np.testing.assert_allclose(gray[:, :, 0], rgb @ [0.2125, 0.7154, 0.0721], rtol=1e-5)
    deep = rng.integers(0, 2**16, (5, 4), np.uint16)
    cv2.imwrite(str(tmp_path / "b.png"), deep)
    found = caffe.io.load_image(tmp_path / "b.png")
    np.testing.assert_allclose(found, np.stack([deep / 65535.0] * 3, -1), rtol=1e-6)
    assert caffe.io.load_image(tmp_path / "b.png", color=False).shape == (5, 4, 1)
    (tmp_path / "c.png").write_bytes(b"no image")
    for name in ("c.png", "missing.png"):
        with pytest.raises(DataError, match=name):
            caffe.io.load_image(tmp_path / name)


def test_resizing_areas():
    """With three channels, as scikit-image's resize with order 1 and mode constant."""
    image = np.stack([np.array([[0.0, 4.0], [8.0, 12.0]])] * 3, -1)
    found = caffe.io.resize_image(image, (4, 2))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[:, :, 0], [[0, 3], [2, 6], [6, 10], [6, 9]])
    np.testing.assert_array_equal(caffe.io.resize_image(image, (2, 2)), image)
    nearest = caffe.io.resize_image(image, (4, 4), interp_order=0)
    np.testing.assert_array_equal(nearest, image.repeat(2, 0).repeat(2, 1))
    np.testing.assert_array_equal(
        caffe.io.resize_image(image * 0 + 5, (3, 7)), np.full((3, 7, 3), 5)
    )


def test_resizing_points():
    """With other numbers of channels, as SciPy's zoom."""
    zoom = pytest.importorskip("scipy.ndimage").zoom
    image = np.random.default_rng(0).random((7, 9, 5)).astype(np.float32)
    for order in (0, 1):
        wanted = zoom(image, (10 / 7, 4 / 9, 1), order=order)
        found = caffe.io.resize_image(image, (10, 4), order)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    smooth = np.sin(np.mgrid[:20, :20][0] / 4.0)[:, :, np.newaxis] * np.ones(5)
    cubic = caffe.io.resize_image(smooth, (39, 20), 3)
    np.testing.assert_allclose(cubic[::2], smooth, atol=1e-6)
    np.testing.assert_allclose(
        cubic[9:29:2, 0, 0], np.sin((np.arange(9, 29, 2) / 2) / 4), atol=1e-3
    )
    with pytest.raises(ArgumentError, match="known are 0, 1 and 3"):
        caffe.io.resize_image(image, (3, 3), 2)


def test_oversample():
    image = np.arange(5 * 7).reshape(5, 7, 1).astype(np.float32)
    crops = caffe.io.oversample([image, image + 100], (3, 4))
    assert crops.shape == (20, 3, 4, 1)
    np.testing.assert_array_equal(crops[0], image[:3, :4])
    np.testing.assert_array_equal(crops[3], image[2:, 3:])
    np.testing.assert_array_equal(crops[4], image[1:4, 1:5])
    np.testing.assert_array_equal(crops[9], image[1:4, 1:5][:, ::-1])
    np.testing.assert_array_equal(crops[10:], crops[:10] + 100)
    with pytest.raises(ArgumentError, match="too small"):
        caffe.io.oversample([image], (6, 6))


@pytest.fixture
def transformer():
    transformer = caffe.io.Transformer({"data": (1, 3, 4, 5)})
    transformer.set_transpose("data", (2, 0, 1))
    return transformer


def test_preprocessing_in_order(transformer):
    image = np.random.default_rng(0).random((4, 5, 3)).astype(np.float32)
    given = image.copy()
    transformer.set_channel_swap("data", (2, 1, 0))
    transformer.set_raw_scale("data", 255)
    transformer.set_mean("data", np.array([1.0, 2.0, 3.0]))
    transformer.set_input_scale("data", 0.5)
    ready = transformer.preprocess("data", image)
    wanted = (image[:, :, ::-1].transpose(2, 0, 1) * 255 - np.c_[[1, 2, 3]][:, :, None]) * 0.5
    np.testing.assert_allclose(ready, wanted, rtol=1e-5)
    np.testing.assert_array_equal(image, given)
    np.testing.assert_allclose(transformer.deprocess("data", ready[None]), image, atol=1e-6)
    larger = transformer.preprocess("data", np.ones((8, 9, 3)))
    assert larger.shape == (3, 4, 5)


def test_gray_images_survive_preprocessing_and_deprocessing():
    transformer = caffe.io.Transformer({"data": (1, 1, 4, 5)})
    image = np.random.default_rng(0).random((4, 5, 1))
    transformer.set_transpose("data", (2, 0, 1))
    ready = transformer.preprocess("data", image)
    assert ready.shape == (1, 4, 5)
    for made in (ready, ready[None]):
        np.testing.assert_allclose(transformer.deprocess("data", made), image, rtol=1e-6)


def test_means_with_other_shapes_than_the_input(transformer):
    mean = np.random.default_rng(0).random((3, 9, 9)) * 100
    transformer.set_mean("data", mean)
    assert transformer.mean["data"].shape == (3, 4, 5)
    wanted = caffe.io.resize_image(mean.transpose(1, 2, 0), (4, 5)).transpose(2, 0, 1)
    np.testing.assert_allclose(transformer.mean["data"], wanted, rtol=1e-4)
    transformer.set_mean("data", np.full((8, 8), 3.0))
    np.testing.assert_allclose(transformer.mean["data"], 3)


def test_a_transformer_refuses_bad_settings(transformer):
    for call, message in (
        (
            lambda: transformer.preprocess("dta", np.zeros((4, 5, 3))),
            "dta is not one of the net in",
        ),
        (lambda: transformer.set_transpose("data", (0, 1)), "as many dimensions"),
        (lambda: transformer.set_channel_swap("data", (0, 1)), "each of 3 channels"),
        (lambda: transformer.set_mean("data", np.zeros(4)), "4 channels, which are incompatible"),
        (lambda: transformer.set_mean("data", np.zeros((1, 1, 1, 1))), "invalid shape"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_classifier(deploy):
    classifier = caffe.Classifier(*deploy, image_dims=(8, 10), raw_scale=2, channel_swap=(2, 1, 0))
    images = [np.zeros((8, 10, 3)), np.random.default_rng(0).random((8, 10, 3))]
    centre = classifier.predict(images, oversample=False)
    np.testing.assert_allclose(
        centre[1], 2 * images[1][1:7, 2:8].mean(axis=(0, 1))[::-1], rtol=1e-4
    )
    ten = classifier.predict(images)
    assert ten.shape == (2, 3)
    crops = caffe.io.oversample(images, (6, 6))[10:]
    np.testing.assert_allclose(ten[1], 2 * crops.mean(axis=(0, 1, 2))[::-1], rtol=1e-4)
    assert not ten[0].any()


def test_detector(deploy, tmp_path):
    image = np.random.default_rng(0).integers(0, 256, (30, 40, 3), np.uint8)
    name = str(tmp_path / "image.png")
    cv2.imwrite(name, image[:, :, ::-1])
    windows = [[0, 0, 6, 6], [10, 20, 22, 32], [3, 4, 9, 10]]
    found = caffe.Detector(*deploy).detect_windows([(name, windows)])
    assert [detection["window"] for detection in found] == windows
    for number in (0, 2):
        top, left, bottom, right = windows[number]
        wanted = image[top:bottom, left:right].mean(axis=(0, 1)) / 255
        np.testing.assert_allclose(found[number]["prediction"].ravel(), wanted, rtol=1e-4)
    with pytest.raises(UsageError, match="selective_search"):
        caffe.Detector(*deploy).detect_selective_search([name])


def test_windows_with_context(deploy):
    """The window includes its surroundings; outside of the image it has the mean."""
    detector = caffe.Detector(
        *deploy, mean=np.array([10.0, 20, 30]), raw_scale=10, channel_swap=(2, 1, 0), context_pad=1
    )
    image = np.full((20, 20, 3), 5, np.float32)
    inside = detector.crop(image, [8, 8, 11, 11])
    np.testing.assert_allclose(inside, 5)
    corner = detector.crop(image, [0, 0, 3, 3])
    np.testing.assert_allclose(corner[0], np.tile([3.0, 2, 1], (6, 1)))
    np.testing.assert_allclose(corner[1:, 1:], 5)
    with pytest.raises(ArgumentError, match="outside"):
        detector.crop(image, [50, 50, 60, 60])


def run_tool(name, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    monkeypatch.setattr(sys, "path", [str(ROOT / "tools"), *sys.path])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "tools" / name), run_name="__main__")
    return ended.value.code


def test_classify_and_detect_tools(deploy, tmp_path, monkeypatch, capsys):
    image = np.random.default_rng(0).integers(0, 256, (12, 12, 3), np.uint8)
    cv2.imwrite(str(tmp_path / "image.png"), image[:, :, ::-1])
    net = ["--model_def", deploy[0], "--pretrained_model", deploy[1], "--channel_swap="]
    out = tmp_path / "out.npy"
    status = run_tool(
        "classify.py", monkeypatch, tmp_path, out, *net, "--images_dim=12,12", "--ext=png"
    )
    assert not status
    assert "Classifying 1 inputs." in capsys.readouterr().out
    crops = caffe.io.oversample([image], (6, 6))
    np.testing.assert_allclose(np.load(out)[0], crops.mean(axis=(0, 1, 2)), rtol=1e-4)
    listed, found = tmp_path / "windows.csv", tmp_path / "found.csv"
    listed.write_text(f"filename, xmin, ymin, xmax, ymax\n{tmp_path}/image.png, 2, 1, 8, 7\n")
    flags = [*net, "--crop_mode=list", "--context_pad=0"]
    assert not run_tool("detect.py", monkeypatch, listed, found, *flags)
    row = next(csv.DictReader(found.open()))
    assert [row[edge] for edge in ("ymin", "xmin", "ymax", "xmax")] == ["1", "2", "7", "8"]
    wanted = image[1:7, 2:8].mean(axis=(0, 1))
    np.testing.assert_allclose([float(row[f"class{i}"]) for i in range(3)], wanted, rtol=1e-4)
    assert not run_tool("detect.py", monkeypatch, listed, tmp_path / "found.h5", *flags)
    listed.write_text("no,columns\n")
    listed.write_text("filename,xmin\na,1\n")
    assert run_tool("detect.py", monkeypatch, listed, found, *flags) == 1
    assert "no list of windows" in capsys.readouterr().err


def lenet():
    return text.read_net(str(ROOT / "models" / "lenet" / "lenet_train_test.prototxt"))


def test_labels_and_colors():
    layers = {layer.name: layer for layer in lenet().layer}
    label = draw.get_layer_label(layers["conv1"], "LR", display_lrm=True)
    assert label == (
        r'"conv1\n(Convolution)\nkernel size: 5\nstride: 1\npad: 0\nlr mult: 1.0, 2.0"'
    )
    assert draw.get_layer_label(layers["pool1"], "TB").startswith('"pool1 (Pooling MAX) kernel')
    assert draw.get_edge_label(layers["ip1"]) == "500"
    assert draw.get_edge_label(layers["relu1"]) == '""'
    assert draw.choose_color_by_layertype("Convolution") == "#FF5050"
    assert draw.choose_color_by_layertype("LRN") == "#6495ED"
    with pytest.raises(ValueError, match="Pooling layers do not have"):
        draw.get_layer_lr_mult(layers["pool1"])


def test_graphs():
    dot = draw.get_pydot_graph(lenet(), "TB", phase=caffe.TEST).to_string()
    assert '"accuracy_Accuracy"' in dot
    assert '[label="Batch 100"]' in dot
    assert '[label="Batch 64"]' not in dot
    assert 'fillcolor="#90EE90"' in dot
    assert 'rankdir="TB"' in dot
    assert '"loss_blob" [label="loss"];' in dot
    train = draw.draw_net(lenet(), "LR", "raw", phase=caffe.TRAIN).decode()
    assert "accuracy" not in train


def has_graphviz() -> bool:
    try:
        import pygraphviz  # noqa: F401
    except ImportError:
        return shutil.which("dot") is not None
    return True


@pytest.mark.skipif(not has_graphviz(), reason="neither pygraphviz nor dot is installed")
def test_drawings(tmp_path):
    for ending, start in (("svg", b"<?xml"), ("png", b"\x89PNG")):
        path = tmp_path / f"lenet.{ending}"
        draw.draw_net_to_file(lenet(), str(path), rankdir="TB")
        assert path.read_bytes().startswith(start)
    assert b"conv1" in draw.draw_net(lenet(), "LR", "svg")
    with pytest.raises(UsageError, match="cannot draw 'nothing'"):
        draw.draw_net(lenet(), "LR", "nothing")


def test_drawing_without_graphviz(monkeypatch):
    monkeypatch.setitem(sys.modules, "pygraphviz", None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match=r"pycaffe-dist\[draw\]"):
        draw.draw_net(lenet(), "LR")


def test_draw_net_tool(tmp_path, monkeypatch, capsys):
    net = ROOT / "models" / "lenet" / "lenet_train_test.prototxt"
    path = tmp_path / "net.raw"
    assert not run_tool("draw_net.py", monkeypatch, net, path, "--phase", "TEST", "--rankdir=BT")
    assert 'rankdir="BT"' in path.read_text()
    assert "Drawing net to" in capsys.readouterr().out
    assert run_tool("draw_net.py", monkeypatch, net, tmp_path / "noending") == WRONG_INPUT
