"""Ways to damage a file, drawn from a random generator."""

from __future__ import annotations

import random
import re

# New values for numbers in files, in little and in big endian.
_NUMBERS = (0, 1, 0x7F, 0xFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
_WORDS = [b'"', b"{", b"}", b"[", b":", b"\\000", b"\0", b"\n", b"#", b"true", b"a" * 300, b"\xe4"]
_NUMBER, _STRING = re.compile(rb"-?\d[\d.]*"), re.compile(rb'"[^"\n]*"')
_NUMBER_WORDS = b"0 1 2 3 -1 -7 64 1000 0.5 1e999 nan 1e-30 65536 2147483647 4294967295".split()
_NUMBER_WORDS += [b"9" * 20, b"9" * 500]


def damaged(data: bytes, rng: random.Random, text: bool) -> bytes:
    """Return ``data`` with one to three things changed in it."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        data = _changed_text(data, rng) if text and rng.random() < 0.9 else _changed(data, rng)
    return data


def _changed(data: bytes, rng: random.Random) -> bytes:
    at, size = rng.randrange(len(data) + 1), rng.choice((1, 2, 4, 8, 16, 64, 512))
    way = rng.randrange(8)
    if way <= 1 and at < len(data):
        flipped = data[at] ^ 1 << rng.randrange(8)
        return data[:at] + bytes([flipped]) + data[at + 1 :]
    if way == 2:
        return data[:at] + rng.randbytes(min(size, 8)) + data[at + min(size, 8) :]
    if way == 3:
        return data[:at] + bytes(min(size, len(data) - at)) + data[at + size :]
    if way == 4:
        return data[:at]
    if way == 5:
        return data[:at] + data[at + size :]
    if way == 6:
        other = rng.randrange(len(data) + 1)
        return data[:at] + data[other : other + size] + data[at:]
    length = rng.choice((1, 2, 4, 8))
    number = rng.choice(_NUMBERS) % (1 << 8 * length)
    return data[:at] + number.to_bytes(length, rng.choice(("little", "big"))) + data[at + length :]


def _changed_text(data: bytes, rng: random.Random) -> bytes:
    """Replace a number or a string by another, or remove, repeat or insert a line or a word."""
    way = rng.randrange(8)
    if way < 5:
        pattern, others = (_NUMBER, _NUMBER_WORDS) if way < 4 else (_STRING, _STRING.findall(data))
        found = list(pattern.finditer(data))
        if found and others:
            place = rng.choice(found)
            return data[: place.start()] + rng.choice(others) + data[place.end() :]
    mark = b"\n" if way < 7 else b" "
    words = data.split(mark)
    at = rng.randrange(len(words))
    if rng.randrange(3) == 0:
        del words[at]
    else:
        words.insert(at, rng.choice([*words, *_WORDS]))
    return mark.join(words)
