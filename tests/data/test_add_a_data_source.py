"""The example in docs/add_a_data_source.md is found, and its test passes."""

from __future__ import annotations

import pytest
from guides import passed_tests, write_code


@pytest.mark.long
def test_a_net_trains_from_the_guides_database(tmp_path):
    database, tests = write_code("add_a_data_source.md", tmp_path)
    assert database == "pycaffe_dist/data/sources/npz.py"
    folder = str((tmp_path / database).parent)
    plugin = f"import pycaffe_dist.data.sources as s\ns.__path__.append({folder!r})\n"
    assert passed_tests(tmp_path, plugin, tmp_path / tests) == 2
