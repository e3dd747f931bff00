"""The example in docs/add_a_layer.md is found and passes the contract tests."""

from __future__ import annotations

from pathlib import Path

from guides import passed_tests, write_code


def test_the_guides_layer_passes_the_contract_tests(tmp_path):
    assert write_code("add_a_layer.md", tmp_path) == [
        "pycaffe_dist/layers/softsign.py",
        "tests/layers/cases/softsign.py",
    ]
    plugin = (
        "import layer_cases, pathlib, pycaffe_dist.layers\n"
        f"pycaffe_dist.layers.__path__.append({str(tmp_path / 'pycaffe_dist/layers')!r})\n"
        f"layer_cases.FOLDER = pathlib.Path({str(tmp_path / 'tests/layers/cases')!r})\n"
    )
    tests = Path(__file__).with_name("test_gradients.py")
    assert passed_tests(tmp_path, plugin, tests, "-k", "Softsign") >= 8
