"""The guides name files of the project that exist."""

from __future__ import annotations

import re

import pytest
from guides import GUIDES, ROOT, write_code


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_every_part_that_is_named_exists(guide, tmp_path):
    examples = write_code(guide.name, tmp_path)
    assert examples
    for path in re.findall(r"`((?:pycaffe_dist|tests|proto)/[\w/.]+)`", guide.read_text()):
        assert path in examples or "NAME" in path or (ROOT / path).exists(), path
