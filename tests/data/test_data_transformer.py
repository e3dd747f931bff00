"""The transformer against a plain NumPy version of Caffe's computation."""

from __future__ import annotations

import numpy as np
import pytest

from pycaffe_dist.data.transformer import Transformer
from pycaffe_dist.errors import DataError
from pycaffe_dist.schema import caffe_pb2

TRAIN, TEST = caffe_pb2.TRAIN, caffe_pb2.TEST


def _image(channels=3, height=11, width=8, dtype=np.uint8) -> np.ndarray:
    rng = np.random.default_rng(1)
    return rng.integers(0, 256, (channels, height, width)).astype(dtype)


def _transform(image: np.ndarray, phase=TEST, index=0, dtype=np.float32, key=5, **param):
    message = caffe_pb2.TransformationParameter(**param)
    transformer = Transformer(message, phase, dtype, key)
    out = np.empty(transformer.output_shape(image.shape), dtype)
    transformer.image(image, index, out)
    return out


def _mean_file(path, mean: np.ndarray, **shape) -> str:
    blob = caffe_pb2.BlobProto(data=mean.reshape(-1).tolist(), **shape)
    path.write_bytes(blob.SerializeToString())
    return str(path)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("pixels", [np.uint8, np.float32])
def test_scale_and_mean_values(dtype, pixels):
    image = _image(dtype=pixels)
    out = _transform(image, dtype=dtype, scale=0.1, mean_value=[1.5, 2, 3])
    mean = np.array([1.5, 2, 3], dtype)[:, None, None]
    assert np.array_equal(out, (image.astype(dtype) - mean) * dtype(np.float32(0.1)))


def test_one_mean_value_serves_all_channels():
    image = _image()
    assert np.array_equal(_transform(image, mean_value=[9]), image.astype(np.float32) - 9)


def test_without_options_the_pixels_are_unchanged():
    assert np.array_equal(_transform(_image()), _image())


@pytest.mark.parametrize("legacy", [True, False])
def test_mean_file_and_centre_crop(tmp_path, legacy):
    image, mean = _image(), np.random.default_rng(2).normal(120, 9, (3, 11, 8)).astype(np.float32)
    shape = {"num": 1, "channels": 3, "height": 11, "width": 8}
    shape = shape if legacy else {"shape": {"dim": [3, 11, 8]}}
    path = _mean_file(tmp_path / "mean", mean, **shape)
    out = _transform(image, mean_file=path, crop_size=4, scale=0.5)
    expected = (image.astype(np.float32) - mean) * np.float32(0.5)
    assert np.array_equal(out, expected[:, 3:7, 2:6])


def _find(image: np.ndarray, out: np.ndarray) -> tuple[int, int, bool]:
    """Return the row, column and mirroring of the crop in ``out``."""
    height, width = out.shape[1:]
    for top in range(image.shape[1] - height + 1):
        for left in range(image.shape[2] - width + 1):
            crop = image[:, top : top + height, left : left + width]
            for mirrored in (False, True):
                if np.array_equal(out, crop[:, :, ::-1] if mirrored else crop):
                    return top, left, mirrored
    raise AssertionError("not a crop of the image")


def test_training_crops_and_mirrors_are_uniform():
    image, count = _image(1), 6000
    transformer = Transformer(
        caffe_pb2.TransformationParameter(crop_size=7, mirror=True), TRAIN, key=11
    )
    out = np.empty((1, 7, 7), np.float32)
    found: dict[tuple[int, int, bool], int] = {}
    for index in range(count):
        transformer.image(image, index, out)
        place = _find(image, out)
        found[place] = found.get(place, 0) + 1
    places = 5 * 2 * 2
    assert len(found) == places
    expected = count / places
    chi_square = sum((n - expected) ** 2 / expected for n in found.values())
    assert chi_square < 50  # 19 degrees of freedom: a larger value has probability 1/8000


def test_testing_also_mirrors_at_random_as_in_caffe():
    image = _image()
    out = [_transform(image, TEST, index, mirror=True) for index in range(40)]
    mirrored = sum(_find(image, o)[2] for o in out)
    assert 8 < mirrored < 32


def test_draws_depend_on_key_and_index_alone():
    image = _image(1, 40, 40)
    places = [_find(image, _transform(image, TRAIN, i, key=3, crop_size=9)) for i in range(20)]
    again = [_find(image, _transform(image, TRAIN, i, key=3, crop_size=9)) for i in range(20)]
    other = [_find(image, _transform(image, TRAIN, i, key=4, crop_size=9)) for i in range(20)]
    assert places == again != other


def test_mirror_and_mean_file_use_the_crops_own_mean(tmp_path):
    image = _image(2, 9, 9)
    path = _mean_file(tmp_path / "m", image.astype(np.float32), shape={"dim": image.shape})
    for index in range(10):
        out = _transform(image, TRAIN, index, mirror=True, crop_size=5, mean_file=path)
        assert not out.any()


def test_interleaved_pixels_as_in_opencv():
    image = np.ascontiguousarray(_image().transpose(1, 2, 0)).transpose(2, 0, 1)
    assert np.array_equal(_transform(image, scale=2), image * np.float32(2))


def _fails(*words: str, image=None, **param) -> None:
    with pytest.raises(DataError) as caught:
        _transform(_image() if image is None else image, **param)
    for word in words:
        assert word in str(caught.value)


def test_errors_name_what_was_expected_and_found(tmp_path):
    small = _mean_file(tmp_path / "small", np.zeros((3, 4, 5)), shape={"dim": [3, 4, 5]})
    flat = _mean_file(tmp_path / "flat", np.zeros(6), shape={"dim": [6]})
    _fails("crop_size 9", "11 high and 8 wide", crop_size=9)
    _fails("small", "(3, 4, 5)", "(3, 11, 8)", mean_file=small)
    _fails("flat", "(6,)", mean_file=flat)
    _fails("1 mean_value", "3 channels", "found 2", mean_value=[1, 2])
    _fails("both mean_file and mean_value", mean_file=small, mean_value=[1])
    _fails("both force_color and force_gray", force_color=True, force_gray=True)
    _fails(str(tmp_path / "none"), mean_file=str(tmp_path / "none"))
