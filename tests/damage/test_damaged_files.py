"""Damaged files of every kind: a result, or one line that names the file.

Never another exception, an abort, a hang, or unlimited memory.  Cases are drawn from a seed; a
failure prints how to repeat it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from kinds import WRITERS

PROGRAM = Path(__file__).with_name("read_damaged.py")
FEW, MANY = 12, 300


def _failures(folder: Path, seed: int, count: int, *kinds: str) -> list[str]:
    """Return the failures of cases; after a case that ends the process the next one runs."""
    outcomes: dict[int, str] = {}
    while len(outcomes) < count * len(kinds):
        numbers = map(str, (seed, len(outcomes), count))
        command = [sys.executable, PROGRAM, folder, *numbers, *kinds]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        outcomes |= zip(lines[::2], lines[1::2])
        if len(lines) % 2:
            outcomes[lines[-1]] = f"ended the process, {done.returncode}: {done.stderr[-500:]}"
        elif done.returncode or not lines:
            pytest.fail(f"{command}: {done.returncode}: {done.stderr}")
    return [
        f"{kinds[case // count]}, seed {seed}, case {case % count} of {count}: {outcome}"
        for case, outcome in outcomes.items()
        if outcome not in ("read", "refused")
    ]


def test_damaged_files(tmp_path):
    failures = _failures(tmp_path, 1, FEW, *WRITERS)
    assert not failures, "\n".join(failures)


@pytest.mark.long
@pytest.mark.parametrize("kind", WRITERS)
def test_many_damaged_files(tmp_path, kind):
    failures = _failures(tmp_path, 2, MANY, kind)
    assert not failures, "\n".join(failures)
