"""transform_param's changes of whole images: each change, under Data and ImageData, and alone."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from layer_runs import Run, layer

from pycaffe_dist.data.image_changes import ImageChanges
from pycaffe_dist.data.options import ReadingOptions, set_options
from pycaffe_dist.data.writers import create_database
from pycaffe_dist.errors import DataError
from pycaffe_dist.schema import caffe_pb2

IMAGE = cv2.GaussianBlur(
    np.random.default_rng(0).integers(0, 256, (60, 50, 3), np.uint8), (5, 5), 1.2
)
PLANES = IMAGE.transpose(2, 0, 1)


@pytest.fixture(autouse=True)
def _options():
    yield
    set_options(ReadingOptions())


def _changes(transform: str) -> ImageChanges:
    param = layer(f'name: "d" transform_param {{ {transform} }}').transform_param
    return ImageChanges(param, 5, np.array(param.mean_value), None, True)


def _changed(transform: str, image: np.ndarray = PLANES, index: int = 0) -> np.ndarray:
    return _changes(transform).image(image, index)


def _hwc(transform: str) -> np.ndarray:
    return _changed(transform).transpose(1, 2, 0)


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Path:
    """A database and a list of the same 6 images; in the database every other one is raw."""
    folder = tmp_path_factory.mktemp("sources")
    lines = []
    with create_database(str(folder / "db"), "lmdb") as writer:
        for i in range(6):
            pixels = np.roll(IMAGE, i, axis=0)[: 50 + i]
            name = f"{i}.png"
            cv2.imwrite(str(folder / name), pixels)
            lines.append(f"{name} {i}\n")
            datum = caffe_pb2.Datum(label=i, encoded=bool(i % 2))
            datum.channels, datum.height, datum.width = 3, *pixels.shape[:2]
            datum.data = (
                cv2.imencode(".png", pixels)[1] if i % 2 else pixels.transpose(2, 0, 1)
            ).tobytes()
            writer.put(name.encode(), datum.SerializeToString())
    (folder / "list").write_text("".join(lines))
    return folder


TRANSFORM = """
resize_param { height: 24 width: 32 interp_mode: AREA interp_mode: CUBIC }
noise_param { erode: true }
distort_param { brightness_prob: 1 brightness_delta: 30 contrast_upper: 1 saturation_upper: 1 }
expand_param { max_expand_ratio: 2 prob: 0.5 } mirror: true crop_h: 20 crop_w: 30 mean_value: 100
"""


def _layer(type: str, folder: Path, transform: str = TRANSFORM, more: str = ""):
    own = {
        "Data": f'data_param {{ source: "{folder}/db" batch_size: 6 backend: LMDB {more} }}',
        "ImageData": f'image_data_param {{ source: "{folder}/list" batch_size: 6 '
        f'root_folder: "{folder}/" {more} }}',
    }
    return layer(
        f'name: "d" type: "{type}" top: "data" top: "label" transform_param {{ {transform} }} '
        f"{own[type]}"
    )


def test_databases_and_lists_change_images_alike(sources):
    expected = None
    for type in ("Data", "ImageData"):
        for options in (ReadingOptions(), ReadingOptions(cache="images", decoders=3, readers=2)):
            set_options(options)
            run = Run(_layer(type, sources))
            run.layer.key = 7
            run.layer.set_state(run.layer.state())
            batches = [run.batch() for _ in range(3)]
            run.layer.close()
            expected = expected or batches
            for one, other in zip(batches, expected):
                assert all(map(np.array_equal, one, other))
    assert expected[0][0].shape == (6, 3, 20, 30)
    assert expected[0][1].tolist() == list(range(6))
    assert not np.array_equal(expected[0][0], expected[1][0])


def test_a_record_that_cannot_be_changed_is_named(sources):
    with pytest.raises(DataError, match=r"'d'.*record 0.*needs 1 pad_value or one for each of 3"):
        pads = "resize_mode: FIT_LARGE_SIZE_AND_PAD pad_value: 1 pad_value: 2"
        Run(_layer("Data", sources, f"resize_param {{ height: 9 width: 9 {pads} }}"))
    with pytest.raises(DataError, match=r"'d'.*image '.*0.png': .*not be used|0.png': .*color"):
        gray = "is_color: false"
        Run(_layer("ImageData", sources, "noise_param { convert_to_hsv: true }", gray))


def test_brightness_and_contrast_are_linear_and_clipped():
    options = "brightness_prob: 1 brightness_delta: 200 contrast_upper: 1 saturation_upper: 1"
    changes, shifts = _changes(f"distort_param {{ {options} }}"), []
    for index in range(20):
        found = changes.image(PLANES, index).astype(int)
        inner = (found > 0) & (found < 255)
        (shift,) = np.unique((found - PLANES)[inner])
        assert np.array_equal(found, np.clip(PLANES + shift, 0, 255))
        shifts.append(shift)
    assert min(shifts) < -60 and max(shifts) > 60
    double = "contrast_prob: 1 contrast_lower: 2 contrast_upper: 2 saturation_upper: 1"
    assert np.array_equal(
        _hwc(f"distort_param {{ {double} }}"), np.minimum(IMAGE.astype(int) * 2, 255)
    )


def test_hue_and_saturation_change_alone():
    before = cv2.cvtColor(IMAGE, cv2.COLOR_BGR2HSV).astype(int)
    colorful = (before[:, :, 1] > 60) & (before[:, :, 2] > 60)
    gray = _hwc("distort_param { saturation_prob: 1 contrast_upper: 1 }")
    assert np.ptp(gray, axis=2).max() == 0
    hue = _hwc("distort_param { hue_prob: 1 hue_delta: 18 contrast_upper: 1 saturation_upper: 1 }")
    after = cv2.cvtColor(hue, cv2.COLOR_BGR2HSV).astype(int)
    assert np.abs(after - before)[colorful][:, 2].max() <= 1
    turns = (after - before)[:, :, 0][colorful & (before[:, :, 0] > 20) & (before[:, :, 0] < 160)]
    assert (
        np.percentile(turns, 90) - np.percentile(turns, 10) <= 4 and 1 < abs(np.median(turns)) < 19
    )


def test_probabilities_hold():
    changes = _changes(
        "distort_param { brightness_prob: 0.3 brightness_delta: 9 random_order_prob: "
        "0.5 contrast_upper: 1 saturation_upper: 1 }"
    )
    images = [changes.image(PLANES, i) for i in range(300)]
    # A sixth of all orders of three channels is the usual one.
    means = np.array([image.mean(axis=(1, 2)) for image in images])
    sums, usual = means.sum(axis=1), PLANES.mean(axis=(1, 2)).sum()
    assert 0.2 < np.mean(np.abs(sums - usual) > 0.5) < 0.4
    order = np.argsort(means, axis=1)
    assert 0.3 < np.mean((order != np.argsort(PLANES.mean(axis=(1, 2)))).any(axis=1)) < 0.55
    again = [changes.image(PLANES, i) for i in range(300)]
    assert all(map(np.array_equal, images, again))


def test_noise():
    levels = np.unique(_hwc("noise_param { posterize: true }"))
    assert set(levels) <= {32, 96, 160, 224}
    assert np.array_equal(_hwc("noise_param { inverse: true }"), 255 - IMAGE)
    assert np.ptp(_hwc("noise_param { decolorize: true }"), axis=2).max() == 0
    assert _hwc("noise_param { gauss_blur: true }").std() < IMAGE.std()
    assert (_hwc("noise_param { erode: true }") <= IMAGE).all()
    assert np.array_equal(
        _hwc("noise_param { convert_to_hsv: true }"), cv2.cvtColor(IMAGE, cv2.COLOR_BGR2HSV)
    )
    for kind in ("hist_eq", "clahe"):
        assert _hwc(f"noise_param {{ {kind}: true }}").std() > IMAGE.std()
    jpeg = _hwc("noise_param { jpeg: 30 }")
    assert 1 < np.abs(jpeg.astype(int) - IMAGE).mean() < 30
    salt = "saltpepper: true saltpepper_param { fraction: 0.2 value: 255 value: 0 value: 7 }"
    salted = (_hwc(f"noise_param {{ {salt} }}") == [255, 0, 7]).all(axis=2)
    assert 0.14 < salted.mean() < 0.2  # places are drawn with repetition


@pytest.mark.parametrize(
    "kind", ["gauss_blur", "hist_eq", "clahe", "posterize", "erode", "inverse"]
)
def test_noise_of_gray_images(kind):
    gray = _changed(f"noise_param {{ {kind}: true jpeg: 90 }}", PLANES[:1])
    assert gray.shape == (1, 60, 50) and not np.array_equal(gray, PLANES[:1])


def test_expansion_fills_with_the_mean():
    changes = _changes(
        "expand_param { max_expand_ratio: 3 } mean_value: 10.6 mean_value: 20 mean_value: 30"
    )
    areas = []
    for index in range(80):
        image = changes.image(PLANES, index)
        height, width = image.shape[1:]
        areas.append(np.sqrt(height * width / 3000))
        filled = (image == np.array([11, 20, 30])[:, None, None]).all(axis=0)
        rows, columns = np.flatnonzero(~filled.all(axis=1)), np.flatnonzero(~filled.all(axis=0))
        top, left = min(rows[0], height - 60), min(columns[0], width - 50)
        assert np.array_equal(image[:, top : top + 60, left : left + 50], PLANES)
        assert filled.sum() >= height * width - 3000
    assert 1 <= min(areas) < 1.3 and 2.7 < max(areas) <= 3


@pytest.mark.parametrize("mode", ["WARP", "FIT_SMALL_SIZE", "FIT_LARGE_SIZE_AND_PAD"])
@pytest.mark.parametrize("interpolation", ["LINEAR", "AREA", "NEAREST", "CUBIC", "LANCZOS4"])
@pytest.mark.parametrize("pad", ["CONSTANT", "MIRRORED", "REPEAT_NEAREST"])
def test_sizes_of_resized_images(mode, interpolation, pad):
    wanted = f"resize_mode: {mode} interp_mode: {interpolation} pad_mode: {pad} pad_value: 3"
    for planes in (PLANES, PLANES[:1], PLANES.astype(np.float32)):
        found = _changed(f"resize_param {{ height: 30 width: 30 {wanted} }}", planes)
        shape = (36, 30) if mode == "FIT_SMALL_SIZE" else (30, 30)
        assert found.shape == (len(planes), *shape) and found.dtype == planes.dtype
        if mode == "FIT_LARGE_SIZE_AND_PAD":
            assert (found[:, :, :2] == 3).all() == (pad == "CONSTANT")
        assert abs(found.mean() - planes.mean()) < 25


def test_an_image_that_opencv_refuses_is_an_error():
    with pytest.raises(DataError, match="OpenCV cannot change the image"):
        _changed("resize_param { height: 1000000 width: 1000000 }")


def _part(transform: str, crop: int, index: int = 0) -> np.ndarray:
    param = layer(f'name: "d" transform_param {{ {transform} }}').transform_param
    return ImageChanges(param, 5, np.empty(0), (crop, crop), True).image(PLANES, index)


def test_random_sizes_keep_the_aspect_ratio():
    """intel/caffe: the shorter side, 50, becomes one of 20 to 40; 60/50 of it is cut."""
    shapes = {_changed(_SIZE, index=i).shape for i in range(200)}
    assert shapes == {(3, int(1.2 * side), side) for side in range(20, 41)}
    wanted = cv2.resize(IMAGE, (25, 30), interpolation=cv2.INTER_CUBIC)
    fixed = _SIZE.replace("20", "25").replace("40", "25")
    np.testing.assert_array_equal(_hwc(fixed), wanted)


_SIZE = "random_resize_param { min_size: 20 max_size: 40 resize_param { interp_mode: CUBIC } }"
_AREA = "random_aspect_ratio_param { min_area_ratio: 0.2 max_area_ratio: 0.5 %s }"


def test_random_areas_are_parts_of_the_image():
    ramp = np.zeros((60, 50, 3), np.float32)
    ramp[..., 0], ramp[..., 1] = np.arange(60)[:, None], np.arange(50)
    param = layer(f'name: "d" transform_param {{ {_AREA % "aspect_ratio_change: 0.8"} }}')
    areas = ImageChanges(param.transform_param, 5, np.empty(0), (16, 16), True)
    sides = []
    for index in range(100):
        part = areas.image(ramp.transpose(2, 0, 1), index)
        assert part.shape == (3, 16, 16)
        height, width = ((part[c].max() - part[c].min()) * 16 / 15 for c in (0, 1))
        sides.append((height, width))
    share, ratio = np.prod(sides, axis=1) / 3000, np.divide(*np.transpose(sides))
    assert 0.15 < share.min() < 0.25 and 0.45 < share.max() < 0.55
    assert 0.6 < ratio.min() < 0.75 and 1.35 < ratio.max() < 1.7


def test_without_a_part_that_fits_the_whole_image_is_resized():
    assert _part(_AREA % "max_attempt: 0", 20).shape == (3, 24, 20)


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        ("random_resize_param { min_size: 9 max_size: 8 }", "max_size 8 below min_size 9"),
        (_AREA % "aspect_ratio_change: 2", "aspect_ratio_change above 0 and at most 1, found 2"),
        (_AREA.replace("0.2", "0.6") % "", "found 0.6 and 0.5"),
    ],
)
def test_impossible_random_sizes(transform, message):
    with pytest.raises(DataError, match=message):
        _part(transform, 20)


def test_random_areas_need_a_crop():
    with pytest.raises(DataError, match="needs a crop_size"):
        _changes(_AREA % "")


def test_changes_drawn_with_one_probability():
    """In jolibrain/caffe's form a change has a name, and all have one probability."""
    named = "brightness: true brightness_delta: 90 contrast_upper: 1 saturation_upper: 1 prob: 0.3"
    changes = _changes(f"distort_param {{ {named} hue_delta: 90 }}")
    changed = [not np.array_equal(changes.image(PLANES, i), PLANES) for i in range(300)]
    assert 0.2 < np.mean(changed) < 0.4
    same = _hwc("distort_param { all_effects: true brightness_delta: 90 contrast_upper: 9 }")
    assert np.array_equal(same, IMAGE)  # prob is 0
    gray = "distort_param { all_effects: true prob: 1 contrast_lower: 1 contrast_upper: 1 }"
    assert np.ptp(_hwc(gray), axis=2).max() == 0  # saturation 0
    with pytest.raises(DataError, match="takes hue or hue_prob, not both"):
        _changes("distort_param { hue: true hue_prob: 1 }")


def test_noise_drawn_with_one_probability():
    changes = _changes("noise_param { inverse: true all_effects: false prob: 0.3 }")
    images = [changes.image(PLANES, i) for i in range(300)]
    inverse = [np.array_equal(image, 255 - PLANES) for image in images]
    assert 0.2 < np.mean(inverse) < 0.4
    assert all(np.array_equal(x, PLANES) for x, done in zip(images, inverse) if not done)
    never = _hwc("noise_param { all_effects: true }")
    assert np.array_equal(never, IMAGE)
    lab = _hwc("noise_param { all_effects: false convert_to_lab: true prob: 1 }")
    lightness = cv2.cvtColor(IMAGE, cv2.COLOR_BGR2Lab)[:, :, 0] * (100 / 255)
    assert np.abs(lab[:, :, 0] - lightness).max() <= 1
    everything = "noise_param { all_effects: true prob: 1 }"
    assert _hwc(everything).shape == IMAGE.shape
    gray = _changed(everything, PLANES[:1])
    assert gray.shape == (1, *IMAGE.shape[:2]) and not np.array_equal(gray, PLANES[:1])


def test_decolorize_beside_all_effects_has_no_effect(caplog):
    same = _hwc("noise_param { all_effects: false decolorize: true prob: 1 }")
    assert np.array_equal(same, IMAGE)
    assert "noise_param.decolorize has no effect beside all_effects" in caplog.text


def _sizes(transform: str, shape=(60, 90)) -> set[tuple[int, int]]:
    changes = _changes(transform)
    images = (changes.image(np.zeros((3, *shape), np.uint8), i) for i in range(200))
    return {image.shape[1:] for image in images}


def test_random_shorter_sides_keep_the_aspect_ratio():
    sizes = _sizes("img_rand_resize_lower: 30 img_rand_resize_upper: 33")
    assert sizes == {(30, 45), (31, 47), (32, 48), (33, 50)}
    upright = _sizes("img_rand_resize_lower: 20 img_rand_resize_upper: 20", (90, 60))
    assert upright == {(30, 20)}
    assert _sizes("img_rand_resize_lower: 70 img_rand_resize_upper: 70") == {(60, 90)}
    larger = "img_rand_resize_lower: 70 img_rand_resize_upper: 70 allow_upscale: true"
    assert _sizes(larger) == {(70, 105)}
    assert _sizes("img_rand_resize_lower: 9 img_rand_resize_upper: 9 crop_size: 20") == {(20, 20)}


def test_images_are_stretched():
    sides = "img_rand_resize_lower: 20 img_rand_resize_upper: 20"
    tall = _sizes(f"{sides} vertical_stretch_lower: 0.5 vertical_stretch_upper: 1.5")
    assert {width for _, width in tall} == {30}
    heights = sorted(height for height, _ in tall)
    assert heights[0] == 10 and heights[-1] in (29, 30) and len(heights) > 15
    ratio = _sizes(f"{sides} rand_resize_ratio_lower: 2 rand_resize_ratio_upper: 2")
    assert ratio == {(20, 40)}
    square = f"{sides} rand_resize_ratio_lower: 2 rand_resize_ratio_upper: 2"
    assert _sizes(square, (60, 60)) == {(20, 40), (40, 20)}


def test_how_sizes_change_is_chosen():
    sides = "img_rand_resize_lower: 25 img_rand_resize_upper: 25"
    nearest = _hwc(sides)
    assert nearest.shape == (30, 25, 3) and np.array_equal(nearest, IMAGE[::2, ::2])
    mean = _hwc(f"{sides} interpolation_algo_down: INTER_AREA").astype(int)
    quarters = IMAGE.reshape(30, 2, 25, 2, 3).mean(axis=(1, 3))
    assert np.abs(mean - quarters).max() <= 1


def test_bounds_of_sizes_in_the_wrong_order():
    with pytest.raises(DataError, match="img_rand_resize_upper 4 below 5, its lower"):
        _changes("img_rand_resize_lower: 5 img_rand_resize_upper: 4")
    with pytest.raises(DataError, match="vertical_stretch_upper 1 below 2, its lower"):
        _changes("vertical_stretch_lower: 2")
