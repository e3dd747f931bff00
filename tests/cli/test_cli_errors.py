"""Bad input to the commands: one line that says what is wrong, status 1, nothing overwritten."""

from __future__ import annotations

import os
import re
from pathlib import Path

import lmdb
import numpy as np
import pytest

from pycaffe_dist.cli.main import main
from pycaffe_dist.errors import FAILURE, WRONG_INPUT
from pycaffe_dist.schema import caffe_pb2

NET = """
name: "tiny"
layer {{
  name: "data" type: "Data" top: "data" top: "label"
  transform_param {{ {transform} }}
  data_param {{ source: "{source}" batch_size: 4 backend: LMDB }}
}}
layer {{
  name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param {{ num_output: 3 weight_filler {{ type: "xavier" }} }}
}}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }}
"""
SOLVER = """
net: "net.prototxt"
base_lr: {base_lr}
lr_policy: "fixed"
max_iter: 4
display: 1
snapshot: 2
snapshot_prefix: "out/tiny"
solver_mode: CPU
random_seed: 1
"""


def write_lmdb(path: Path, labels: list[int], pixel: int | None = None) -> None:
    """Write one 2x3x3 image per label."""
    rng = np.random.default_rng(0)
    with lmdb.open(str(path), map_size=1 << 22) as env, env.begin(write=True) as txn:
        for number, label in enumerate(labels):
            datum = caffe_pb2.Datum(channels=2, height=3, width=3, label=label)
            datum.data = rng.integers(0, 256, 18, np.uint8).tobytes()
            txn.put(f"{number:08d}".encode(), datum.SerializeToString())


class Job:
    """A valid training job in the current folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        (folder / "out").mkdir()
        write_lmdb(folder / "train_lmdb", [0, 1, 2, 0, 1, 2, 0, 1])
        self.write()

    def write(self, source: str = "train_lmdb", transform: str = "", base_lr: str = "0.01") -> None:
        net = NET.format(source=source, transform=transform)
        (self.folder / "net.prototxt").write_text(net)
        (self.folder / "solver.prototxt").write_text(SOLVER.format(base_lr=base_lr))

    def files(self) -> dict[str, bytes]:
        """Return the files in the folder of snapshots."""
        return {path.name: path.read_bytes() for path in self.folder.glob("out/*")}


@pytest.fixture
def job(tmp_path, monkeypatch) -> Job:
    monkeypatch.chdir(tmp_path)
    return Job(tmp_path)


@pytest.fixture
def fails(job, capsys):
    """Run a command that must fail; return its last line's message."""

    def run(*args: str) -> str:
        before = job.files()
        assert main(list(args)) in (FAILURE, WRONG_INPUT)
        log = capsys.readouterr().err
        assert "Traceback" not in log
        fatal = [line for line in log.splitlines() if re.match(r"F\d{4} ", line)]
        assert len(fatal) == 1, log
        assert log.splitlines()[-1] == fatal[0], "the message is the last line, and has one line"
        assert job.files() == before
        return fatal[0].partition("] ")[2]

    return run


def test_the_job_itself_is_in_order(job):
    assert main(["train", "--solver=solver.prototxt"]) == 0
    assert "tiny_iter_4.caffemodel" in job.files()
    weights = "--weights=out/tiny_iter_4.caffemodel"
    assert main(["test", "--model=net.prototxt", weights, "--iterations=2"]) == 0
    assert main(["test", "--model=net.prototxt", weights, "--precision=bfloat16"]) == 0
    assert main(["time", "--model=net.prototxt", "--iterations=2"]) == 0


def test_a_solver_that_is_missing(fails):
    message = fails("train", "--solver=none.prototxt")
    assert "none.prototxt" in message


def test_json_is_for_a_check(fails):
    message = fails("train", "--solver=solver.prototxt", "--json")
    assert message.startswith("flag --json is for --check")


def test_a_net_that_is_missing(job, fails):
    (job.folder / "net.prototxt").unlink()
    assert "net.prototxt" in fails("train", "--solver=solver.prototxt")
    assert "net.prototxt" in fails("time", "--model=net.prototxt")


def test_a_misspelt_field_is_named_with_its_place(job, fails):
    text = (job.folder / "net.prototxt").read_text()
    (job.folder / "net.prototxt").write_text(text.replace("num_output", "num_outputs"))
    message = fails("train", "--solver=solver.prototxt")
    assert "net.prototxt:10" in message
    assert "num_outputs" in message
    assert "num_output'" in message


def test_a_layer_type_that_does_not_exist(job, fails):
    text = (job.folder / "net.prototxt").read_text()
    (job.folder / "net.prototxt").write_text(text.replace('"InnerProduct"', '"InnerProdukt"'))
    message = fails("train", "--solver=solver.prototxt")
    assert "InnerProdukt" in message
    assert "did you mean 'InnerProduct'" in message


def test_a_solver_field_is_named_with_its_line(job, fails):
    (job.folder / "solver.prototxt").write_text('net: "n"\nmax_iter: 1\nlr_policy: "invv"\n')
    assert "solver.prototxt:3: unknown lr_policy 'invv'" in fails(
        "train", "--solver=solver.prototxt"
    )


def test_a_solver_without_a_net(job, fails):
    (job.folder / "solver.prototxt").write_text('base_lr: 0.01 lr_policy: "fixed" max_iter: 1')
    assert "net" in fails("train", "--solver=solver.prototxt")
    (job.folder / "solver.prototxt").write_text('net: "" lr_policy: "fixed" max_iter: 1')
    assert "the name of the solver's net file is empty" in fails(
        "train", "--solver=solver.prototxt"
    )


TEST_NET = """
test_iter: 1 test_interval: 2
test_net_param {
  layer { name: "data" type: "Data" top: "data" %s
    data_param { source: "%s" batch_size: 4 backend: LMDB } }
}
"""
MEAN = "transform_param { mean_file: 'none' }"


@pytest.mark.parametrize(
    "old, new, flags, message",
    [
        ('"fixed"', '"fixd"', [], "unknown lr_policy 'fixd'; did you mean 'fixed'?"),
        ("random_seed: 1", "type: 'Adma'", [], "did you mean 'Adam'?"),
        ("random_seed: 1", "weights: 'a, b'", [], "a: no such file"),
        ("", "", ["--weights=a"], "a: no such file"),
        ("", "", ["--snapshot=a.solverstate"], "a.solverstate: no such file"),
        (
            "random_seed: 1",
            TEST_NET % ("", "none_lmdb"),
            [],
            "layer 'data' (Data): LMDB 'none_lmdb' does not exist",
        ),
        ("random_seed: 1", TEST_NET % (MEAN, "train_lmdb"), [], "none: no such file"),
    ],
)
def test_checks_that_need_no_data_come_before_anything_is_built(
    job, capsys, old, new, flags, message
):
    text = (job.folder / "solver.prototxt").read_text()
    (job.folder / "solver.prototxt").write_text(text.replace(old, new, 1))
    assert main(["train", "--solver=solver.prototxt", *flags]) in (FAILURE, WRONG_INPUT)
    *before, last = capsys.readouterr().err.splitlines()
    assert message in last
    assert {line.partition("] ")[2] for line in before} <= {"Use CPU."}


def test_a_test_needs_its_weights_before_its_net(job, fails):
    job.write(source="none_lmdb")
    message = fails("test", "--model=net.prototxt", "--weights=none.caffemodel")
    assert message == "none.caffemodel: no such file"


def test_a_snapshot_that_is_missing_or_damaged(job, fails):
    assert main(["train", "--solver=solver.prototxt"]) == 0
    assert "none.solverstate" in fails(
        "train", "--solver=solver.prototxt", "--snapshot=none.solverstate"
    )
    state = job.folder / "cut.solverstate"
    state.write_bytes(job.files()["tiny_iter_4.solverstate"][:-5])
    assert "cut.solverstate" in fails("train", "--solver=solver.prototxt", f"--snapshot={state}")


def test_weights_that_are_missing_damaged_or_of_another_net(job, fails):
    assert main(["train", "--solver=solver.prototxt"]) == 0
    train = ("train", "--solver=solver.prototxt")
    assert "none.caffemodel" in fails(*train, "--weights=none.caffemodel")
    cut = job.folder / "cut.caffemodel"
    cut.write_bytes(job.files()["tiny_iter_4.caffemodel"][:-5])
    assert "cut.caffemodel" in fails(*train, f"--weights={cut}")
    text = (job.folder / "net.prototxt").read_text()
    (job.folder / "net.prototxt").write_text(text.replace("num_output: 3", "num_output: 4"))
    message = fails(*train, "--weights=out/tiny_iter_4.caffemodel")
    assert "ip" in message
    assert re.search(r"4\D+18", message)
    assert re.search(r"3\D+18", message)


def test_a_snapshot_folder_that_is_missing(job, fails):
    (job.folder / "out").rmdir()
    assert "out" in fails("train", "--solver=solver.prototxt")
    assert not (job.folder / "out").exists()


def test_a_database_that_is_missing_or_empty(job, fails):
    job.write(source="none_lmdb")
    message = fails("train", "--solver=solver.prototxt")
    assert "net.prototxt:3: layer 'data' (Data): LMDB 'none_lmdb' does not exist" in message
    assert "; pcaffe convert_imageset makes one of images" in message
    assert not (job.folder / "none_lmdb").exists()
    write_lmdb(job.folder / "empty_lmdb", [])
    job.write(source="empty_lmdb")
    message = fails("train", "--solver=solver.prototxt")
    assert "empty_lmdb" in message
    assert re.search(r"empty|no record", message.replace("empty_lmdb", ""))


def test_a_database_that_was_cut_off(job, fails):
    write_lmdb(job.folder / "cut_lmdb", list(range(3)) * 400)
    data = job.folder / "cut_lmdb" / "data.mdb"
    content = data.read_bytes()
    data.write_bytes(content[: len(content) // 3])
    job.write(source="cut_lmdb")
    assert "cut_lmdb" in fails("train", "--solver=solver.prototxt")


def test_a_record_that_is_no_image(job, fails):
    with lmdb.open("bad_lmdb", map_size=1 << 20) as env, env.begin(write=True) as txn:
        txn.put(b"00000000", b"\xff\xff\xff")
    job.write(source="bad_lmdb")
    assert "bad_lmdb" in fails("train", "--solver=solver.prototxt")


def test_a_mean_file_that_is_missing_or_of_another_size(job, fails):
    job.write(transform='mean_file: "none.binaryproto"')
    assert "none.binaryproto" in fails("train", "--solver=solver.prototxt")
    mean = caffe_pb2.BlobProto(num=1, channels=2, height=5, width=5, data=[0.0] * 50)
    (job.folder / "big.binaryproto").write_bytes(mean.SerializeToString())
    job.write(transform='mean_file: "big.binaryproto"')
    assert "big.binaryproto" in fails("train", "--solver=solver.prototxt")


def test_a_label_out_of_range(job, fails):
    write_lmdb(job.folder / "labels_lmdb", [0, 1, 7, 2])
    job.write(source="labels_lmdb")
    message = fails("train", "--solver=solver.prototxt")
    assert "loss" in message
    assert "7" in message


def test_a_loss_that_is_not_a_number_ends_the_run(job, fails):
    job.write(base_lr="1e38")
    message = fails("train", "--solver=solver.prototxt")
    assert re.search(r"iteration \d+: the loss is (nan|inf)", message)


def test_a_folder_whose_name_is_not_utf8(job, fails, monkeypatch):
    folder = os.fsdecode(b"caf\xe9")
    os.mkdir(folder)
    for name in ("net.prototxt", "solver.prototxt", "train_lmdb", "out"):
        os.rename(name, os.path.join(folder, name))
    for flag in ("solver", "weights", "snapshot"):
        rest = () if flag == "solver" else ("--solver=s",)
        message = fails("train", *rest, f"--{flag}={folder}/x")
        assert f"flag --{flag} needs a path in UTF-8, not 'caf\\udce9/x'" in message
    monkeypatch.chdir(folder)
    assert main(["train", "--solver=solver.prototxt"]) == 0
    assert main(["train", "--solver=solver.prototxt", "--snapshot=latest"]) == 0
