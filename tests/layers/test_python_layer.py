"""Layers that users write in Python."""

from __future__ import annotations

import sys
import textwrap

import numpy as np
import pytest
from google.protobuf import text_format
from layer_harness import LayerHarness

from pycaffe_dist.blob import Blob
from pycaffe_dist.cli.main import main
from pycaffe_dist.data.partition import Shard
from pycaffe_dist.errors import LayerError
from pycaffe_dist.layers import LayerContext, layer_class
from pycaffe_dist.layers.base import Need
from pycaffe_dist.schema import caffe_pb2

MODULE = """
    import numpy as np
    from pycaffe_dist.layers.base import Need
    from pycaffe_dist.layers.python import PythonLayerBase

    class Times(PythonLayerBase):
        backward_needs_bottom = Need.NONE

        def setup(self, bottom, top):
            self.factor = eval(self.param_str)["factor"]

        def reshape(self, bottom, top):
            top[0].reshape(*bottom[0].data.shape)

        def forward(self, bottom, top):
            top[0].data[...] = self.factor * bottom[0].data

        def backward(self, top, propagate_down, bottom):
            if propagate_down[0]:
                bottom[0].diff[...] = self.factor * top[0].diff

    class Learnt(PythonLayerBase):
        def setup(self, bottom, top):
            self.blobs.add_blob(3)
            self.blobs[0].data[...] = 2

        def reshape(self, bottom, top):
            top[0].reshape(*bottom[0].shape)

        def forward(self, bottom, top):
            top[0].data[...] = bottom[0].data * self.blobs[0].data

        def backward(self, top, propagate_down, bottom):
            self.blobs[0].diff[...] += (top[0].diff * bottom[0].data).sum(axis=0)
            if propagate_down[0]:
                bottom[0].diff[...] = top[0].diff * self.blobs[0].data

    class Counter(PythonLayerBase):
        def setup(self, bottom, top):
            self.count = 0

        def reshape(self, bottom, top):
            top[0].reshape(1)

        def forward(self, bottom, top):
            top[0].data[...] = self.count
            self.count += 1

    class Phase(PythonLayerBase):
        def reshape(self, bottom, top):
            top[0].reshape()

        def forward(self, bottom, top):
            top[0].data[()] = self.phase

    class Broken(PythonLayerBase):
        def forward(self, bottom, top):
            np.zeros(3)[7]
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "users_layers.py").write_text(textwrap.dedent(MODULE))
    (tmp_path / "broken_module.py").write_text("import module_that_is_not_there\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in ("users_layers", "broken_module"):
        sys.modules.pop(name, None)


def text(layer, bottoms="x", module="users_layers", options=""):
    names = "".join(f' bottom: "{name}"' for name in bottoms)
    return (
        f'type: "Python"{names} top: "y" '
        f'python_param {{ module: "{module}" layer: "{layer}" {options} }}'
    )


def test_forward_backward_and_param_str():
    x = np.arange(6.0).reshape(2, 3)
    harness = LayerHarness(text("Times", options="param_str: \"{'factor': 10}\""), {"x": x})
    np.testing.assert_array_equal(harness.forward()[0], 10 * x)
    harness.top[0].diff[...] = x
    harness.backward()
    np.testing.assert_array_equal(harness.bottom[0].diff, 10 * x)
    assert harness.forward({"x": np.ones((4, 5))})[0].shape == (4, 5)
    assert harness.layer.backward_needs_bottom == Need.NONE


def test_parameters():
    harness = LayerHarness(text("Learnt"), {"x": np.ones((2, 3))})
    assert [blob.shape for blob in harness.layer.blobs] == [(3,)]
    np.testing.assert_array_equal(harness.forward()[0], np.full((2, 3), 2))
    other = Blob((3,), np.float64)
    other.data[...] = 5
    harness.layer.blobs[0] = other
    np.testing.assert_array_equal(harness.forward()[0], np.full((2, 3), 5))
    harness.top[0].diff.fill(1)
    harness.backward()
    np.testing.assert_array_equal(other.diff, [2, 2, 2])
    assert harness.layer.backward_needs_bottom == Need.VALUE


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_phase(phase):
    harness = LayerHarness(text("Phase"), {"x": np.zeros(1)}, phase=phase)
    assert harness.forward()[0] == caffe_pb2.Phase.Value(phase)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_shared_source_serves_the_ranks_in_turn(rank):
    param = text_format.Parse(
        text("Counter", "", options="share_in_parallel: true"), caffe_pb2.LayerParameter()
    )
    layer = layer_class("Python")(param, LayerContext(shard=Shard(rank, 3)))
    top = [Blob()]
    layer.setup([], top)
    layer.reshape([], top)
    seen = []
    for _ in range(3):
        layer.forward([], top)
        seen.append(float(top[0].data[0]))
    assert seen == [rank, rank + 3, rank + 6]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layer": "Tims"}, "module 'users_layers' has no class 'Tims'; did you mean 'Times'"),
        ({"layer": "Times", "module": "nowhere"}, "found no module 'nowhere' in the working dir"),
        ({"layer": "X", "module": "broken_module"}, "import raised ModuleNotFoundError"),
        ({"layer": ""}, "needs python_param"),
        (
            {"layer": "Times"},
            r"users_layers.Times: setup raised SyntaxError: .*users_layers.py:\d+\)",
        ),
        ({"layer": "Broken"}, r"forward raised IndexError: .*users_layers.py:\d+\)"),
    ],
)
def test_errors_say_what_went_wrong_and_where(arguments, message):
    with pytest.raises(LayerError, match=message):
        LayerHarness(text(**arguments), {"x": np.zeros(2)}).forward()


NET = """
layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: 2 dim: 3 }} }} }}
layer {{ name: "{name}" {text} }}
"""


@pytest.mark.parametrize(
    "command", ["summarize FILE", "time --model=FILE --iterations=2", "warmup --model=FILE"]
)
def test_every_command_says_once_which_file_is_imported(tmp_path, capsys, command):
    name = command.split()[0]  # other tests of this process have logged files, too
    net = NET.format(name=name, text=text("Times", options="param_str: \"{'factor': 10}\""))
    (tmp_path / "net.prototxt").write_text(net)
    assert main(command.replace("FILE", "net.prototxt").split()) == 0
    told = f"Layer '{name}' runs module 'users_layers' of {tmp_path}/users_layers.py"
    assert capsys.readouterr().err.count(told) == 1
