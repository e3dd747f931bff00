"""The example in docs/add_a_layer.md is found and passes the contract tests."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def code_of_the_guide() -> dict[str, str]:
    """Return path → code of the guide's files."""
    guide = (ROOT / "docs" / "add_a_layer.md").read_text()
    return dict(re.findall(r"`(\S+\.py)`:\n\n```python\n(.*?)```", guide, re.DOTALL))


def test_the_guides_layer_passes_the_contract_tests(tmp_path):
    code = code_of_the_guide()
    assert sorted(code) == ["pycaffe_dist/layers/softsign.py", "tests/layers/cases/softsign.py"]
    layers, cases = tmp_path / "layers", tmp_path / "cases"
    for folder, name in ((layers, "pycaffe_dist/layers/"), (cases, "tests/layers/cases/")):
        folder.mkdir()
        (folder / "softsign.py").write_text(code[f"{name}softsign.py"])
    # The same as putting both files into their folders, without touching the checkout.
    (tmp_path / "guides_files.py").write_text(
        "import layer_cases, pathlib, pycaffe_dist.layers\n"
        f"pycaffe_dist.layers.__path__.append({str(layers)!r})\n"
        f"layer_cases.FOLDER = pathlib.Path({str(cases)!r})\n"
    )
    tests = ROOT / "tests" / "layers" / "test_gradients.py"
    result = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-k", "Softsign", str(tests)),
            *("-p", "no:cacheprovider", "-p", "guides_files"),
        ],
        env={"PYTHONPATH": f"{tmp_path}:{tests.parent}:{ROOT}", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    passed = re.search(r"(\d+) passed", result.stdout)
    assert passed and int(passed[1]) >= 8, result.stdout


def test_every_part_of_the_guide_that_is_named_exists():
    guide = (ROOT / "docs" / "add_a_layer.md").read_text()
    for path in re.findall(r"`((?:pycaffe_dist|tests|proto)/[\w/.]+)`", guide):
        if "softsign" not in path and "NAME" not in path:
            assert (ROOT / path).exists(), path
