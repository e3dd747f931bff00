"""The VideoData layer: which frames it reads, crops of several sizes, flow, ranks and errors."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from layer_runs import Run, layer

from pycaffe_dist.data.partition import Shard
from pycaffe_dist.errors import DataError, LayerError
from pycaffe_dist.schema import caffe_pb2

TRAIN, TEST = caffe_pb2.TRAIN, caffe_pb2.TEST
FRAMES = (12, 7, 3)


@pytest.fixture(scope="module")
def videos(tmp_path_factory) -> Path:
    """Videos of 3 lengths; frame k of video i has the values 20 i + k, flow 100 + k and 150 + k."""
    folder = tmp_path_factory.mktemp("videos")
    lines = []
    for i, frames in enumerate(FRAMES):
        (folder / f"v{i}").mkdir()
        for k in range(1, frames + 1):
            cv2.imwrite(f"{folder}/v{i}/image_{k:04d}.png", np.full((20, 16, 3), 20 * i + k, "u1"))
            for letter, value in (("x", 100 + k), ("y", 150 + k)):
                flow = np.full((20, 16), value, np.uint8)
                cv2.imwrite(f"{folder}/v{i}/flow_{letter}_{k:04d}.png", flow)
        lines.append(f"{folder}/v{i} {frames} {i}\n")
    (folder / "list").write_text("".join(lines))
    return folder


def _param(folder: Path, batch: int, more: str = "", transform: str = ""):
    kind = "" if "modality" in more else 'modality: RGB name_pattern: "image_%04d.png"'
    return layer(
        f'name: "d" type: "VideoData" top: "data" top: "label" transform_param {{ {transform} }} '
        f'video_data_param {{ source: "{folder}/list" batch_size: {batch} {kind} {more} }}'
    )


def test_testing_reads_the_middle_of_each_segment(videos):
    run = Run(_param(videos, 3, "num_segments: 3 new_length: 2"), phase=TEST)
    data, label = run.batch()
    assert data.shape == (3, 3 * 2 * 3, 20, 16) and label.shape == (3, 1, 1, 1)
    assert label.reshape(-1).tolist() == [0, 1, 2]
    # Parts of 4 frames have 3 free places, of 2 frames 1; the last video is too short.
    starts = [[1, 5, 9], [0, 2, 4], [0, 0, 0]]
    for i, begins in enumerate(starts):
        frames = [20 * i + begin + k for begin in begins for k in (1, 2)]
        assert data[i, ::3, 0, 0].tolist() == frames


def test_training_reads_random_frames_of_each_segment(videos):
    run = Run(_param(videos, 3, "num_segments: 2"), phase=TRAIN)
    data = np.stack([run.batch()[0][0, ::3, 0, 0] for _ in range(60)])
    assert set(data[:, 0]) == {1, 2, 3, 4, 5, 6}
    assert set(data[:, 1]) == {7, 8, 9, 10, 11, 12}


def test_flow_has_two_channels_and_is_inverted_where_mirrored(videos):
    more = 'modality: FLOW name_pattern: "flow_%c_%04d.png" new_length: 3'
    run = Run(_param(videos, 3, more, "mirror: true is_flow: true mean_value: 128"), phase=TEST)
    seen = set()
    for _ in range(6):
        for i, frames in enumerate(run.batch()[0][:, :, 0, 0]):
            start = [5, 2, 0][i]
            plain = [value + start + k for k in (1, 2, 3) for value in (100, 150)]
            flipped = [255 - v if c % 2 == 0 else v for c, v in enumerate(plain)]
            found = (frames + 128).tolist()
            assert found in (plain, flipped)
            seen.add(found == plain)
    assert seen == {True, False}


def test_crops_of_several_sizes(tmp_path):
    """The first and last columns of a crop show its width, because brightness grows by column."""
    (tmp_path / "v").mkdir()
    columns = np.tile(np.arange(64, dtype=np.uint8) * 4, (64, 1))
    cv2.imwrite(f"{tmp_path}/v/image_0001.png", columns)
    (tmp_path / "list").write_text(f"{tmp_path}/v 1 0\n")

    def spans(transform: str) -> set[tuple[int, int]]:
        run = Run(_param(tmp_path, 1, "", transform), phase=TRAIN)
        lines = [run.batch()[0][0, 0, 0] for _ in range(150)]
        return {(round(line[0] / 4), round(line[-1] / 4)) for line in lines}

    fixed = spans("crop_size: 32 fix_crop: true")
    assert fixed == {(0, 31), (32, 63), (16, 47)}
    more = spans("crop_size: 32 fix_crop: true more_fix_crop: true")
    assert more == {(0, 31), (32, 63), (16, 47), (8, 39), (24, 55)}
    scales = "crop_size: 32 fix_crop: true multi_scale: true scale_ratios: 1 scale_ratios: 0.5"
    found = {high - low for low, high in spans(scales)}
    assert 31 in found and 62 <= max(found) <= 63 and len(found) <= 4


def test_ranks_see_together_what_one_rank_sees(videos):
    wanted = "num_segments: 2 shuffle: true", "crop_size: 8 mirror: true multi_scale: true"
    one = Run(_param(videos, 4, *wanted))
    two = [Run(_param(videos, 2, *wanted), shard=Shard(rank, 2)) for rank in (0, 1)]
    for _ in range(5):
        whole = one.batch()
        for rank, run in enumerate(two):
            assert all(np.array_equal(a, b[rank::2]) for a, b in zip(run.batch(), whole))


def test_errors_name_the_list_and_its_line(videos, tmp_path):
    def run(text: str, more: str = ""):
        (tmp_path / "list").write_text(text)
        return Run(_param(tmp_path, 1, more)).batch()

    with pytest.raises(DataError, match=r"list:1: expected a folder, its number of frames"):
        run("a 1\n")
    with pytest.raises(DataError, match=r"list:1: expected a folder.* found 'a 0 1'"):
        run("a 0 1\n")
    with pytest.raises(DataError, match=r"list:2: cannot read image '.*v2/image_0004.png'"):
        listed = f"{videos}/v2 3 0\n{videos}/v2 9 0\n"
        run(listed, "num_segments: 9 batch_size: 2")
    with pytest.raises(DataError, match=r"name_pattern 'image' names no file"):
        run(f"{videos}/v2 3 0\n", 'modality: RGB name_pattern: "image"')
    with pytest.raises(LayerError, match="num_segments"):
        run(f"{videos}/v2 3 0\n", "num_segments: 0")
    with pytest.raises(DataError, match="need a crop_size"):
        Run(_param(videos, 1, "", "multi_scale: true"))
