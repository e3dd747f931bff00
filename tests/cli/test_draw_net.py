"""`pcaffe draw_net`: nets as graphs with repeated blocks once, and as a page."""

from __future__ import annotations

import re
from pathlib import Path

import cv2
import pytest
from tool_runs import run

from pycaffe_dist.cli import draw_net
from pycaffe_dist.errors import WRONG_INPUT
from pycaffe_dist.net.rules import kept_layers, with_state
from pycaffe_dist.net_graph import Node, blocks_of, nodes_of
from pycaffe_dist.schema import caffe_pb2, text

MODELS = Path(__file__).parents[2] / "models"


def nodes_in(name: str) -> list[Node]:
    (path, *_) = sorted((MODELS / name).glob("*train*.prototxt"))
    net = with_state(text.read_net(str(path)), caffe_pb2.TRAIN)
    return nodes_of([net.layer[index] for index in kept_layers(net, log=False)])


def draw(tmp_path, name: str, *flags: str, to: str = "net.raw") -> str:
    (path, *_) = sorted((MODELS / name).glob("*train*.prototxt"))
    assert run(draw_net, str(path), str(tmp_path / to), *flags) == 0
    return (tmp_path / to).read_text()


def test_layers_in_place_are_in_their_producers():
    nodes = {node.name: node for node in nodes_in("lenet")}
    assert [layer.name for layer in nodes["ip1"].layers] == ["ip1", "relu1"]
    assert nodes["ip1"].title == "InnerProduct, 500, ReLU"
    assert [nodes["mnist"].number, nodes["ip2"].number] == sorted(nodes["loss"].inputs)


def test_blocks_of_resnet_are_there_once():
    blocks = [block for block in blocks_of(nodes_in("resnet50")) if block.count > 1]
    assert [(block.nodes[0].name, block.count) for block in blocks] == [
        ("res2b_branch2a", 2),
        ("res3b_branch2a", 3),
        ("res4b_branch2a", 5),
        ("res5b_branch2a", 2),
    ]
    assert blocks[1].others == ["res3c_branch2a", "res3d_branch2a"]
    assert [node.name for node in blocks[0].nodes][-1] == "res2b"


@pytest.mark.parametrize("name", ["resnet50", "resnet152", "bvlc_googlenet", "mobilenet_v1"])
def test_blocks_hold_every_node(name):
    nodes = nodes_in(name)
    blocks = blocks_of(nodes)
    assert sum(len(block.nodes) * block.count for block in blocks) == len(nodes)
    place = 0
    for block in blocks:
        # What is left out has the settings of what is shown.
        for turn in range(block.count):
            for node in block.nodes:
                assert nodes[place].title == node.title, (turn, nodes[place].name)
                place += 1


def test_blocks_that_differ_are_not_joined():
    (block,) = [b for b in blocks_of(nodes_in("mobilenet_v1")) if b.count > 1]
    assert block.count == 5 and len(block.nodes) == 2  # of 512 channels each


def test_the_graph_of_a_folded_net(tmp_path):
    dot = draw(tmp_path, "resnet50")
    numbers = {re.match(r'[^"\\]+', label)[0]: number for number, label in
               re.findall(r'n(\d+) \[id="layer\d+" [^]]*label="([^"]*)"', dot)}  # fmt: skip
    assert "res3b_branch2a" in numbers and "res3c_branch2a" not in numbers
    edges = set(re.findall(r"n(\d+) -> n(\d+)", dot))
    # The folded block's output is the output of its last repetition; no edge goes back.
    assert (numbers["res3b"], numbers["res4a_branch1"]) in edges
    assert (numbers["res3a"], numbers["res3b"]) in edges
    assert all(int(a) < int(b) for a, b in edges)
    assert '[label="32x512x28x28"]' in dot and "147,969 parameters" in dot
    assert "3 times; also res3c_branch2a, res3d_branch2a" in dot
    unfolded = draw(tmp_path, "resnet50", "--unfold", "--rankdir=LR")
    assert "res3c_branch2a" in unfolded and 'rankdir="LR"' in unfolded


def test_a_net_that_cannot_be_built_is_drawn_without_shapes(tmp_path, capsys):
    net = tmp_path / "net.prototxt"
    net.write_text("layer { name: 'd' type: 'Data' top: 'x' data_param { batch_size: 2 } }")
    assert run(draw_net, str(net), str(tmp_path / "net.raw")) == 0
    assert "Without shapes: " in capsys.readouterr().out
    assert run(draw_net, str(net), str(tmp_path / "net.raw"), "--shape=1,2") == WRONG_INPUT


def test_all_phases_need_blobs(tmp_path, capsys):
    net = MODELS / "lenet" / "lenet_train_test.prototxt"
    assert run(draw_net, str(net), str(tmp_path / "net.raw"), "--phase=ALL") == WRONG_INPUT
    assert "--phase=ALL needs --blobs" in capsys.readouterr().err
    assert run(draw_net, str(net), str(tmp_path / "net.raw"), "--blobs") == 0
    assert "octagon" in (tmp_path / "net.raw").read_text()
    assert run(draw_net, str(net), "net.raw", "--blobs", "--unfold") == WRONG_INPUT
    assert "--unfold is not for drawings with --blobs" in capsys.readouterr().err


def test_a_page_has_the_layers_and_their_definitions(tmp_path):
    pytest.importorskip("pygraphviz")
    page = draw(tmp_path, "bvlc_googlenet", to="net.html")
    assert page.count("<svg") == 1 and 'id="layer5"' in page
    assert 'name: \\"inception_4c/5x5\\"' in page
    assert not re.search(r'(src|href)="http', page)


def test_googlenet_fits_a_screen_in_width(tmp_path):
    pytest.importorskip("pygraphviz")
    (path, *_) = sorted((MODELS / "bvlc_googlenet").glob("*train*.prototxt"))
    assert run(draw_net, str(path), str(tmp_path / "net.png")) == 0
    assert cv2.imread(str(tmp_path / "net.png")).shape[1] < 1500
