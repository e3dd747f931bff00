from __future__ import annotations

from pycaffe_dist.cli.main import main

NET = """
layer { name: 'data' type: 'DummyData' top: 'data' top: 'label'
        dummy_data_param { shape { dim: 2 dim: 3 } shape { dim: 2 }
                           data_filler { type: 'gaussian' } data_filler { type: 'constant' } } }
layer { name: 'ip' type: 'InnerProduct' bottom: 'data' top: 'ip'
        inner_product_param { num_output: 4 weight_filler { type: 'xavier' } } }
layer { name: 'loss' type: 'SoftmaxWithLoss' bottom: 'ip' bottom: 'label' top: 'loss' }
"""


def test_warmup_runs_the_net_and_says_where_the_kernels_are(tmp_path, capfd):
    (tmp_path / "net.prototxt").write_text(NET)
    assert main(["warmup", f"--model={tmp_path / 'net.prototxt'}"]) == 0
    assert "kernels are kept in" in capfd.readouterr().err


def test_without_a_model_warmup_compiles_the_kernels_of_usual_nets(capfd):
    assert main(["warmup"]) == 0
    assert "Ready after" in capfd.readouterr().err
