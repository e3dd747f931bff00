"""The AnnotatedData layer against SSD's own batches; crops, ranks, resumption and bad records."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from layer_runs import GOLDEN, Run, check_golden, golden_cases, layer

from pycaffe_dist.data.annotated import sampler_table
from pycaffe_dist.data.options import ReadingOptions, set_options
from pycaffe_dist.data.partition import Shard
from pycaffe_dist.data.writers import create_database
from pycaffe_dist.errors import DataError, LayerError
from pycaffe_dist.kernels.annotation import BOX_COLUMNS, X1, Y2, sample_crops
from pycaffe_dist.schema import caffe_pb2

TRAIN, TEST = caffe_pb2.TRAIN, caffe_pb2.TEST
RANDOM = """
mirror: true resize_param { height: 40 width: 40 interp_mode: NEAREST interp_mode: LINEAR }
distort_param { brightness_prob: 0.5 brightness_delta: 8 hue_prob: 0.5 hue_delta: 9
                contrast_upper: 1 saturation_upper: 1 }
expand_param { prob: 0.5 max_expand_ratio: 2 } emit_constraint { emit_type: CENTER }
"""
SAMPLERS = """
batch_sampler { max_sample: 1 max_trials: 1 }
batch_sampler { sampler { min_scale: 0.3 min_aspect_ratio: 0.5 max_aspect_ratio: 2 }
                sample_constraint { min_jaccard_overlap: 0.3 } max_sample: 2 max_trials: 50 }
"""
BACKGROUND, OBJECT = 40, 220


@pytest.fixture(autouse=True)
def _options():
    yield
    set_options(ReadingOptions())


@pytest.mark.parametrize("case", golden_cases("annotated"))
def test_batches_equal_the_forks(case, monkeypatch):
    monkeypatch.chdir(GOLDEN)
    check_golden(case)


def _record(i: int, encoded: bool = True):
    """Return an image with i % 4 bright objects on a dark background, and their boxes."""
    rng = np.random.default_rng(i)
    height, width = int(rng.integers(90, 130)), int(rng.integers(90, 130))
    pixels = np.full((height, width, 3), BACKGROUND, np.uint8)
    record = caffe_pb2.AnnotatedDatum(type=caffe_pb2.AnnotatedDatum.BBOX)
    for k in range(i % 4):
        x, y = 4 + 28 * k, int(rng.integers(4, 50))
        w, h = (int(side) for side in rng.integers(20, 26, 2))
        pixels[y : y + h, x : x + w] = OBJECT
        group = record.annotation_group.add(group_label=1 + k)
        corners = {"xmin": x / width, "ymin": y / height}
        corners |= {"xmax": (x + w) / width, "ymax": (y + h) / height}
        bbox = caffe_pb2.NormalizedBBox(difficult=bool(i % 2), **corners)
        group.annotation.add(instance_id=10 * i + k, bbox=bbox)
    record.datum.height, record.datum.width, record.datum.channels = height, width, 3
    record.datum.label, record.datum.encoded = i, encoded
    whole = cv2.imencode(".png", pixels)[1] if encoded else pixels.transpose(2, 0, 1)
    record.datum.data = whole.tobytes()
    return record


def _write(path: Path, records: list, backend: str = "lmdb") -> Path:
    with create_database(str(path), backend) as writer:
        for i, record in enumerate(records):
            writer.put(
                b"%08d" % i, record if isinstance(record, bytes) else record.SerializeToString()
            )
    return path


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> Path:
    return _write(tmp_path_factory.mktemp("a") / "db", [_record(i) for i in range(13)])


def _param(source, batch: int, transform="resize_param { height: 40 width: 40 }", more="", tops=2):
    names = " ".join(f'top: "{name}"' for name in ("data", "label")[:tops])
    return layer(
        f'name: "d" type: "AnnotatedData" {names} transform_param {{ {transform} }} '
        f'data_param {{ source: "{source}" batch_size: {batch} backend: LMDB }} '
        f"annotated_data_param {{ {more} }}"
    )


@pytest.mark.parametrize("encoded", [True, False])
def test_boxes_stay_on_their_objects(encoded, tmp_path):
    path = _write(tmp_path / "db", [_record(i, encoded) for i in range(13)])
    run = Run(_param(path, 13, RANDOM, SAMPLERS), phase=TRAIN)
    seen = 0
    for _ in range(6):
        data, label = run.batch()
        assert label.shape[:2] == (1, 1) and label.shape[3] == 8
        for image, group, instance, x1, y1, x2, y2, _difficult in label[0, 0]:
            assert group == 1 + instance % 10 and instance // 10 == image % 13
            left, top = np.ceil(40 * np.array([x1, y1])).astype(int)
            right, bottom = np.floor(40 * np.array([x2, y2])).astype(int)
            inside = data[int(image), :, top + 1 : bottom - 1, left + 1 : right - 1]
            if inside.size:
                assert inside.mean() > 150
                seen += 1
    assert seen > 40


def test_mirrored_and_plain_images_occur(records):
    plain = Run(_param(records, 13)).batch()
    data, label = Run(
        _param(records, 13, "mirror: true resize_param { height: 40 width: 40 }")
    ).batch()
    flipped = [(one != other).any() for one, other in zip(data, plain[0])]
    assert 0 < sum(flipped) < 13
    for row, before in zip(label[0, 0], plain[1][0, 0]):
        if flipped[int(row[0])]:
            before[[3, 5]] = 1 - before[[5, 3]]
        np.testing.assert_allclose(row, before, atol=1e-6)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_see_together_what_one_rank_sees(records, ranks):
    one = Run(_param(records, 4 * ranks, RANDOM, SAMPLERS))
    many = [
        Run(_param(records, 4, RANDOM, SAMPLERS), shard=Shard(rank, ranks)) for rank in range(ranks)
    ]
    for _ in range(5):
        data, label = one.batch()
        for rank, run in enumerate(many):
            part, boxes = run.batch()
            assert np.array_equal(part, data[rank::ranks])
            mine = label[0, 0][label[0, 0, :, 0] % ranks == rank]
            mine[:, 0] //= ranks
            assert np.array_equal(boxes[0, 0], mine if len(mine) else np.full((1, 8), -1))


def test_results_do_not_depend_on_threads_or_the_cache(records):
    batches = []
    for options in (
        ReadingOptions(readers=1, decoders=1),
        ReadingOptions(readers=3, decoders=4),
        ReadingOptions(cache="records"),
        ReadingOptions(cache="images"),
    ):
        set_options(options)
        run = Run(_param(records, 5, RANDOM, SAMPLERS))
        batches.append([run.batch() for _ in range(9)])
        run.layer.close()
    for others in batches[1:]:
        for one, other in zip(batches[0], others):
            assert all(map(np.array_equal, one, other))


def test_resumed_run_sees_the_same_batches(records):
    run = Run(_param(records, 3, RANDOM, SAMPLERS))
    states, batches = [], []
    for _ in range(8):
        states.append(json.loads(json.dumps(run.layer.state())))
        batches.append(run.batch())
    again = Run(_param(records, 3, RANDOM, SAMPLERS), seed=None)
    again.layer.set_state(states[3])
    for number in range(3, 8):
        assert all(map(np.array_equal, again.batch(), batches[number]))


def test_batches_without_boxes_have_a_row_of_minus_one(tmp_path):
    run = Run(_param(_write(tmp_path / "db", [_record(0), _record(4)]), 2))
    assert np.array_equal(run.batch()[1], np.full((1, 1, 1, 8), -1))


def test_records_without_a_type_have_labels(tmp_path):
    records = [_record(i) for i in range(5)]
    for record in records:
        record.ClearField("type")
        record.ClearField("annotation_group")
    path = _write(tmp_path / "db", records)
    _, label = Run(_param(path, 5)).batch()
    assert label.shape == (5, 1, 1, 1) and label.reshape(-1).tolist() == list(range(5))
    with pytest.raises(DataError, match=r"record 0 .*should have type BBOX, found no type"):
        Run(_param(path, 5, more="anno_type: BBOX")).batch()


def test_leveldb(tmp_path):
    param = _param(_write(tmp_path / "db", [_record(i) for i in range(4)], "leveldb"), 4)
    param.data_param.backend = caffe_pb2.DataParameter.LEVELDB
    assert Run(param).batch()[1].shape == (1, 1, 6, 8)


def test_images_of_one_size_need_no_resizing(tmp_path):
    run = Run(_param(_write(tmp_path / "db", [_record(3)] * 2 + [_record(5)]), 1, ""))
    shapes = [run.batch()[0].shape for _ in range(6)]
    assert shapes[0] == shapes[1] == shapes[3] != shapes[2] == shapes[5]


def test_a_first_image_of_another_shape_keeps_its_boxes(tmp_path):
    path = _write(tmp_path / "db", [_record(3), _record(5)])
    with pytest.raises(DataError, match=r"record 1 .*all images of a batch must have one shape"):
        Run(_param(path, 2, "")).batch()


def _samplers(text: str) -> np.ndarray:
    return sampler_table(_param("", 1, more=text).annotated_data_param.batch_sampler)


def _overlaps(crops: np.ndarray, box: np.ndarray) -> np.ndarray:
    low, high = np.maximum(crops[:, :2], box[:2]), np.minimum(crops[:, 2:], box[2:])
    common = np.clip(high - low, 0, None).prod(axis=1)
    areas = (crops[:, 2:] - crops[:, :2]).prod(axis=1)
    return np.stack([common / (areas + (box[2:] - box[:2]).prod() - common), common / areas], 1)


def test_crops_keep_their_constraints():
    boxes = np.zeros((2, BOX_COLUMNS), np.float32)
    boxes[:, X1 : Y2 + 1] = [[0.1, 0.2, 0.4, 0.6], [0.5, 0.5, 0.9, 0.95]]
    draws = np.random.default_rng(0).random((4000, 4), dtype=np.float32)
    shape = "sampler { min_scale: 0.3 max_scale: 0.9 min_aspect_ratio: 0.5 max_aspect_ratio: 2 }"
    free = sample_crops(_samplers(f"batch_sampler {{ {shape} max_trials: 4000 }}"), boxes, draws)
    assert len(free) == 4000
    sides = free[:, 2:] - free[:, :2]
    assert free.min() >= -1e-6 and free.max() <= 1 + 1e-6
    scale, ratio = np.sqrt(sides.prod(axis=1)), sides[:, 0] / sides[:, 1]
    assert 0.299 < scale.min() < 0.31 and 0.89 < scale.max() < 0.901
    assert 0.499 < ratio.min() < 0.51 and 1.98 < ratio.max() < 2.001
    np.testing.assert_allclose(np.histogram(scale, 6, (0.3, 0.9))[0], 4000 / 6, atol=110)
    for bound, column in (("jaccard_overlap", 0), ("sample_coverage", 1)):
        for low, high in ((0.3, 1), (0, 0.1)):
            constraint = f"min_{bound}: {low} max_{bound}: {high}"
            text = f"{shape} sample_constraint {{ {constraint} }} max_trials: 4000"
            crops = sample_crops(_samplers(f"batch_sampler {{ {text} }}"), boxes, draws)
            values = np.stack([_overlaps(free, box)[:, column] for box in boxes[:, X1 : Y2 + 1]])
            kept = ((values >= low) & (values <= high)).any(axis=0)
            assert 100 < kept.sum() < 3950
            assert abs(len(crops) - kept.sum()) <= 2  # rounding, at a bound


def test_samplers_stop_at_their_limits():
    draws = np.random.default_rng(0).random((60, 4), dtype=np.float32)
    boxes = np.zeros((0, BOX_COLUMNS), np.float32)
    most = "sampler { min_scale: 0.3 } max_trials: 20"
    impossible = "sample_constraint { min_object_coverage: 0.1 }"
    text = f"batch_sampler {{ {most} max_sample: 3 }} batch_sampler {{ {most} {impossible} }}"
    text += f"batch_sampler {{ {most} }} batch_sampler {{ use_original_image: false }}"
    crops = sample_crops(_samplers(text), boxes, draws)
    assert len(crops) == 3 + 0 + 20


def test_whole_images_and_crops_are_chosen_alike(tmp_path):
    path = _write(tmp_path / "db", [_record(i, encoded=False) for i in range(13)])
    more = """
        batch_sampler { max_sample: 1 }
        batch_sampler { sampler { min_scale: 0.3 max_scale: 0.9 } max_sample: 2 max_trials: 200
                        sample_constraint { min_object_coverage: 0.5 } }
    """
    run, whole = Run(_param(path, 13, more=more)), Run(_param(path, 13))
    same = np.mean([(run.batch()[0] == whole.batch()[0]).all((1, 2, 3)) for _ in range(20)])
    # 4 images have no objects and stay whole; for the other 9 one of three crops is chosen.
    assert abs(same - (4 + 9 / 3) / 13) < 0.1


def _broken(kind: str):
    record = _record(3)
    if kind == "image":
        record.datum.data = record.datum.data[:50]
    elif kind == "number":
        record.annotation_group[1].annotation[0].bbox.xmax = np.nan
    elif kind == "type":
        record.type = 0
        return record.SerializeToString().replace(b"\x10\x00", b"\x10\x07")
    elif kind == "datum":
        return record.datum.SerializeToString()
    elif kind == "cut":
        return record.SerializeToString()[:-3]
    return record


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("image", r"key '00000002'\) cannot be decoded"),
        ("number", r"key '00000002'\) has a box whose corners are no numbers: \[.*nan"),
        ("type", r"key '00000002'\) should have type BBOX, found type 7"),
        ("datum", r"key '00000002'\) is not an AnnotatedDatum"),
        ("cut", r"key '00000002'\) is not an AnnotatedDatum"),
    ],
)
def test_bad_records_are_named_or_skipped(kind, message, tmp_path):
    path = _write(tmp_path / "db", [_record(1), _record(2), _broken(kind), _record(7)])
    with pytest.raises(DataError, match=f"layer 'd' .AnnotatedData.: .*{message}"):
        Run(_param(path, 4)).batch()
    set_options(ReadingOptions(on_error="skip"))
    data, label = Run(_param(path, 4)).batch()
    assert np.array_equal(data[2], data[3])
    rows = label[0, 0]
    assert np.array_equal(rows[rows[:, 0] == 2, 1:], rows[rows[:, 0] == 3, 1:])


@pytest.mark.parametrize(
    ("transform", "more", "message"),
    [
        ("resize_param { resize_mode: FIT_SMALL_SIZE height: 9 width: 9 }", "", "batch_size of 1"),
        ("resize_param { height: 9 }", "", "height and width above 0, found 9 and 0"),
        ("resize_param { height: 9 width: 9 height_scale: 3 }", "", "not supported"),
        ("expand_param { max_expand_ratio: 1 }", "", "max_expand_ratio above 1, found 1"),
        ("distort_param { hue_delta: -1 }", "", "hue_delta must not be negative, found -1"),
        ("noise_param { convert_to_lab: true }", "", "convert_to_lab is refused"),
        ("crop_h: 9", "", "needs a crop's height and width"),
        ("multi_scale: true crop_size: 9", "", "not for images with boxes"),
        ("", "batch_sampler { sampler { max_scale: 2 } }", "0 < min_scale <= max_scale <= 1"),
        ("", "batch_sampler { sampler { min_aspect_ratio: 2 } }", "min_aspect_ratio"),
    ],
)
def test_impossible_parameters_are_refused(transform, more, message, records):
    with pytest.raises((DataError, LayerError), match=f"'d'.*{message}"):
        Run(_param(records, 2, transform, more))
