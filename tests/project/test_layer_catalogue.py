"""docs/layers.md says what the layers' sources say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_catalogue_is_up_to_date():
    """`make catalogue` writes it anew."""
    pytest.importorskip("grpc_tools")
    spec = importlib.util.spec_from_file_location("g", ROOT / "scripts" / "generate_layers.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.catalogue() == (ROOT / "docs" / "layers.md").read_text()
