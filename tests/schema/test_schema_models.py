"""Every prototxt in models/ can be read, and related files agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from pycaffe_dist.schema import caffe_pb2, text

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "models").rglob("*.prototxt"))
SOLVERS = [path for path in FILES if "solver" in path.name]
NETS = [path for path in FILES if path not in SOLVERS]


def _id(path: Path) -> str:
    return str(path.relative_to(ROOT / "models"))


def test_files_with_caffes_names_exist():
    assert {path.stem for path in FILES} >= {
        "lenet", "lenet_train_test", "lenet_solver",
        "cifar10_quick", "cifar10_quick_train_test",
        "cifar10_quick_solver", "cifar10_quick_solver_lr1",
        "cifar10_full", "cifar10_full_train_test",
        "cifar10_full_solver", "cifar10_full_solver_lr1", "cifar10_full_solver_lr2",
    }  # fmt: skip


@pytest.mark.parametrize("path", SOLVERS, ids=_id)
def test_solvers(path, caplog):
    solver = text.read_solver(path)
    assert caplog.messages == []  # nothing in it is outdated
    assert (ROOT / solver.net).is_file()
    assert (ROOT / solver.snapshot_prefix).parent.is_dir()
    assert solver.solver_mode == caffe_pb2.SolverParameter.CPU
    assert solver.max_iter
    assert solver.base_lr > 0
    assert solver.lr_policy


@pytest.mark.parametrize("path", NETS, ids=_id)
def test_every_bottom_is_a_top_before(path, caplog):
    net = text.read_net(path)
    assert caplog.messages == []
    assert net.name
    for phase in (caffe_pb2.TRAIN, caffe_pb2.TEST):
        tops = set()
        for layer in net.layer:
            if layer.include and phase not in [rule.phase for rule in layer.include]:
                continue
            assert set(layer.bottom) <= tops, (layer.name, phase)
            tops |= set(layer.top)


PAIRS = {
    path: path.with_name(path.name.replace("_train_test", ""))
    for path in NETS
    if path.stem.endswith("_train_test")
}


@pytest.mark.parametrize("path", [path for path in PAIRS if PAIRS[path].exists()], ids=_id)
def test_deploy_nets_take_the_trained_weights(path):
    def sizes(net):
        wanted = {}
        for layer in net.layer:
            if layer.type == "Convolution":
                conv = layer.convolution_param
                wanted[layer.name] = (conv.num_output, list(conv.kernel_size), list(conv.pad))
            elif layer.type == "InnerProduct":
                wanted[layer.name] = layer.inner_product_param.num_output
        # The second branch of a pair has the first one's weights.
        return {name: size for name, size in wanted.items() if not name.endswith("_p")}

    trained = text.read_net(path)
    deployed = text.read_net(PAIRS[path])
    assert sizes(trained) == sizes(deployed)
    assert deployed.layer[0].type == "Input"
    assert deployed.layer[-1].type == ("InnerProduct" if "siamese" in path.stem else "Softmax")
