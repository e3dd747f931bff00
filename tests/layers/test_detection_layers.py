"""Errors of the layers that detect, pixels of boxes, and files of detections."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from google.protobuf import text_format
from layer_harness import LayerHarness

from pycaffe_dist.data.partition import Shard
from pycaffe_dist.errors import LayerError, NetError, PrototxtError
from pycaffe_dist.layers.box_scaling import in_pixels
from pycaffe_dist.layers.image_numbers import ImageNumbers
from pycaffe_dist.schema import caffe_pb2

MAP = {"f": np.zeros((1, 2, 3, 4)), "i": np.zeros((1, 3, 30, 40))}
PRIORS = np.array([[0.1, 0.1, 0.3, 0.4, 0.5, 0.5, 0.9, 0.8], [0.1, 0.1, 0.2, 0.2] * 2])[None]


def build(kind, options, bottoms, **rest):
    """Return the layer's harness; the options are the fields of its own message."""
    message = "prior_box" if kind.startswith("PriorBox") else f"detection_{kind[9:].lower()}"
    names = "".join(f' bottom: "{name}"' for name in bottoms)
    return LayerHarness(
        f'type: "{kind}"{names} top: "y" {message}_param {{ {options} }}', bottoms, **rest
    )


@pytest.mark.parametrize(
    ("options", "bottoms", "message"),
    [
        ("", MAP, "needs min_size above 0 at least once, found none"),
        ("min_size: 3 min_size: 0", MAP, r"min_size above 0 at least once, found \[3.0, 0.0\]"),
        ("min_size: nan", MAP, "needs min_size above 0"),
        ("min_size: inf", MAP, "needs min_size above 0"),
        ("min_size: 3 max_size: inf", MAP, "needs max_size above min_size 3, found inf"),
        ("min_size: 3 max_size: 4 max_size: 5", MAP, "max_size as often .* 1 times, found 2 times"),
        ("min_size: 3 max_size: 3", MAP, "needs max_size above min_size 3, found 3"),
        ("min_size: 3 aspect_ratio: -2", MAP, "needs aspect ratios above 0, found -2"),
        ("min_size: 3 variance: 0.1 variance: 0.2", MAP, "variance once or four times, all above"),
        ("min_size: 3 variance: 0", MAP, r"all above 0, found \[0.0\]"),
        ("min_size: 3 img_size: 3 img_h: 3", MAP, "takes img_size, or img_h and img_w, not both"),
        ("min_size: 3 img_h: 3", MAP, "needs img_h and img_w above 0, found 3 and 0"),
        ("min_size: 3 step: 0", MAP, "needs step_h and step_w above 0, found 0 and 0"),
        ("fixed_size: 3", MAP, r"density as often, found fixed_size \[3.0\] and density \[\]"),
        ("fixed_size: 3 density: 1.5", MAP, "whole numbers of at least 1 as density, found 1.5"),
        ("fixed_size: 3 density: 1 min_size: 3", MAP, "takes fixed_size or min_size, not both"),
        ("min_size: 3", {"f": MAP["f"]}, "needs the image as its second bottom"),
        ("min_size: 3", {"f": np.zeros((2, 3)), "i": MAP["i"]}, r"4 axes, found bottom 'f' \(2, 3"),
    ],
)
def test_prior_boxes_that_cannot_be_made(options, bottoms, message):
    with pytest.raises(LayerError, match=message):
        build("PriorBox", options, bottoms)


@pytest.mark.parametrize("options", ["", "width: 3", "width: [3, 4] height: [2, 0]"])
def test_clusters_of_prior_boxes_that_cannot_be_made(options):
    with pytest.raises(LayerError, match="needs width and height above 0, each as often"):
        build("PriorBoxClustered", options, MAP)


def corners(harness):
    """The boxes (rows, columns, boxes per position, 4) that a layer makes, in pixels."""
    (_, _, rows, columns), (_, _, height, width) = (blob.shape for blob in harness.bottom)
    boxes = harness.forward()[0][0, 0].reshape(rows, columns, -1, 4)
    return boxes * [width, height, width, height]


def test_clusters_of_prior_boxes():
    harness = build("PriorBoxClustered", "width: [3, 5] height: [2, 4] step: 8 offset: 0.25", MAP)
    found = corners(harness)
    for (h, w, k), _ in np.ndenumerate(found[..., 0]):
        x, y, half = (w + 0.25) * 8, (h + 0.25) * 8, ((1.5, 1), (2.5, 2))[k]
        expected = x - half[0], y - half[1], x + half[0], y + half[1]
        np.testing.assert_allclose(found[h, w, k], expected, atol=1e-12)


def test_denser_prior_boxes_alternate_with_lower_ones():
    usual, denser = (
        corners(build("PriorBox", f"min_size: 5 aspect_ratio: 2 step: 8 {option}", MAP))
        for option in ("", "denser_prior_boxes: true")
    )
    np.testing.assert_allclose(denser[:, :, ::2], usual)
    np.testing.assert_allclose(denser[:, :, 1::2], usual + np.array([0, 4, 0, 4]))


def test_dense_prior_boxes_of_fixed_size():
    options = "fixed_size: [9.5, 4] density: [3, 1] aspect_ratio: 4 flip: false step: 8"
    harness = build("PriorBox", options, MAP)
    found = corners(harness)
    height, width = harness.bottom[1].shape[2:]
    for (h, w), _ in np.ndenumerate(found[..., 0, 0]):
        expected = []
        for size, density in ((9.5, 3), (4, 1)):
            apart = int(size / density)
            for half in ((int(size) / 2,) * 2, (size, size / 4)):
                for down, right in np.ndindex(density, density):
                    x = (w + 0.5) * 8 - int(size) // 2 + apart / 2 + right * apart
                    y = (h + 0.5) * 8 - int(size) // 2 + apart / 2 + down * apart
                    low, high = (x - half[0], y - half[1]), (x + half[0], y + half[1])
                    expected.append([*np.maximum(low, 0), *np.minimum(high, (width, height))])
        np.testing.assert_allclose(found[h, w], expected, atol=1e-9)


def test_prior_boxes_are_made_anew_after_a_layer_worked_in_place_on_them():
    harness = build("PriorBox", "min_size: 5", MAP)
    (expected,) = harness.forward()
    harness.top[0].data.fill(-7)
    np.testing.assert_array_equal(harness.forward()[0], expected)


def output(options, loc=(1, 8), conf=(1, 6), prior=PRIORS, stage=(), **rest):
    bottoms = {"loc": np.zeros(loc), "conf": np.zeros(conf), "prior": prior, **dict(stage)}
    return build("DetectionOutput", f"num_classes: 3 {options}", bottoms, **rest)


@pytest.mark.parametrize(
    ("options", "shapes", "message"),
    [
        ("nms_param { nms_threshold: -1 }", {}, "nms_threshold of at least 0, found -1"),
        ("nms_param { eta: 0 }", {}, "eta above 0 and at most 1, found 0"),
        ("nms_param { eta: 1.5 }", {}, "found 1.5"),
        ("", {"loc": (2, 8)}, r"'loc' \(2, 8\) and 'conf' \(1, 6\) need the same first"),
        ("", {"loc": (1, 12)}, r"4 numbers for each of 2 priors, 8 values per image, found bottom"),
        ("share_location: false", {}, r"each of 2 priors and class, 24 values .* 'loc' \(1, 8\)"),
        ("", {"conf": (1, 8)}, r"3 classes for each of 2 priors, 6 values .* 'conf' \(1, 8\)"),
        ("", {"prior": np.zeros((1, 2, 9))}, r"\(1, 2, 4·P\), found bottom 'prior' \(1, 2, 9\)"),
    ],
)
def test_detections_that_cannot_be_chosen(options, shapes, message):
    with pytest.raises(LayerError, match=message):
        output(options, **shapes)


@pytest.mark.parametrize(
    ("options", "shapes", "message"),
    [
        (
            "objectness_score: 0.1",
            [(1, 8)],
            r"2 probabilities for each of 2 priors, 4 .* 's0' \(1, 8",
        ),
        ("objectness_score: 0.1", [(2, 4)], "'loc' .* and 's0' .* need the same first dimension"),
        ("", [(1, 4), (1, 6)], r"4 numbers for each of 2 priors, 8 values .* 's1' \(1, 6\)"),
    ],
)
def test_first_stages_of_another_shape(options, shapes, message):
    stage = {f"s{k}": np.zeros(shape) for k, shape in enumerate(shapes)}
    with pytest.raises(LayerError, match=message):
        output(options, stage=stage)


def test_detections_of_each_class_need_no_first_stage():
    stage = {"chances": np.zeros((1, 4)), "moves": np.zeros((1, 8))}
    with pytest.raises(LayerError, match="needs share_location: true with the offsets"):
        output("share_location: false", loc=(1, 24), stage=stage)


def test_a_first_stage_moves_priors_and_leaves_out_what_is_nothing():
    moves = np.array([[0.5, -0.25, 0, 0, 0.25, 0.5, 0.25, 0.25]])
    stage = {"chances": np.array([[0.75, 0.25, 0.76, 0.24]]), "moves": moves}
    options = "confidence_threshold: 0.2 objectness_score: 0.25"
    harness = output(options, stage=stage)
    conf, loc = np.array([[0, 0.5, 0.3, 0, 0.9, 0.4]]), np.full((1, 8), 0.5)
    (rows,) = harness.forward({"conf": conf, "loc": loc})
    # Of CORNER offsets twice the variance is added; the second prior holds nothing.
    box = PRIORS[0, 0, :4] + PRIORS[0, 1, :4] * (moves[0, :4] + 0.5)
    np.testing.assert_allclose(rows[0, 0], [[0, 1, 0.5, *box], [0, 2, 0.3, *box]], rtol=1e-6)
    with pytest.raises(LayerError, match="confidence or box of image 0, class 1, prior 0 is not a"):
        harness.forward({"chances": np.ones((1, 4)), "moves": moves * np.nan})


def test_detections_need_a_number_of_classes():
    with pytest.raises(LayerError, match="needs num_classes of at least 1"):
        build("DetectionOutput", "", {name: np.zeros((1, 8)) for name in "abc"})
    with pytest.raises(LayerError, match="needs num_classes of at least 1"):
        build("DetectionEvaluate", "", {name: np.zeros((1, 8)) for name in "ab"})


def test_confidences_that_are_not_numbers_are_named():
    harness = output("")
    conf = np.zeros((1, 6))
    conf[0, 4] = np.nan
    message = r"image 0, class 1, prior 1 is not a number \(bottoms 'loc' \(1, 8\) and 'conf'"
    with pytest.raises(LayerError, match=message):
        harness.forward({"conf": conf})


def test_priors_without_a_size_are_named():
    flat = PRIORS.copy()
    flat[0, 0, 6] = 0.5
    with pytest.raises(LayerError, match=r"wider and higher than 0 .* 0.8\] at 1"):
        output("code_type: CENTER_SIZE", prior=flat).forward()
    output("code_type: CORNER", prior=flat).forward()


DET, GT = np.zeros((1, 1, 2, 7)), np.zeros((1, 1, 3, 8))
DET[..., 1] = GT[..., 1] = 1


def evaluate(options="", det=DET, gt=GT, **rest):
    return build("DetectionEvaluate", f"num_classes: 3 {options}", {"det": det, "gt": gt}, **rest)


@pytest.mark.parametrize(
    ("options", "bottoms", "message"),
    [
        ("overlap_threshold: 0", {}, "overlap_threshold above 0, found 0"),
        ("", {"det": np.zeros((1, 1, 2, 8))}, r"\(1, 1, rows, 7\), found 'det' \(1, 1, 2, 8\)"),
        ("", {"gt": np.zeros((1, 2, 2, 8))}, r"\(1, 1, rows, 8\), found 'gt' \(1, 2, 2, 8\)"),
        ("resize_param { height: 3 }", {}, "height and width above 0, found 3 and 0"),
    ],
)
def test_detections_that_cannot_be_rated(options, bottoms, message):
    with pytest.raises(LayerError, match=message):
        evaluate(options, **bottoms)


@pytest.mark.parametrize(
    ("name", "column", "value", "message"),
    [
        ("det", 1, 0, r"for each detection, found the background 0 in bottom 'det' \(1, 1, 2, 7"),
        ("gt", 1, 3, r"from 0 to 2, not the background, for each box, found 3 in bottom 'gt'"),
        ("gt", 1, np.nan, "for each box, found nan"),
        ("gt", 5, np.nan, "a box of bottom 'gt' .* is not a number: 0, 1, 0, 0, 0, nan"),
        ("det", 2, np.nan, "a detection of bottom 'det' .* is not a number: 0, 1, nan"),
    ],
)
def test_rows_that_are_no_boxes_are_named(name, column, value, message):
    wrong = {"det": DET, "gt": GT}[name].copy()
    wrong[0, 0, 1, column] = value
    with pytest.raises(LayerError, match=message):
        evaluate().forward({name: wrong})


@pytest.mark.parametrize("line", ["a 3", "a 3 4 5", "a 0 3", "a -3 3", "a 3.5 3"])
def test_lines_that_are_no_sizes_are_named(tmp_path, line):
    path = tmp_path / "sizes.txt"
    path.write_text(f"a 3 4\n\n{line}\n")
    with pytest.raises(LayerError, match=r"sizes\.txt:3: expected a name, a height"):
        evaluate(f"name_size_file: '{path}'").forward()


def test_detections_in_pixels_of_inputs(tmp_path):
    """zhaoweicai/cascade-rcnn's layer: other columns, boxes include both ends."""
    (tmp_path / "sizes.txt").write_text("a 200 400\n")
    det = np.array([[0, *[-1.0] * 6], [0, 10, 10, 19, 19, 1, 0.9], [0, 50, 50, 59, 59, 2, 0.8]])
    boxes = np.array([[0, 10, 10, 19, 17.5, 1, 0, 0], [0, 55, 55, 69, 69, 2, 0, 1]])
    values = {"det": det.reshape(3, 7, 1, 1), "gt": boxes.reshape(2, 8, 1, 1)}
    values["size"] = np.array([[100.0, 200.0]])
    options = f"num_classes: 3 name_size_file: '{tmp_path}/sizes.txt' evaluate_difficult_gt: false"
    harness = build("DetectionEvaluate", options, values)
    (top,) = harness.forward()
    np.testing.assert_allclose(
        top[0, 0],
        [[-1, 1, 1, -1, -1], [-1, 2, 0, -1, -1], [0, 1, 0.9, 1, 0], [0, 2, 0.8, 0, 1]],
    )
    # Twice as large, both boxes reach 19 and 16 pixels: 19 · 16 / 19² is more than 0.8.
    harness = build("DetectionEvaluate", f"{options} overlap_threshold: 0.85", values)
    assert harness.forward()[0][0, 0, 2, 3:].tolist() == [0, 1]
    with pytest.raises(LayerError, match="needs a name_size_file, since its third bottom"):
        build("DetectionEvaluate", "num_classes: 3", values)


def resize(text):
    return text_format.Parse(text, caffe_pb2.ResizeParameter())


SIZES = np.array([[100, 200], [200, 100]])  # wide, high
BOXES = np.array([[0.25, 0.3, 0.75, 1.2], [0.3, 0.5, 0.5, 0.75]])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("", [[50, 30, 150, 100], [30, 100, 50, 150]]),
        ("WARP", [[50, 30, 150, 100], [30, 100, 50, 150]]),
        ("FIT_SMALL_SIZE", [[50, 30, 150, 100], [30, 100, 50, 150]]),
        # The wide image fills the middle half of the input's height, the high one of its width.
        ("FIT_LARGE_SIZE_AND_PAD", [[50, 10, 150, 100], [10, 100, 50, 150]]),
    ],
)
def test_boxes_become_pixels(mode, expected):
    param = resize(f"height: 300 width: 300 resize_mode: {mode}") if mode else None
    np.testing.assert_allclose(in_pixels(BOXES, SIZES, param), expected)


def test_boxes_relative_to_a_scale_become_pixels():
    param = resize("resize_mode: FIT_SMALL_SIZE height_scale: 80 width_scale: 400")
    expected = [[100, 24, 200, 96], [100, 40, 100, 60]]
    np.testing.assert_allclose(in_pixels(BOXES, SIZES, param), expected)


def test_boxes_in_the_padding_alone_stay_where_they_are():
    param = resize("height: 300 width: 300 resize_mode: FIT_LARGE_SIZE_AND_PAD")
    found = in_pixels(np.array([[0.1, 0.0, 0.3, 0.2]]), SIZES[:1], param)
    np.testing.assert_allclose(found, [[20, 0, 60, 20]])


def test_overlaps_in_pixels_count_the_last_pixel(tmp_path):
    """Boxes of 1 x 1 and 2 x 1 pixels at the same place: from 0 to 0 and from 0 to 1."""
    path = tmp_path / "sizes.txt"
    path.write_text("a 1000 1000\nb 10 10\n")
    det, gt = DET[:, :, :1].copy(), GT[:, :, :1].copy()
    det[0, 0, 0, 2:] = 0.5, 0, 0, 0, 0
    gt[0, 0, 0, 3:7] = 0, 0, 0.001, 0
    right = [
        evaluate(f"{options} overlap_threshold: 0.45", det, gt).forward()[0][0, 0, -1, 3]
        for options in ("", f"name_size_file: '{path}'")
    ]
    assert right == [0, 1]


def test_the_next_batch_has_the_next_sizes(tmp_path):
    """The first image is 1000 pixels wide, the second 10; then the file begins again."""
    path = tmp_path / "sizes.txt"
    path.write_text("a 1000 1000\nb 10 10\n")
    det, gt = DET[:, :, :1].copy(), GT[:, :, :1].copy()
    det[0, 0, 0, 2:] = 0.5, 0, 0, 0.5, 0.1
    gt[0, 0, 0, 3:7] = 0, 0, 0.5, 0.2
    # 101 of 201 rows overlap in the large image, 2 of 3 in the small one.
    harness = evaluate(f"name_size_file: '{path}' overlap_threshold: 0.6", det, gt)
    assert [harness.forward()[0][0, 0, -1, 3] for _ in range(4)] == [0, 1, 0, 1]


LABELS = """
item { name: 'none' label: 0 display_name: 'x' } item { name: 'cat' label: 1 }
item { name: '17' label: 2 }
"""


def saving(folder, form, batch=2, fields="", sizes="img1 100 200\n0007 100 200\nimg3 100 200\n"):
    (folder / "labels.txt").write_text(LABELS)
    (folder / "sizes.txt").write_text(sizes)
    save = (
        f"output_directory: '{folder}/new/out' output_name_prefix: 'det_' output_format: '{form}' "
        f"label_map_file: '{folder}/labels.txt' name_size_file: '{folder}/sizes.txt' {fields}"
    )
    return output(
        f"save_output_param {{ {save} }} confidence_threshold: 0.5",
        loc=(batch, 8),
        conf=(batch, 6),
        phase="TEST",
    )


def scores(*images):
    """Confidences of images with (class 1 of the first prior, class 2 of the second)."""
    return np.array([[0, one, 0, 0, 0, two] for one, two in images], float)


def files(folder):
    return {path.name: path.read_text() for path in sorted((folder / "new/out").iterdir())}


BATCHES = [((0.9, 0), (0.123456789e-1 + 0.6, 0.75)), ((0, 0.8), (0.7, 0.7))]


def test_files_for_pascal_voc(tmp_path):
    harness = saving(tmp_path, "VOC")
    harness.forward({"conf": scores(*BATCHES[0])})
    assert files(tmp_path) == {}
    harness.forward({"conf": scores(*BATCHES[1])})
    first, second = "20 10 60 40", "100 50 180 80"
    assert files(tmp_path) == {
        "det_cat.txt": f"img1 0.9 {first}\n0007 0.612346 {first}\n",
        "det_17.txt": f"0007 0.75 {second}\nimg3 0.8 {second}\n",
    }
    # The fourth image is the first one again, and the fifth the second.
    harness.forward({"conf": scores((0, 0), (0, 0))})
    lines = files(tmp_path)
    assert lines == {
        "det_cat.txt": f"img1 0.7 {first}\n",
        "det_17.txt": f"img1 0.7 {second}\n",
    }


def test_files_for_ilsvrc(tmp_path):
    harness = saving(tmp_path, "ILSVRC")
    for batch in BATCHES:
        harness.forward({"conf": scores(*batch)})
    assert files(tmp_path)["det_.txt"].splitlines() == [
        "img1 1 0.9 20 10 60 40",
        "0007 1 0.612346 20 10 60 40",
        "0007 2 0.75 100 50 180 80",
        "img3 2 0.8 100 50 180 80",
    ]


def test_files_for_coco(tmp_path):
    harness = saving(tmp_path, "COCO", fields="num_test_image: 2")
    harness.forward({"conf": scores(*BATCHES[0])})
    found = json.loads(files(tmp_path)["det_.json"])
    assert [row["image_id"] for row in found] == ["img1", 7, 7]
    assert [row["category_id"] for row in found] == ["cat", "cat", 17]
    assert found[2]["bbox"] == [100, 50, 80, 30]
    assert [row["score"] for row in found] == pytest.approx([0.9, 0.6123456789, 0.75], rel=1e-6)


def test_boxes_in_files_are_rounded_to_two_decimals_then_cut(tmp_path):
    harness = saving(tmp_path, "COCO", batch=1, sizes="a 333 777\n")
    harness.forward({"conf": scores((0.9, 0))})
    (row,) = json.loads(files(tmp_path)["det_.json"])
    assert row["bbox"] == [77.7, 33.3, 155.4, 99.9]
    harness = saving(tmp_path, "ILSVRC", batch=1, sizes="a 333 777\n")
    harness.forward({"conf": scores((0.9, 0))})
    assert files(tmp_path)["det_.txt"] == "a 1 0.9 77 33 232 132\n"


def test_several_ranks_write_the_file_of_one(tmp_path):
    lone = saving(tmp_path, "ILSVRC")
    for batch in BATCHES:
        lone.forward({"conf": scores(*batch)})
    expected = files(tmp_path)
    ranks = []
    for rank, batch in enumerate(BATCHES):
        harness = saving(tmp_path, "ILSVRC")
        harness.layer.context = replace(harness.layer.context, shard=Shard(rank, 2, "batch"))
        harness.layer.setup(harness.bottom, harness.top)
        harness.forward({"conf": scores(*batch)})
        ranks.append(harness.layer.files)
    (tmp_path / "new/out/det_.txt").unlink()
    ranks[0].take([files.give() for files in ranks])
    assert files(tmp_path) == expected


@pytest.mark.parametrize(
    ("form", "fields", "message"),
    [
        ("VOC", "num_test_image: 4", "num_test_image 4 is more than the 3 images of name_size"),
        ("VOC", "resize_param { width: 3 }", "height and width above 0, found 0 and 3"),
    ],
)
def test_files_that_cannot_be_written(tmp_path, form, fields, message):
    with pytest.raises(LayerError, match=message):
        saving(tmp_path, form, fields=fields).layer.open_files()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ("item { name: 'a' label: 1 }", "labels.txt' has no item for label 2"),
        (LABELS + "item { name: 'b' label: 1 }", "labels.txt: 'b' and 'cat' have the same label 1"),
    ],
)
def test_label_maps_that_do_not_fit(tmp_path, monkeypatch, labels, message):
    monkeypatch.setitem(globals(), "LABELS", labels)
    with pytest.raises(NetError, match=message):
        saving(tmp_path, "VOC").layer.open_files()


def test_nets_are_built_without_the_files_that_forward_reads(tmp_path):
    harness = saving(tmp_path, "VOC")
    (tmp_path / "labels.txt").unlink()
    for use in (harness.layer.open_files, harness.forward):
        with pytest.raises(PrototxtError, match=r"labels\.txt: no such file"):
            use()
    harness = evaluate("name_size_file: 'none'")
    for use in (harness.layer.open_files, harness.forward):
        with pytest.raises(LayerError, match="name_size_file 'none' cannot be read: No such file"):
            use()


@pytest.mark.parametrize("missing", ["label_map_file", "name_size_file"])
def test_without_names_a_warning_says_that_no_files_are_written(tmp_path, caplog, missing):
    present = ({"label_map_file", "name_size_file"} - {missing}).pop()
    save = f"output_directory: '{tmp_path}/new' output_format: 'VOC' {present}: 'x'"
    output(f"save_output_param {{ {save} }}").forward()
    assert f"it needs a {missing}" in caplog.text
    assert not (tmp_path / "new").exists()


def test_another_format_is_a_warning_that_no_files_are_written(tmp_path, caplog):
    saving(tmp_path, "mbox_loc").forward()
    assert "output_format 'mbox_loc' is none of VOC, COCO, ILSVRC" in caplog.text
    assert not (tmp_path / "new").exists()


def test_images_are_counted_on_after_a_restart():
    whole = [ImageNumbers(Shard(rank, 2, "batch")) for rank in range(2)]
    first = [numbers.next_batch(3).tolist() for numbers in whole]
    assert first == [[0, 1, 2], [3, 4, 5]]
    states = [numbers.state() for numbers in whole]
    again = ImageNumbers(Shard(1, 2, "batch"))
    again.restore(states)
    assert again.next_batch(3).tolist() == whole[1].next_batch(3).tolist() == [9, 10, 11]
    alone = ImageNumbers(Shard())
    alone.restore(states)
    assert alone.next_batch(3).tolist() == [6, 7, 8]
