"""The commands of docs/examples/your_images.md run, with fewer images and epochs."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from running import run

PAGE = Path(__file__).parents[2] / "docs" / "examples" / "your_images.md"
IMAGES = 40


@pytest.mark.long  # zoo/test_finetune.py and the commands' own tests run the same code
def test_the_page_does_what_it_says(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(code, {})
    for folder in (*Path("first").iterdir(), *Path("others").iterdir()):
        for path in sorted(folder.iterdir())[IMAGES:]:
            path.unlink()
    commands = "".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL)).splitlines()
    assert len(commands) == 4
    output = []
    for command in commands:
        words = shlex.split(command.replace("--epochs=10", "--epochs=4"))
        output.append(run(words, tmp_path))
    assert "pcaffe train --solver=finetune_first/solver.prototxt" in output[0]
    assert "--weights" not in output[0]
    for trained in output[1:3]:
        assert float(re.findall(r"accuracy = (\S+)", trained)[-1]) > 0.6
    said = r"layer\(s\) (loaded|not in the file: fresh|not in the net: unused): .*"
    lines = {match.group() for match in re.finditer(said, output[2])}
    assert lines == {match.group() for match in re.finditer(said, page)} and len(lines) == 3
    found = re.findall(r"(?m)^others/7/\S+\n  \S+ +\d  (\d)$", output[3])
    assert len(found) == IMAGES and found.count("7") > IMAGES / 2
    shutil.rmtree("first")
