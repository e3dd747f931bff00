"""Layers of images and masks: against PSPNet's batches, crops, ranks and bad lists."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from layer_runs import GOLDEN, Run, check_golden, golden_cases, layer

from pycaffe_dist.data.partition import Shard
from pycaffe_dist.errors import DataError, LayerError
from pycaffe_dist.schema import caffe_pb2

TRAIN, TEST = caffe_pb2.TRAIN, caffe_pb2.TEST


@pytest.mark.parametrize("case", golden_cases("imageseg"))
def test_batches_equal_the_forks(case, monkeypatch):
    monkeypatch.chdir(GOLDEN)
    check_golden(case)


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """7 images, whose masks have their blue values halved."""
    folder = tmp_path_factory.mktemp("images")
    lines = []
    for i in range(7):
        rng = np.random.default_rng(i)
        pixels = rng.integers(0, 256, (30, 24, 3), np.uint8)
        cv2.imwrite(str(folder / f"{i}.png"), pixels)
        cv2.imwrite(str(folder / f"{i}_mask.png"), pixels[:, :, 0] // 2)
        lines.append(f"{i}.png {i}_mask.png\n")
    (folder / "list").write_text("".join(lines))
    return folder


def _segments(folder: Path, batch: int, transform: str = "", more: str = "", source="list"):
    return layer(
        f'name: "d" type: "ImageSegData" top: "data" top: "label" top: "dim" transform_param {{ '
        f'{transform} }} image_data_param {{ source: "{folder}/{source}" root_folder: "{folder}/" '
        f"batch_size: {batch} label_type: PIXEL {more} }}"
    )


def _dense(folder: Path, batch: int, more: str = "", transform: str = ""):
    return layer(
        f'name: "d" type: "DenseImageData" top: "data" top: "label" '
        f"transform_param {{ {transform} }} "
        f'dense_image_data_param {{ source: "{folder}/list" root_folder: "{folder}/" '
        f"batch_size: {batch} {more} }}"
    )


@pytest.mark.parametrize("phase", [TRAIN, TEST])
@pytest.mark.parametrize("type", ["seg", "dense"])
def test_images_and_masks_are_cropped_and_mirrored_alike(type, phase, images):
    if type == "seg":
        param = _segments(images, 7, "crop_size: 16 mirror: true")
    else:
        param = _dense(images, 7, "crop_height: 16 crop_width: 16 mirror: true")
    run = Run(param, phase=phase)
    batches = [run.batch() for _ in range(4)]
    for data, mask, *_ in batches:
        assert data.shape == (7, 3, 16, 16) and mask.shape == (7, 1, 16, 16)
        assert np.array_equal(mask[:, 0], data[:, 0] // 2)
    assert not np.array_equal(batches[0][0], batches[1][0])


def test_a_padded_image_is_zero_where_its_mask_is_ignored(images):
    transform = "crop_h: 40 crop_w: 30 mean_value: 100.5 mean_value: 2 mean_value: 3 scale: 0.25"
    data, mask, sizes = Run(_segments(images, 7, transform, "ignore_label: 200")).batch()
    assert (mask[:, 0, 30:] == 200).all() and (mask[:, 0, :, 24:] == 200).all()
    assert not data[:, :, 30:].any() and not data[:, :, :, 24:].any()
    assert np.array_equal(sizes, np.tile([30, 24], 7).reshape(7, 1, 1, 2))


def test_random_scales_keep_labels(images):
    transform = "crop_size: 10 scale_factors: 1 scale_factors: 2 scale_factors: 0.5"
    run = Run(_segments(images, 7, transform))
    known = [set(np.unique(cv2.imread(str(images / f"{i}_mask.png"), 0))) for i in range(7)]
    for _ in range(5):
        for label, labels in zip(run.batch()[1], known):
            assert set(np.unique(label)) <= labels


def test_dense_masks_are_resized_to_the_nearest_label(images):
    data, mask = Run(
        _dense(images, 7, "new_height: 45 new_width: 17", "mean_value: 9 scale: 2")
    ).batch()
    for i in range(7):
        image = cv2.imread(str(images / f"{i}.png"))
        labels = cv2.imread(str(images / f"{i}_mask.png"), cv2.IMREAD_GRAYSCALE)
        resized = cv2.resize(image, (17, 45)).astype(np.float32)
        assert np.array_equal(data[i], (resized.transpose(2, 0, 1) - 9) * 2)
        nearest = cv2.resize(labels, (17, 45), interpolation=cv2.INTER_NEAREST)
        assert np.array_equal(mask[i, 0], nearest)


def test_dense_masks_may_be_smaller(images):
    more = "new_height: 32 new_width: 24 label_divide_factor: 8 mirror: true"
    data, mask = Run(_dense(images, 7, more)).batch()
    assert data.shape == (7, 3, 32, 24) and mask.shape == (7, 1, 4, 3)
    for i in range(7):
        image = cv2.imread(str(images / f"{i}.png"))
        mirrored = not np.array_equal(data[i], cv2.resize(image, (24, 32)).transpose(2, 0, 1))
        labels = cv2.imread(str(images / f"{i}_mask.png"), cv2.IMREAD_GRAYSCALE)
        expected = cv2.resize(labels, (3, 4), interpolation=cv2.INTER_NEAREST)
        assert np.array_equal(mask[i, 0], expected[:, ::-1] if mirrored else expected)


def test_ranks_see_together_what_one_rank_sees(images):
    wanted = "crop_size: 16 mirror: true scale_factors: 1 scale_factors: 1.5"
    one = Run(_segments(images, 6, wanted, "shuffle: true"))
    two = [
        Run(_segments(images, 3, wanted, "shuffle: true"), shard=Shard(rank, 2)) for rank in (0, 1)
    ]
    for _ in range(5):
        whole = one.batch()
        for rank, run in enumerate(two):
            assert all(np.array_equal(a, b[rank::2]) for a, b in zip(run.batch(), whole))


def test_bad_lists_and_images_are_named(images, tmp_path):
    def run(line: str, more: str = ""):
        (tmp_path / "list").write_text(f"{images}/0.png {images}/0_mask.png\n{line}\n")
        param = _segments(tmp_path, 2, "", more)
        param.image_data_param.root_folder = ""
        return Run(param).batch()

    with pytest.raises(DataError, match=r"list:2: expected the path of an image and of its mask"):
        run("only.png")
    with pytest.raises(DataError, match=r"list:2: cannot read image 'no.png'"):
        run("no.png no.png")
    cv2.imwrite(str(tmp_path / "small.png"), np.zeros((3, 4), np.uint8))
    with pytest.raises(
        DataError, match=r"list:2: mask .*should have size \(30, 24\) .*found \(3, 4\)"
    ):
        run(f"{images}/1.png {tmp_path}/small.png")
    with pytest.raises(DataError, match=r"list:1: expected a label from 0 to 255, found"):
        run(f"{images}/1.png 256", "label_type: IMAGE")


@pytest.mark.parametrize(
    ("param", "message"),
    [
        (_segments(Path("x"), 0), "batch_size of at least 1"),
        (_segments(Path("x"), 1, more="new_height: 3"), "both new_height and new_width"),
        (_segments(Path("x"), 1, more="new_dim: 3"), "takes no new_dim"),
        (_segments(Path("x"), 1), "cannot read the list 'x/list'"),
        (_dense(Path("x"), 1, "crop_width: 3"), "a crop's height and width"),
        (_dense(Path("x"), 1, "label_divide_factor: 2"), "needs new_height and new_width"),
        (_dense(Path("x"), 1, transform="mirror: true"), "in dense_image_data_param"),
        (_segments(Path("x"), 1, "mean_file: 'm'"), "needs mean_value instead of mean_file"),
        (_segments(Path("x"), 1, "scale_factors: 0"), "scale_factors must be above 0"),
        (_segments(Path("x"), 1, more="ignore_label: 300"), "ignore_label must be from 0 to 255"),
        (_segments(Path("x"), 1, "resize_param { height: 3 width: 3 }"), "remove resize_param"),
    ],
)
def test_impossible_parameters_are_refused(param, message, images):
    if "cannot read" not in message:
        kind = "image_data_param" if param.type == "ImageSegData" else "dense_image_data_param"
        getattr(param, kind).source = f"{images}/list"
        getattr(param, kind).root_folder = f"{images}/"
    with pytest.raises((DataError, LayerError), match=message):
        Run(param)


def _windows(folder: Path, lines: str, more: str = "", transform: str = "", kind="WindowSegData"):
    (folder / "windows").write_text(lines)
    param = _segments(folder, lines.count("\n"), transform, more, "windows")
    param.type = kind
    return param


def test_windows_are_cut_out_and_resized(images):
    lines = "0.png 0_mask.png 3 5 12 20\n1.png 1_mask.png -4 -2 30 33\n"
    data, mask, sizes = Run(_windows(images, lines, "new_height: 32 new_width: 20")).batch()
    assert sizes.reshape(2, 2).tolist() == [[30, 20], [30, 20]]  # at most the top's
    for i, (x1, y1, x2, y2) in enumerate(((3, 5, 12, 20), (-4, -2, 30, 33))):
        pixels = cv2.copyMakeBorder(cv2.imread(str(images / f"{i}.png")), 9, 9, 9, 9, 0)
        labels = cv2.imread(str(images / f"{i}_mask.png"), cv2.IMREAD_GRAYSCALE)
        labels = cv2.copyMakeBorder(labels, 9, 9, 9, 9, cv2.BORDER_CONSTANT, value=255)
        place = slice(y1 + 9, y2 + 10), slice(x1 + 9, x2 + 10)
        expected = cv2.resize(pixels[place], (20, 32))
        np.testing.assert_array_equal(data[i], expected.transpose(2, 0, 1))
        nearest = cv2.resize(labels[place], (20, 32), interpolation=cv2.INTER_NEAREST)
        np.testing.assert_array_equal(mask[i, 0], nearest)


def test_windows_are_cropped_and_mirrored_like_their_masks(images):
    lines = "".join(f"{i}.png {i}_mask.png 1 2 20 25\n" for i in range(7))
    data, mask, _ = Run(_windows(images, lines, "", "crop_size: 16 mirror: true")).batch()
    assert data.shape == (7, 3, 16, 16) and np.array_equal(mask[:, 0], data[:, 0] // 2)


@pytest.mark.parametrize("window", ["5 5 4 9", "1 2 x 4", "-9 -9 -1 5"])
def test_wrong_windows_are_named(images, window):
    with pytest.raises(
        DataError, match=f"windows:1: expected a window's x1 y1 x2 y2, found {window}"
    ):
        Run(_windows(images, f"0.png 0_mask.png {window}\n"))


def test_lists_without_windows_are_named(images):
    with pytest.raises(DataError, match=r"windows:1: expected .* and the window's x1 y1 x2 y2"):
        Run(_windows(images, "0.png 0_mask.png 3 4 5\n"))
    with pytest.raises(LayerError, match="takes no scale_factors"):
        Run(_windows(images, "0.png 0_mask.png 3 4 5 6\n", "", "scale_factors: 2"))


def test_maps_of_edges_are_binary(images):
    param = _segments(images, 7, "crop_size: 16 mirror: true scale: 0.5")
    param.type = "ImageLabelmapData"
    del param.top[2]
    for i in range(7):
        grey = cv2.imread(str(images / f"{i}.png"))[:, :, 0]
        cv2.imwrite(str(images / f"{i}_edges.png"), grey)
    (images / "edges").write_text("".join(f"{i}.png {i}_edges.png\n" for i in range(7)))
    param.image_data_param.source = str(images / "edges")
    data, edges = Run(param).batch()
    assert edges.shape == (7, 1, 16, 16) and set(np.unique(edges)) == {0, 1}
    np.testing.assert_array_equal(edges[:, 0], data[:, 0] * 2 >= 128)
