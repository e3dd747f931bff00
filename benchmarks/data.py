"""Measures the reading speed of data layers, and of a bare loop of lmdb reads and OpenCV decodes.

usage: python benchmarks/data.py [--images N] [--side N] [--crop N] [--seconds S] [--threads 1,2,4]

Makes databases of JPEG images and of raw images of MNIST's and CIFAR's size in a temporary folder.
The bare loop only reads and decodes, in one thread; ours also crops, mirrors, subtracts means and
fills batches.  They take turns.  As with a real data set, the images do not fit into the
processor's caches.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median

import cv2
import lmdb
import numpy as np

from pycaffe_dist.blob import Blob
from pycaffe_dist.data.options import ReadingOptions, set_options
from pycaffe_dist.data.writers import create_database
from pycaffe_dist.layers.base import LayerContext, layer_class
from pycaffe_dist.schema import caffe_pb2
from pycaffe_dist.threads import set_threads

ROUNDS = 5


def write_images(path: str, count: int, side: int) -> None:
    """Write JPEG files of smooth noise, with about the file size of photographs."""
    rng = np.random.default_rng(0)
    with create_database(path, "lmdb") as writer:
        for i in range(count):
            small = rng.integers(0, 256, (side // 8, side // 8, 3), np.uint8)
            image = cv2.resize(small, (side, side), interpolation=cv2.INTER_CUBIC)
            image = cv2.add(image, rng.integers(0, 12, image.shape, np.uint8))
            data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes()
            datum = caffe_pb2.Datum(data=data, label=i % 1000, encoded=True)
            writer.put(b"%08d" % i, datum.SerializeToString())


def write_raw(path: str, count: int, channels: int, side: int) -> None:
    """Write raw images."""
    size = channels * side * side
    pixels = np.random.default_rng(0).integers(0, 256, (count, size), np.uint8)
    datum = caffe_pb2.Datum(channels=channels, height=side, width=side)
    with create_database(path, "lmdb") as writer:
        for i in range(count):
            datum.data, datum.label = pixels[i].tobytes(), i % 10
            writer.put(b"%08d" % i, datum.SerializeToString())


def bare_loop(path: str) -> Iterator[int]:
    """Read and decode record after record; yield the number so far."""
    cv2.setNumThreads(1)
    done = 0
    with lmdb.open(path, readonly=True, lock=False) as env, env.begin(buffers=True) as transaction:
        while True:
            for value in transaction.cursor().iternext(keys=False):
                datum = caffe_pb2.Datum.FromString(bytes(value))
                if datum.encoded:
                    cv2.imdecode(np.frombuffer(datum.data, np.uint8), cv2.IMREAD_COLOR)
                else:
                    np.frombuffer(datum.data, np.uint8)
                done += 1
                yield done


def layer_loop(path: str, batch: int, crop: int, threads: tuple[int, int]) -> Iterator[int]:
    """Run a Data layer; yield the number of records so far."""
    set_options(ReadingOptions(*threads))
    param = caffe_pb2.LayerParameter(name="data", type="Data", top=["data", "label"])
    param.data_param.source, param.data_param.batch_size = path, batch
    param.data_param.backend = caffe_pb2.DataParameter.LMDB
    if crop:
        param.transform_param.crop_size, param.transform_param.mirror = crop, True
        param.transform_param.mean_value.extend((104, 117, 123))
    layer = layer_class("Data")(param, LayerContext(seed=1))
    tops = [Blob(), Blob()]
    layer.setup([], tops)
    layer.reshape([], tops)
    done = 0
    try:
        while True:
            layer.forward([], tops)
            done += batch
            yield done
    finally:
        layer.close()


def rate(loop: Callable[[], Iterator[int]], seconds: float) -> tuple[float, float]:
    """Return a loop's records per second, and per second of all its threads' processor time.

    The start is not counted.
    """
    with _closing(loop()) as records:
        warm = time.perf_counter() + 0.2 * seconds
        while time.perf_counter() < warm:
            before = next(records)
        began, busy = time.perf_counter(), time.process_time()
        while (now := time.perf_counter() - began) < seconds:
            done = next(records)
        return (done - before) / now, (done - before) / (time.process_time() - busy)


@contextmanager
def _closing(records: Iterator[int]) -> Iterator[Iterator[int]]:
    try:
        yield records
    finally:
        records.close()


def report(name: str, loops: dict[str, Callable[[], Iterator[int]]], seconds: float) -> None:
    """Measure the loops in turns; print medians, also of ratios to the first one of a turn."""
    turns = [{label: rate(loop, seconds) for label, loop in loops.items()} for _ in range(ROUNDS)]
    first = next(iter(loops))
    print(f"{name:<36} records/s        per second of processor time")
    for label in loops:
        line = f"  {label:<32}"
        for kind in (0, 1):
            median_rate = median(turn[label][kind] for turn in turns)
            ratio = median(turn[label][kind] / turn[first][kind] for turn in turns)
            line += f"{median_rate:>10.0f} {ratio:5.2f}  "
        print(line.rstrip())


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=1600)
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--crop", type=int, default=227)
    parser.add_argument("--seconds", type=float, default=2.0)
    cores = os.cpu_count() or 1
    usual = ",".join(str(n) for n in (1, 2, 4, 8) if n <= cores)
    parser.add_argument("--threads", default=usual, help="numbers of threads")
    options = parser.parse_args()
    set_threads(cores)
    counts = [int(n) for n in options.threads.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        photos, crop = os.path.join(folder, "photos"), options.crop
        write_images(photos, options.images, options.side)

        def reading(path: str, batch: int, crop: int, threads: tuple[int, int]) -> Callable:
            return lambda: layer_loop(path, batch, crop, threads)

        loops: dict[str, Callable] = {"lmdb + OpenCV, one thread": lambda: bare_loop(photos)}
        for n in counts:
            loops[f"1 reader, {n} decoder(s)"] = reading(photos, 32, crop, (1, n))
        for n in counts[1:]:
            loops[f"{n} readers, 1 decoder"] = reading(photos, 32, crop, (n, 1))
        report(f"JPEG {options.side}x{options.side}, crop {crop}, mirror, means",
               loops, options.seconds)  # fmt: skip
        for name, channels, side in (("raw 28x28", 1, 28), ("raw 32x32, color", 3, 32)):
            raw = os.path.join(folder, str(side))
            write_raw(raw, 10000, channels, side)
            loops = {"lmdb + protobuf, one thread": partial(bare_loop, raw)}
            for n in counts:
                loops[f"{n} reader(s)"] = reading(raw, 64, 0, (n, 1))
            report(name, loops, options.seconds)


if __name__ == "__main__":
    main()
