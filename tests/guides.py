"""The guides docs/add_*.md: their code, as files, and pytest on it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
GUIDES = sorted((ROOT / "docs").glob("add_*.md"))


def write_code(guide: str, folder: Path) -> list[str]:
    """Write a guide's files below a folder; return their paths in the project, sorted."""
    code = (ROOT / "docs" / guide).read_text()
    files = dict(re.findall(r"`(\S+\.py)`:\n\n```python\n(.*?)```", code, re.DOTALL))
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return sorted(files)


def passed_tests(folder: Path, plugin: str, tests: Path, *flags: str) -> int:
    """Run tests where ``plugin``, a text, has been imported; return how many have passed.

    So a guide's files are found as if they were in their places, without touching the checkout.
    """
    (folder / "guides_files.py").write_text(plugin)
    result = subprocess.run(
        [*(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
         *("-p", "guides_files", *flags, str(tests))],
        env={"PYTHONPATH": f"{folder}:{tests.parent}:{ROOT}", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    passed = re.search(r"(\d+) passed", result.stdout)
    assert passed, result.stdout
    return int(passed[1])
