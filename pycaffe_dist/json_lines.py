"""Values as lines of JSON that every program can read."""

from __future__ import annotations

import json
import math
from typing import Any


def to_line(value: Any) -> str:
    """Return plain values as one line of JSON; a number that is not finite is null."""
    return json.dumps(_plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
