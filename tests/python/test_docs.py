"""The examples of the docs and the notebooks run, and all public names of pycaffe exist."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

import pycaffe_dist
from pycaffe_dist.cli.main import main as pcaffe
from pycaffe_dist.data.digits import write_digits

DOCS = Path(__file__).parent.parent.parent / "docs"
GUIDE = DOCS / "python.md"
NOTEBOOKS = sorted(DOCS.glob("examples/*.ipynb"))
LARGEST_NOTEBOOK = 300_000  # bytes

# The public names of pycaffe 1.0's modules and classes.
NAMES = {
    "caffe": """AdaDeltaSolver AdaGradSolver AdamSolver Classifier Detector Layer NCCL Net NetSpec
        NesterovSolver RMSPropSolver SGDSolver TEST TRAIN Timer __version__ get_solver has_nccl
        init_log io layer_type_list layers log params proto set_device set_mode_cpu set_mode_gpu
        set_multiprocess set_random_seed set_solver_count set_solver_rank solver_count solver_rank
        to_proto classifier detector net_spec pycaffe _caffe""",
    "_caffe": """AdaDeltaSolver AdaGradSolver AdamSolver Blob BlobVec BoolVec DtypeVec IntVec Layer
        LayerParameter LayerVec NCCL Net NetVec NesterovSolver RMSPropSolver RawBlobVec SGDSolver
        Solver SolverParameter StringVec Timer get_solver has_nccl init_log layer_type_list log
        set_device set_mode_cpu set_mode_gpu set_multiprocess set_random_seed set_solver_count
        set_solver_rank solver_count solver_rank""",
    "pycaffe": """AdaDeltaSolver AdaGradSolver AdamSolver NCCL Net NesterovSolver RMSPropSolver
        SGDSolver Timer""",
    "io": """Transformer array_to_blobproto array_to_datum arraylist_to_blobprotovector_str
        blobproto_to_array blobprotovector_str_to_arraylist caffe_pb2 datum_to_array load_image
        np oversample resize resize_image skimage zoom""",
    "net_spec": """Counter Function Layers NetSpec OrderedDict Parameters Top assign_proto caffe_pb2
        layers param_name_dict params to_proto""",
    "coord_map": """AxisMismatchException L PASS_THROUGH_LAYERS UndefinedMapException compose
        conv_params coord_map coord_map_from_to crop crop_params inverse np""",
    "classifier": "Classifier",
    "detector": "Detector",
    "draw": """BLOB_STYLE LAYER_STYLE_DEFAULT NEURON_LAYER_STYLE caffe_pb2 choose_color_by_layertype
        draw_net draw_net_to_file get_edge_label get_layer_label get_layer_lr_mult
        get_pooling_types_dict get_pydot_graph pydot""",
    "proto": "caffe_pb2",
    "Net": """after_backward after_forward backward before_backward before_forward
        blob_loss_weights blobs bottom_names clear_param_diffs copy_from forward forward_all
        forward_backward_all inputs layer_dict layers load_hdf5 outputs params reshape save
        save_hdf5 set_input_arrays share_with top_names""",
    "Blob": """channels count data diff height num reshape shape width _gpu_data_ptr
        _gpu_diff_ptr""",
    "Layer": "blobs reshape setup type",
    "SGDSolver": """add_callback apply_update iter lr net param restore share_weights snapshot solve
        step test_nets""",
    "NCCL": "bcast new_uid",
    "Timer": "ms start stop",
    "io.Transformer": """channel_swap deprocess input_scale inputs mean preprocess raw_scale
        set_channel_swap set_input_scale set_mean set_raw_scale set_transpose transpose""",
    "Classifier": "predict",
    "Detector": "configure_crop crop detect_selective_search detect_windows",
    "NetSpec": "to_proto tops",
    "net_spec.Top": "to_proto",
}


@pytest.fixture
def caffe(monkeypatch):
    """Return the module of ``import caffe`` during the test."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    pycaffe_dist.install_as_caffe(force=True)
    yield importlib.import_module("caffe")
    for name in [name for name in sys.modules if name.split(".")[0] == "caffe"]:
        del sys.modules[name]


def left_out() -> set[str]:
    """Return the names that the guide's table lists."""
    table = GUIDE.read_text().partition("Names of pycaffe that do not exist here")[2]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def find(caffe, where: str):
    """Return the module or class of an entry of NAMES."""
    if where == "caffe":
        return caffe
    if where == "Blob":
        return caffe._caffe.Blob
    place = caffe
    for step in where.split("."):
        place = importlib.import_module(f"caffe.{step}") if step.islower() else getattr(place, step)
    return place


def has(place, name: str) -> bool:
    """Tell whether a module, or a class's instances, have a name."""
    if hasattr(place, name):
        return True
    if not isinstance(place, type):
        return False
    declared = any(name in vars(cls).get("__annotations__", ()) for cls in place.__mro__)
    source = Path(sys.modules[place.__module__].__file__).read_text()
    return declared or re.search(rf"self\.{name}(: .+)? = ", source) is not None


def test_every_public_name_exists_or_is_explained(caffe):
    explained, missing, needless = left_out(), [], []
    for where, names in NAMES.items():
        place = find(caffe, where)
        for name in names.split():
            full = name if where == "caffe" else f"{where}.{name}"
            if has(place, name) == (full in explained):
                (needless if full in explained else missing).append(full)
    assert not missing
    assert not needless


def run_examples(code: list[str], folder: Path, monkeypatch) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    # Where layers in Python are looked for that a notebook defines.
    program = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", program)
    for number, block in enumerate(code):
        exec(compile(block, f"<example {number + 1}>", "exec"), program.__dict__)


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def test_the_guides_examples_run(tmp_path, monkeypatch):
    blocks = python_blocks(GUIDE)
    assert len(blocks) > 8
    code = []
    for block in blocks:
        file = re.match(r"# (\w+\.py)\n", block)
        if file:
            (tmp_path / file[1]).write_text(block)
        else:
            code.append(block)
    with_graphviz = any("draw_net_to_file" in block for block in code)
    assert with_graphviz
    if importlib.util.find_spec("pygraphviz") is None:
        code = [block for block in code if "draw_net_to_file" not in block]
    run_examples(code, tmp_path, monkeypatch)
    assert (tmp_path / "loss.png").stat().st_size


def test_the_readmes_example_runs_without_a_warning(tmp_path, monkeypatch, caplog):
    root = DOCS.parent
    shutil.copytree(root / "models" / "lenet", tmp_path / "models" / "lenet")
    data = tmp_path / "data" / "mnist"
    data.mkdir(parents=True)
    write_digits(str(data))
    for name, part in (("train", "train"), ("test", "t10k")):
        files = (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte", f"mnist_{name}_lmdb")
        assert pcaffe(["convert_mnist_data", *(str(data / file) for file in files)]) == 0
    (block,) = python_blocks(root / "README.md")
    few = block.replace("step(100)", "step(2)").replace("iter_100", "iter_2")
    assert few.count("2)") and "iter_2." in few
    with caplog.at_level("WARNING"):
        run_examples([few], tmp_path, monkeypatch)
    assert "deprecated" not in caplog.text
    assert (tmp_path / "filters.png").stat().st_size


def test_the_commands_for_an_old_model_run(tmp_path, monkeypatch):
    page = DOCS / "guides" / "old_model.md"
    (net,) = re.findall(r"^```prototxt\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    (commands,) = re.findall(r"^```sh\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "old.prototxt").write_text(net)
    if importlib.util.find_spec("pygraphviz") is None:
        commands = re.sub("pcaffe draw_net.*", "", commands)
    folder = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    shell = ["sh", "-e", "-c", commands]
    done = subprocess.run(shell, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "InnerProduct" in done.stdout
    assert 'type: "InnerProduct"' in (tmp_path / "new.prototxt").read_text()
    run_examples(python_blocks(page), tmp_path, monkeypatch)


# One of them is quick.
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[] if path.stem == "shapes" else pytest.mark.long, id=path.stem)
        for path in NOTEBOOKS
    ],
)
def test_notebooks_run(path, tmp_path, monkeypatch):
    notebook = json.loads(path.read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) > 5
    monkeypatch.syspath_prepend(path.parent)
    run_examples(cells, tmp_path, monkeypatch)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_have_their_outputs(path):
    """`make notebooks` runs them anew."""
    cells = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [o for o in outputs if o["output_type"] == "error" or o.get("name") == "stderr"]
    assert path.stat().st_size < LARGEST_NOTEBOOK


@pytest.mark.long
def test_the_script_runs_notebooks(tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    path = tmp_path / "n.ipynb"
    cells = ["import beside", "import sys\nprint('no', file=sys.stderr)\nbeside.x"]
    new = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    nbformat.write(new, path)
    (tmp_path / "beside.py").write_text("x = 6 * 7")
    monkeypatch.syspath_prepend(DOCS.parent / "scripts")
    written = json.loads(importlib.import_module("run_notebooks").run(path))
    assert [cell["execution_count"] for cell in written["cells"]] == [1, 2]
    (output,) = written["cells"][1]["outputs"]
    assert output["data"]["text/plain"] == ["42"]
