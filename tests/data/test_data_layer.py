"""The Data layer against Caffe's own batches, over ranks, at resumption and on bad data."""

from __future__ import annotations

import gc
import json
import os
import time
import weakref
from pathlib import Path

import cv2
import h5py
import lmdb
import numpy as np
import pytest
from google.protobuf import text_format

from pycaffe_dist.blob import Blob
from pycaffe_dist.data.options import ReadingOptions, set_options
from pycaffe_dist.data.partition import Shard
from pycaffe_dist.data.transformer import Transformer
from pycaffe_dist.data.writers import create_database
from pycaffe_dist.errors import DataError, LayerError
from pycaffe_dist.layers.base import LayerContext, layer_class
from pycaffe_dist.net import Net
from pycaffe_dist.schema import caffe_pb2

GOLDEN = Path(__file__).parents[1] / "golden" / "data"
CASES = sorted(path.stem for path in (GOLDEN / "expected").glob("l*.prototxt"))
TRAIN, TEST = caffe_pb2.TRAIN, caffe_pb2.TEST


class _Run:
    """A Data layer and its tops; ``batch()`` runs it once and returns copies of the tops."""

    def __init__(self, param, tops=2, **context):
        context.setdefault("seed", 1)
        self.layer = layer_class("Data")(param, LayerContext(**context))
        self.tops = [Blob(dtype=self.layer.context.dtype) for _ in range(tops)]
        self.layer.setup([], self.tops)
        self.layer.reshape([], self.tops)

    def batch(self) -> list[np.ndarray]:
        self.layer.forward([], self.tops)
        return [top.data.copy() for top in self.tops]


def _param(source: Path | str, batch_size: int, **transform):
    param = caffe_pb2.LayerParameter(name="d", type="Data", top=["data", "label"])
    param.data_param.source = str(source)
    param.data_param.batch_size = batch_size
    param.data_param.backend = caffe_pb2.DataParameter.LMDB
    param.transform_param.CopyFrom(caffe_pb2.TransformationParameter(**transform))
    return param


def _write(path: Path, datums: list) -> Path:
    with lmdb.open(str(path), map_size=1 << 26, lock=False) as env, env.begin(write=True) as txn:
        for i, datum in enumerate(datums):
            value = datum if isinstance(datum, bytes) else datum.SerializeToString()
            txn.put(b"%08d" % i, value)
    return path


def _image(i: int, channels=3, height=12, width=10):
    pixels = np.random.default_rng(i).integers(0, 256, channels * height * width, np.uint8)
    return caffe_pb2.Datum(
        channels=channels, height=height, width=width, data=pixels.tobytes(), label=i
    )


@pytest.fixture
def images(tmp_path) -> Path:
    return _write(tmp_path / "images", [_image(i) for i in range(17)])


@pytest.mark.parametrize("case", CASES)
def test_batches_equal_caffes(case, monkeypatch):
    monkeypatch.chdir(GOLDEN)
    net = text_format.Parse(Path(f"expected/{case}.prototxt").read_text(), caffe_pb2.NetParameter())
    run = _Run(net.layer[0], phase=TEST)
    expected = np.load(f"expected/{case}.npz")
    shapes = [top.shape for top in run.tops]
    for i in range(4):
        data, label = run.batch()
        assert np.array_equal(data, expected[f"iter{i}/data"])
        assert np.array_equal(label, expected[f"iter{i}/label"])
        assert shapes == [data.shape, label.shape]
    run.layer.close()


def test_whole_images_are_mirrored_as_by_the_transformer(tmp_path):
    bytes_, floats = [_image(i) for i in range(8)], [_image(i) for i in range(8)]
    for datum in floats:
        datum.float_data.extend(np.frombuffer(datum.data, np.uint8))
        datum.ClearField("data")
    mean = np.random.default_rng(2).normal(120, 9, (3, 12, 10)).astype(np.float32)
    blob = caffe_pb2.BlobProto(data=mean.reshape(-1), shape={"dim": mean.shape})
    (tmp_path / "mean").write_bytes(blob.SerializeToString())
    path = _write(tmp_path / "both", bytes_ + floats)
    param = _param(path, 16, mirror=True, scale=0.25, mean_file=str(tmp_path / "mean"))
    run = _Run(param)
    data, key = run.batch()[0], run.layer.key
    transformer, expected = Transformer(param.transform_param, TRAIN, key=key), data.copy()
    for i, datum in enumerate(bytes_ + bytes_):
        pixels = np.frombuffer(datum.data, np.uint8).reshape(3, 12, 10)
        transformer.image(pixels, i, expected[i])
    assert np.array_equal(data, expected)
    assert not np.array_equal(data[:8], data[8:])  # some are mirrored, some are not


def _jpeg(i: int, height=70, width=48):
    pixels = np.random.default_rng(i).integers(0, 256, (height, width, 3), np.uint8)
    data = cv2.imencode(".jpg", pixels)[1].tobytes()
    return caffe_pb2.Datum(data=data, label=i, encoded=True)


def test_crops_of_jpegs_equal_crops_of_whole_images(tmp_path):
    datums = [_jpeg(i) for i in range(12)]
    param = _param(_write(tmp_path / "jpegs", datums), 12, crop_size=24, mirror=True)
    run = _Run(param)
    for number in range(3):
        data, transformer = run.batch()[0], Transformer(param.transform_param, TRAIN)
        transformer.key, expected = run.layer.key, data.copy()
        for i, datum in enumerate(datums):
            whole = cv2.imdecode(np.frombuffer(datum.data, np.uint8), cv2.IMREAD_UNCHANGED)
            transformer.image(whole.transpose(2, 0, 1), 12 * number + i, expected[i])
        assert np.array_equal(data, expected)


def test_a_jpeg_of_another_height_is_reported(tmp_path):
    path = _write(tmp_path / "jpegs", [_jpeg(0), _jpeg(1), _jpeg(2, height=69)])
    with pytest.raises(DataError, match=r"record 2 .* has an image of shape \(3, 69, 48\)"):
        _Run(_param(path, 3, crop_size=24)).batch()


@pytest.mark.long
def test_float64_net(images):
    data, label = _Run(_param(images, 3, scale=0.5), dtype=np.dtype(np.float64)).batch()
    assert data.dtype == label.dtype == np.float64
    assert np.array_equal(data, _Run(_param(images, 3, scale=0.5)).batch()[0])


def test_a_layers_changes_to_a_batch_do_not_reach_later_batches(images):
    untouched, changed = _Run(_param(images, 3)), _Run(_param(images, 3))
    for _ in range(40):
        expected, found = untouched.batch(), changed.batch()
        for top, one, other in zip(changed.tops, expected, found):
            assert np.array_equal(one, other)
            top.data[...] = np.nan


def test_without_label_top(images):
    (data,) = _Run(_param(images, 4), tops=1).batch()
    assert data.shape == (4, 3, 12, 10)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_see_together_what_one_rank_sees_with_a_larger_batch(images, ranks):
    transform = {"crop_size": 6, "mirror": True, "scale": 0.1}
    one = _Run(_param(images, 5 * ranks, **transform))
    many = [_Run(_param(images, 5, **transform), shard=Shard(r, ranks)) for r in range(ranks)]
    for _ in range(7):
        data, label = one.batch()
        for rank, run in enumerate(many):
            part, part_label = run.batch()
            assert np.array_equal(part_label, label[rank::ranks])
            assert np.array_equal(part, data[rank::ranks])


def test_ranks_of_a_test_take_whole_batches_in_turn(images):
    one = _Run(_param(images, 5), phase=TEST)
    two = [_Run(_param(images, 5), phase=TEST, shard=Shard(r, 2, "batch")) for r in range(2)]
    for number in range(14):
        assert np.array_equal(one.batch()[1], two[number % 2].batch()[1])


@pytest.mark.parametrize("batch_size", [1, 4])
def test_resumed_run_sees_the_same_batches(images, batch_size):
    param = _param(images, batch_size, crop_size=5, mirror=True)
    param.data_param.rand_skip = 5
    run = _Run(param, shard=Shard(1, 2))
    states, batches = [], []
    for _ in range(12):
        states.append(json.loads(json.dumps(run.layer.state())))
        batches.append(run.batch())
    again = _Run(param, shard=Shard(1, 2), seed=None)
    again.batch()
    for start in (5, 0, 9):
        again.layer.set_state(states[start])
        assert again.layer.state() == states[start]
        for number in range(start, 12):
            assert all(map(np.array_equal, again.batch(), batches[number]))


def test_the_seed_decides_all_random_numbers(images):
    def draw(seed, phase=TRAIN):
        return _Run(_param(images, 8, crop_size=3), seed=seed, phase=phase).batch()[0]

    assert np.array_equal(draw(1), draw(1))
    assert not np.array_equal(draw(1), draw(2))
    assert not np.array_equal(draw(None), draw(None))


def test_rand_skip_is_the_same_on_all_ranks(images):
    param = _param(images, 4)
    param.data_param.rand_skip = 13
    starts = set()
    for seed in (1, 2, 3, 4, 5):
        runs = [_Run(param, seed=seed, shard=Shard(r, 2)) for r in range(2)]
        labels = np.stack([run.batch()[1] for run in runs], axis=1).reshape(-1)
        start = int(labels[0])
        assert start < 13 and labels.tolist() == [(start + i) % 17 for i in range(8)]
        starts.add(start)
    assert len(starts) > 2


def test_float_data(tmp_path):
    values = np.random.default_rng(0).normal(size=(3, 24)).astype(np.float32)
    datums = [caffe_pb2.Datum(channels=2, height=3, width=4, float_data=v) for v in values]
    data, label = _Run(_param(_write(tmp_path / "db", datums), 3, scale=2)).batch()
    assert np.array_equal(data.reshape(3, 24), values * 2) and not label.any()


def _encoded(i: int, height: int, width: int, color=True):
    shape = (height, width, 3) if color else (height, width)
    pixels = np.random.default_rng(i).integers(0, 256, shape, np.uint8)
    data = cv2.imencode(".png", pixels)[1].tobytes()
    return caffe_pb2.Datum(data=data, encoded=True, label=i), pixels


def test_encoded_and_raw_images_mix(tmp_path):
    encoded, pixels = zip(*[_encoded(i, 12, 10) for i in range(3)])
    path = _write(tmp_path / "db", [_image(0), encoded[0], encoded[1], _image(1), encoded[2]])
    data, label = _Run(_param(path, 5)).batch()
    for at, image in zip((1, 2, 4), pixels):
        assert np.array_equal(data[at], image.transpose(2, 0, 1))
    assert label.tolist() == [0, 0, 1, 1, 2]


def test_images_of_different_shapes_reshape_the_tops(tmp_path):
    shapes = [(5, 6), (5, 6), (7, 4), (8, 8), (5, 6)]
    datums = [_encoded(i, *shape)[0] for i, shape in enumerate(shapes)]
    datums += [_image(5, 3, 9, 2)]
    run = _Run(_param(_write(tmp_path / "db", datums), 1))
    for i in range(20):
        data, label = run.batch()
        assert label[0] == i % 6
        assert data.shape == (1, 3, *[*shapes, (9, 2)][i % 6])
        assert run.tops[0].shape == data.shape


def test_closed_and_forgotten_layers_leave_no_threads(tmp_path, images, new_threads):
    encoded = _write(tmp_path / "db", [_encoded(i, 9, 9)[0] for i in range(8)])
    for i in range(20):
        run = _Run(_param((images, encoded)[i % 2], 4))
        run.batch()
        if i % 4 < 2:
            run.layer.close()
    del run
    gc.collect()
    # The threads of forgotten layers are asked to end, and end soon afterwards.
    deadline = time.monotonic() + 30
    while new_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not new_threads()


@pytest.mark.parametrize("kind", ["Data", "HDF5Data", "ImageData"])
def test_a_net_that_is_dropped_ends_its_readers_without_the_collector(
    tmp_path, images, new_threads, kind
):
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["data"] = np.ones((5, 2), np.float32)
    (tmp_path / "rows.txt").write_text(f"{tmp_path}/rows.h5\n")
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((9, 9, 3), np.uint8))
    (tmp_path / "images.txt").write_text("a.png 1\n")
    options = {
        "Data": f"data_param {{ source: '{images}' batch_size: 2 backend: LMDB }}",
        "HDF5Data": f"hdf5_data_param {{ source: '{tmp_path}/rows.txt' batch_size: 2 }}",
        "ImageData": f"image_data_param {{ source: '{tmp_path}/images.txt' batch_size: 2"
        f" root_folder: '{tmp_path}/' }}",
    }[kind]
    tops = "top: 'data'" if kind == "HDF5Data" else "top: 'data' top: 'label'"
    text = f"layer {{ name: 'd' type: '{kind}' {tops} {options} }}"
    gc.disable()
    try:
        net = Net(text_format.Parse(text, caffe_pb2.NetParameter()))
        net.forward()
        assert new_threads() or kind == "HDF5Data"
        parts = [weakref.ref(part) for part in (net, *net.layers)]
        del net
        assert [part() for part in parts] == [None, None]
        deadline = time.monotonic() + 30
        while new_threads() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not new_threads()
    finally:
        gc.enable()


def _fails(param, *words: str, error=DataError, batches=3) -> None:
    with pytest.raises(error) as caught:
        run = _Run(param, where="net.prototxt:7")
        for _ in range(batches):
            run.batch()
    message = str(caught.value)
    assert message.startswith("net.prototxt:7: layer 'd' (Data): ") and "\n" not in message
    for word in words:
        assert word in message, message


def test_configuration_errors(images):
    param = _param(images, 0)
    _fails(param, "batch_size", error=LayerError)
    _fails(_param("", 1), "source", error=LayerError)
    param = _param(images, 1)
    param.data_param.prefetch = 0
    _fails(param, "prefetch", error=LayerError)


def test_missing_and_foreign_database(tmp_path, images):
    _fails(_param(tmp_path / "none", 1), "does not exist", os.getcwd())
    param = _param(images, 1)
    param.data_param.ClearField("backend")
    _fails(param, "looks like an LMDB", "backend: LMDB")


def test_a_transform_that_does_not_fit(images):
    _fails(_param(images, 1, crop_size=11), "crop_size 11")
    _fails(_param(images, 1, mean_file="no.mean"), "no.mean")


def test_bad_records_are_named(tmp_path):
    good = [_image(i) for i in range(6)]
    cases = {
        "not a Datum": b"\x0c\x0c",
        "found 7 bytes and 0 floats": caffe_pb2.Datum(
            channels=3, height=12, width=10, data=b"7" * 7
        ),
        "must be positive": caffe_pb2.Datum(data=b"x"),
        "cannot be decoded": caffe_pb2.Datum(data=b"no image", encoded=True),
        "must have one shape": _image(0, 3, 12, 11),
    }
    for number, (words, bad) in enumerate(cases.items()):
        path = _write(tmp_path / f"db{number}", [*good, bad, *good])
        _fails(_param(path, 4), words, str(path), "record 6 (key '00000006')")


def test_encoded_image_of_16_bits(tmp_path):
    data = cv2.imencode(".png", np.zeros((4, 4), np.uint16))[1].tobytes()
    path = _write(tmp_path / "db", [caffe_pb2.Datum(data=data, encoded=True)])
    _fails(_param(path, 1), "8 bits", "uint16")


@pytest.fixture
def _options():
    yield
    set_options(ReadingOptions())


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("threads", [(2, 1), (3, 3)])
def test_threads_do_not_change_the_batches(tmp_path, images, shuffle, threads, _options):
    encoded = _write(tmp_path / "db", [_encoded(i, 9, 8)[0] for i in range(23)])
    for path in (images, encoded):
        param = _param(path, 4, crop_size=5, mirror=True)
        param.data_param.shuffle = shuffle
        set_options(ReadingOptions(1, 1))
        one = _Run(param)
        set_options(ReadingOptions(*threads))
        many = _Run(param)
        for _ in range(40):
            assert all(map(np.array_equal, one.batch(), many.batch()))
        many.layer.close()


@pytest.mark.parametrize("backend", ["LMDB", "LEVELDB"])
def test_ranks_share_shuffled_epochs(tmp_path, backend):
    with create_database(str(tmp_path / "db"), backend.lower()) as writer:
        for i in range(15):
            writer.put(b"%03d" % i, _image(i).SerializeToString())
    param = _param(tmp_path / "db", 3)
    param.data_param.backend = caffe_pb2.DataParameter.DB.Value(backend)
    param.data_param.shuffle = True
    ranks = [_Run(param, shard=Shard(r, 5)) for r in range(5)]
    epochs = []
    for _ in range(4):
        batches = [run.batch() for run in ranks]
        labels = np.concatenate([label for _, label in batches]).astype(int).tolist()
        assert sorted(labels) == list(range(15))
        for data, label in batches:
            for image, number in zip(data, label):
                datum = _image(int(number))
                assert image.astype(np.uint8).tobytes() == datum.data
        epochs.append(tuple(labels))
    assert len(set(epochs)) == 4


def test_bad_record_of_a_shuffled_database_is_named(tmp_path):
    path = _write(tmp_path / "db", [*(_image(i) for i in range(5)), b"\x0c\x0c"])
    param = _param(path, 3)
    param.data_param.shuffle = True
    _fails(param, "not a Datum", "record 5 (key '00000005')")


def test_partitions_of_ranks_without_a_shared_file_system(tmp_path, _options):
    for rank in range(2):
        _write(tmp_path / f"db_{rank}", [_image(10 * rank + i) for i in range(4 + rank)])
    set_options(ReadingOptions(shared_file_system=False))
    runs = [_Run(_param(tmp_path / "db", 3), shard=Shard(rank, 2)) for rank in range(2)]
    labels = [[int(v) for _ in range(3) for v in run.batch()[1]] for run in runs]
    assert labels == [[0, 1, 2, 3, 0, 1, 2, 3, 0], [10, 11, 12, 13, 14, 10, 11, 12, 13]]
    again = _Run(_param(tmp_path / "db", 3), shard=Shard(1, 2))
    again.layer.set_state(runs[1].layer.state())
    assert again.batch()[1].tolist() == [14, 10, 11]
    _fails(_param(tmp_path / "other", 1), "other_0", "does not exist")


@pytest.mark.parametrize("cache", ["none", "records"])
def test_ranks_with_their_own_databases_draw_independently(tmp_path, cache, _options):
    for rank in range(2):
        _write(tmp_path / f"db_{rank}", [_image(i) for i in range(8)])
    set_options(ReadingOptions(shared_file_system=False, cache=cache))
    cropped = _param(tmp_path / "db", 8, crop_size=2, mirror=True)
    shuffled = _param(tmp_path / "db", 8)
    shuffled.data_param.shuffle = True
    for param, top in ((cropped, 0), (shuffled, 1)):
        runs = [_Run(param, shard=Shard(rank, 2), phase=TRAIN) for rank in range(2)]
        mine, others = (run.batch()[top] for run in runs)
        assert not np.array_equal(mine, others)
        again = _Run(param, shard=Shard(1, 2), phase=TRAIN, seed=2)
        again.layer.restore([run.layer.state() for run in runs])
        assert np.array_equal(again.batch()[top], runs[1].batch()[top])
        for run in (*runs, again):
            run.layer.close()


def test_bad_images_of_a_database_can_be_skipped(tmp_path, caplog, _options):
    datums = [_encoded(i, 6, 5)[0] for i in range(5)]
    datums[2] = caffe_pb2.Datum(data=b"no image", encoded=True, label=2)
    set_options(ReadingOptions(on_error="skip"))
    run = _Run(_param(_write(tmp_path / "db", datums), 5))
    assert run.batch()[1].tolist() == [0, 1, 3, 3, 4]
    assert "record 2 (key '00000002') cannot be decoded" in caplog.text
    run.layer.close()


def test_records_without_an_image_can_be_skipped(tmp_path, caplog, _options):
    path = str(tmp_path / "db")
    with create_database(path, "lmdb") as writer:
        for i in range(6):
            datum = caffe_pb2.Datum(channels=1, height=2, width=2, data=bytes(4), label=i)
            if i == 3:
                datum.data = b"ab"
            value = b"\xff\xffjunk" if i in (1, 2) else datum.SerializeToString()
            writer.put(b"%08d" % i, value)
    set_options(ReadingOptions(on_error="skip"))
    run = _Run(_param(path, 6))
    assert run.batch()[1].tolist() == [0, 4, 4, 4, 4, 5]
    for words in ("record 1 (key '00000001') is not a Datum", "record 3 (key '00000003') should"):
        assert words in caplog.text
    run.layer.close()


def test_hdf5_output(tmp_path):
    param = caffe_pb2.LayerParameter(name="out", type="HDF5Output")
    param.hdf5_output_param.file_name = str(tmp_path / "out.h5")
    data, label = Blob((3, 2, 4)), Blob((3,))
    for rank in range(2):
        layer = layer_class("HDF5Output")(param, LayerContext(shard=Shard(rank, 2)))
        layer.setup([data, label], [])
        layer.reshape([data, label], [])
        for i in range(3):
            data.data[...] = np.arange(24).reshape(3, 2, 4) + 100 * i + rank
            label.data[...] = i
            layer.forward([data, label], [])
        layer.close()
    for rank, name in enumerate(["out.h5", "out.h5.1"]):
        with h5py.File(tmp_path / name) as file:
            assert file["data"].shape == (9, 2, 4, 1) and file["label"].shape == (9, 1, 1, 1)
            assert file["data"].dtype == np.float32
            assert file["label"][:, 0, 0, 0].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
            assert file["data"][8, 1, 3, 0] == 223 + rank
    label.reshape(2)
    with pytest.raises(LayerError, match="3 and 2 rows"):
        layer.reshape([data, label], [])
    param.hdf5_output_param.file_name = str(tmp_path / "no" / "out.h5")
    with pytest.raises(LayerError, match="cannot write"):
        layer_class("HDF5Output")(param, LayerContext()).setup([data, label], [])
