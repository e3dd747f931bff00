"""The generated pages of docs/ say what the sources say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("layers", "catalogue"),
        ("forks", "page"),
        ("solvers", "catalogue"),
        ("flags", "catalogue"),
    ],
)
def test_the_catalogue_is_up_to_date(name, text, monkeypatch):
    """`make catalogue` writes it anew."""
    pytest.importorskip("grpc_tools")
    path = ROOT / "scripts" / f"generate_{name}.py"
    monkeypatch.syspath_prepend(path.parent)
    spec = importlib.util.spec_from_file_location("g", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert getattr(script, text)() == (ROOT / "docs" / f"{name}.md").read_text()
