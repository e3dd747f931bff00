"""What notebooks show: nets, solvers and specifications as tables and drawings, and caffe.show."""

import logging
import subprocess
import sys
import types

import numpy as np
import pytest

import pycaffe_dist as caffe
from pycaffe_dist import draw, log, show
from pycaffe_dist import layers as L
from pycaffe_dist.api import process
from pycaffe_dist.errors import UsageError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def specification():
    n = caffe.NetSpec()
    n.data = L.Input(shape={"dim": [2, 3, 8, 8]})
    n.conv = L.Convolution(n.data, num_output=4, kernel_size=3, weight_filler={"type": "xavier"})
    n.second = L.Convolution(n.conv, num_output=2, kernel_size=3, weight_filler={"type": "xavier"})
    n.ip = L.InnerProduct(n.second, num_output=5, weight_filler={"type": "xavier"})
    n.prob = L.Softmax(n.ip)
    return n


@pytest.fixture
def net(folder):
    (folder / "net.prototxt").write_text(f"name: 'small <net>'\n{specification().to_proto()}")
    return caffe.Net("net.prototxt", caffe.TEST)


def test_a_net_says_what_it_is(net):
    assert repr(net) == (
        "<Net 'small <net>' (TEST): 5 layers, 351 parameters, data (2, 3, 8, 8) → prob (2, 5)>"
    )


def test_a_summary_is_a_table_for_people_and_rows_for_programs(net):
    summary = net.summary()
    assert repr(summary) == str(summary) == summary.table()
    assert "conv" in str(summary).splitlines()[3]
    assert [row.parameters for row in summary.layers] == [0, 112, 74, 165, 0]


def test_a_notebook_shows_a_nets_table_and_drawing(net):
    shown = net._repr_html_()
    assert "small &lt;net&gt;" in shown
    assert shown.count("<tr>") == 1 + 5 + 1
    assert ">351<" in shown
    assert "<svg" in shown or "needs Graphviz" in shown


def test_a_drawing_folds_repeated_blocks_and_shows_shapes(monkeypatch, folder):
    n = caffe.NetSpec()
    n.data = top = L.Input(shape={"dim": [2, 3]})
    for number in range(70):
        n[f"ip{number}"] = top = L.InnerProduct(top, num_output=3)
        n[f"relu{number}"] = top = L.ReLU(top, in_place=True)
    (folder / "deep.prototxt").write_text(str(n.to_proto()))
    drawn = []

    def note(graph, **_):
        drawn.append(graph.to_string())
        return b"<svg>"

    monkeypatch.setattr(draw.Graph, "create", note)
    shown = caffe.Net(str(folder / "deep.prototxt"), caffe.TEST)._repr_html_(), n._repr_html_()
    for page, graph in zip(shown, drawn, strict=True):
        assert page.endswith("><svg></div>") and "70 times" in graph
    assert 'label="2x3"' in drawn[0]


def test_a_drawing_has_only_what_belongs_into_a_page(monkeypatch):
    monkeypatch.setattr(draw.Graph, "create", lambda *_, **__: b"<?xml?>\n<svg>x</svg>")
    assert specification()._repr_html_().endswith("><svg>x</svg></div>")


def test_a_missing_graphviz_is_told_in_the_page(monkeypatch):
    monkeypatch.setitem(sys.modules, "pygraphviz", None)
    monkeypatch.setenv("PATH", "")
    assert "pip install &#x27;pycaffe-dist[draw]&#x27;" in specification()._repr_html_()


def test_a_large_net_is_not_drawn_in_a_page():
    n = caffe.NetSpec()
    n.data = top = L.Input(shape={"dim": [1, 1]})
    for number in range(60):
        n[f"layer{number}"] = top = L.InnerProduct(top, num_output=number + 1)
    assert "61 layers are not drawn" in n._repr_html_()


def test_a_specification_shows_its_layers():
    n = specification()
    assert repr(n) == "<NetSpec: data, conv, second, ip, prob>"
    assert repr(caffe.NetSpec()) == "<NetSpec: no tops>"
    shown = n._repr_html_()
    assert ">Convolution<" in shown
    assert "num_output: 4 kernel_size: 3" in shown


def test_a_solver_says_how_far_it_is(folder):
    (folder / "solver.prototxt").write_text("""
        base_lr: 0.5 lr_policy: "fixed" max_iter: 7 snapshot_after_train: false
        net_param {
          name: "n"
          layer { name: "d" type: "DummyData" top: "d"
                  dummy_data_param { shape { dim: 2 dim: 3 } } }
          layer { name: "ip" type: "InnerProduct" bottom: "d" top: "ip"
                  inner_product_param { num_output: 1 } }
          layer { name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "ip" top: "loss" }
        }""")
    solver = caffe.SGDSolver("solver.prototxt")
    solver.step(2)
    text = repr(solver)
    assert text.startswith("<SGDSolver of type SGD: iteration 2 of 7, learning rate 0.5, net <Net")
    assert "3 layers, 4 parameters, loss ()" in text
    assert "InnerProduct" in solver._repr_html_()


@pytest.mark.parametrize(
    ("shell", "given", "level"),
    [
        (types.SimpleNamespace(kernel=None), "", logging.WARNING),
        (types.SimpleNamespace(kernel=None), "0", logging.INFO),
        (types.SimpleNamespace(), "", logging.INFO),
        (None, "", logging.INFO),
    ],
    ids=["notebook", "notebook, all asked for", "IPython in a terminal", "program"],
)
def test_solvers_are_quiet_in_notebooks(shell, given, level, monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setenv("GLOG_minloglevel", given)
    levels = []
    monkeypatch.setattr(log, "start", lambda level, *_, **__: levels.append(level))
    process.init_log()
    assert levels == [level]


def drawn(picture):
    """Return the numbers of the image in a picture."""
    return np.asarray(picture.axes[0].images[0].get_array())


def title(picture):
    return picture.axes[0].get_title()


def test_filters_of_colors_are_tiles_in_rgb(net):
    weights = net.params["conv"][0].data
    weights[...] = 0
    weights[0, 2] = 1  # red, in BGR
    image = drawn(show.filters(net, "conv"))
    # Four tiles of 3×3 in three columns and two rows, with a white line between.
    assert image.shape == (7, 11, 3)
    assert (image[:3, :3] == [1, 0, 0]).all()
    assert (image[:3, 3] == 1).all()
    assert (image[:3, 4:7] == 0).all()
    assert (drawn(show.filters(net, "conv", bgr=False))[:3, :3] == [0, 0, 1]).all()


def test_channels_of_a_filter_are_a_row(net):
    weights = net.params["second"][0].data
    weights[...] = np.arange(8).reshape(2, 4, 1, 1)
    picture = show.filters(net, "second")
    image = drawn(picture)
    assert image.shape == (7, 15)
    np.testing.assert_allclose(image[0, ::4], np.arange(4) / 7)
    np.testing.assert_allclose(image[4, ::4], np.arange(4, 8) / 7)
    assert "8 channels of filters of 3×3; black is 0, white 7" in title(picture)
    assert "5 of 8" in title(show.filters(net, "second", most=5))


def test_an_inner_products_filters_have_the_images_shape(net):
    assert "10 channels of filters of 4×4" in title(show.filters(net, "ip"))


def test_features_are_a_samples_channels_or_bars(net):
    net.blobs["second"].data[1] = [[[0]], [[4]]]
    image = drawn(show.features(net, "second", 1))
    assert image.shape == (4, 9)
    assert (image[:, :4] == 0).all()
    assert (image[:, 5:] == 1).all()
    net.blobs["prob"].data[0] = [0.1, 0.2, 0.3, 0.4, 0]
    bars = show.features(net, "prob").axes[0].patches
    np.testing.assert_allclose([bar.get_height() for bar in bars], [0.1, 0.2, 0.3, 0.4, 0])


def test_confusion_counts_labels_in_rows_and_answers_in_columns():
    picture = show.confusion([0, 0, 1, 2], [0, 1, 1, 1], ["a", "b", "c"])
    np.testing.assert_allclose(drawn(picture), [[0.5, 0.5, 0], [0, 1, 0], [0, 1, 0]])
    assert title(picture) == "4 samples, accuracy 0.500"
    texts = [text.get_text() for text in picture.axes[0].texts]
    assert texts == ["1", "1", "", "", "1", "", "", "1", ""]
    scores = np.eye(3)[[0, 1, 1, 1]]
    np.testing.assert_allclose(drawn(show.confusion([0, 0, 1, 2], scores)), drawn(picture))


@pytest.mark.parametrize(
    ("draw_it", "message"),
    [
        (lambda net: show.filters(net, "conv1"), "layer 'conv1' is not in it; did you mean 'conv'"),
        (lambda net: show.filters(net, "prob"), "'prob' has no weights; layers with weights: conv"),
        (lambda net: show.filters(net, "conv", most=0), "at least one tile is shown, not 0"),
        (lambda net: show.features(net, "convv"), "has no blob 'convv'; did you mean 'conv'"),
        (lambda net: show.features(net, "conv", 2), "blob 'conv' has no sample 2"),
        (lambda net: show.confusion([0, 1], [0]), r"found labels \(2,\) and answers \(1,\)"),
        (lambda net: show.confusion([0, 1.5], [0, 1]), "numbers from 0 to 1, found 1.5"),
        (lambda net: show.confusion([0, -1], [0, 1]), "found -1"),
        (lambda net: show.confusion([0, 3], [0, 1], ["a", "b"]), "from 0 to 1, found 3"),
    ],
)
def test_wrong_arguments_are_named(net, draw_it, message):
    with pytest.raises(UsageError, match=message):
        draw_it(net)


def test_a_notebook_without_pyplot_gets_a_png():
    assert show.confusion([0], [0])._repr_png_().startswith(b"\x89PNG")


def test_a_missing_matplotlib_is_named():
    program = """if True:
        import sys
        sys.modules["matplotlib"] = sys.modules["matplotlib.figure"] = None
        import pycaffe_dist as caffe
        from pycaffe_dist.errors import UsageError
        try:
            caffe.show.confusion([0], [0])
        except UsageError as error:
            print(error)"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "plots need matplotlib: pip install 'pycaffe-dist[plot]'\n"


def test_a_mistyped_layer_type_names_the_nearest():
    with pytest.raises(UsageError, match="unknown layer type 'Convolutoin'; did you mean 'Convol"):
        L.Convolutoin()
    assert not hasattr(caffe.net_spec.layers, "Poolnig")
    assert L.ATypeOfAnotherProgram().fn.type_name == "ATypeOfAnotherProgram"
