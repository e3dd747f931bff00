"""The walk through an LMDB's B+tree, on the bytes of its file.

Every offset is checked before it is used, so that no file, however damaged, makes this read
outside of it.  ``data`` is the file's whole pages (uint8); ``page_size``, ``depth`` (levels of the
tree), ``root`` (page number) and ``count`` (records) come from its meta page; ``state`` is where
the walk has got to.  Functions return one of the statuses below.
"""

from __future__ import annotations

import numpy as np

from pycaffe_dist.kernels.compiling import jit

# The file format of LMDB 0.9: sizes of headers, page flags, node flags.
PAGE_HEADER = 16
NODE_HEADER = 8
BRANCH, LEAF, OVERFLOW = 0x01, 0x02, 0x04
BIG_VALUE, SUB_DATABASE, DUPLICATES = 0x01, 0x02, 0x04
MAX_DEPTH = 32  # liblmdb's own limit

# The state: scalars, then per level of the tree a page's byte offset, its number of entries and
# the current entry.
ORDINAL, PAGE_NUMBER, LEVELS = 0, 1, 2
PAGE_OFFSET, ENTRIES, ENTRY = 0, 1, 2
STATE_SIZE = LEVELS + 3 * MAX_DEPTH

# Statuses; the page in question is state[PAGE_NUMBER].
OK, END, BAD_PAGE, BAD_NODE, BAD_VALUE, UNSUPPORTED, BAD_COUNT = range(7)


@jit
def _u16(data, at):
    return np.int64(data[at]) | np.int64(data[at + 1]) << 8


@jit
def _u48(data, at):
    return _u16(data, at) | _u16(data, at + 2) << 16 | _u16(data, at + 4) << 32


@jit
def _page_offset(data, page_size, number, kind):
    """Return where a page begins, or -1 when it is not a page of this kind within the file."""
    # Division, because a damaged page number times the page size may overflow.
    if number < 0 or number >= data.size // page_size:
        return -1
    offset = number * page_size
    if _u48(data, offset) != number or _u16(data, offset + 10) & (BRANCH | LEAF | OVERFLOW) != kind:
        return -1
    return offset


@jit
def _node(data, page_size, page, entry, entries):
    """Return where an entry of a page begins, or -1 when that is not inside the page's heap."""
    at = _u16(data, page + PAGE_HEADER + 2 * entry)
    if at < PAGE_HEADER + 2 * entries or at + NODE_HEADER > page_size:
        return -1
    return page + at


@jit
def _enter(data, page_size, depth, state, level, number):
    """Move to the first record below page ``number``, which belongs at ``level``."""
    while True:
        here = LEVELS + 3 * level
        leaf = level == depth - 1
        page = _page_offset(data, page_size, number, LEAF if leaf else BRANCH)
        state[PAGE_NUMBER] = number
        if page < 0:
            return BAD_PAGE
        lower = _u16(data, page + 12)
        entries = (lower - PAGE_HEADER) >> 1
        if entries < 1 or lower > page_size:
            return BAD_NODE
        state[here + PAGE_OFFSET], state[here + ENTRIES], state[here + ENTRY] = page, entries, 0
        if leaf:
            return OK
        node = _node(data, page_size, page, 0, entries)
        if node < 0:
            return BAD_NODE
        number = _u48(data, node)
        level += 1


@jit
def rewind(data: np.ndarray, page_size: int, depth: int, root: int, state: np.ndarray) -> int:
    """Move to the first record; returns a status."""
    state[ORDINAL] = 0
    return _enter(data, page_size, depth, state, 0, root)


@jit
def _next_leaf(data, page_size, depth, state):
    """Move to the first record of the next leaf page; returns a status, END after the last."""
    level = depth - 2
    while level >= 0:
        here = LEVELS + 3 * level
        entry = state[here + ENTRY] + 1
        if entry < state[here + ENTRIES]:
            state[here + ENTRY] = entry
            page = state[here + PAGE_OFFSET]
            node = _node(data, page_size, page, entry, state[here + ENTRIES])
            if node < 0:
                state[PAGE_NUMBER] = page // page_size
                return BAD_NODE
            return _enter(data, page_size, depth, state, level + 1, _u48(data, node))
        level -= 1
    return END


@jit
def skip(
    data: np.ndarray,
    page_size: int,
    depth: int,
    root: int,
    count: int,
    state: np.ndarray,
    n: int,
) -> int:
    """Move ``n`` records on, round the end of the data set where need be; returns a status."""
    leaf = LEVELS + 3 * (depth - 1)
    if n >= count:
        n %= count
    while n > 0:
        left = state[leaf + ENTRIES] - state[leaf + ENTRY]
        if n < left:
            state[leaf + ENTRY] += n
            state[ORDINAL] += n
            return OK
        n -= left
        state[ORDINAL] += left
        status = _next_leaf(data, page_size, depth, state)
        if status == END:
            if state[ORDINAL] != count:
                return BAD_COUNT
            status = rewind(data, page_size, depth, root, state)
        if status != OK:
            return status
    return OK


@jit
def _locate(data, page_size, depth, state, value, key):
    """Write where the current record's value and key are; returns a status."""
    leaf = LEVELS + 3 * (depth - 1)
    page = state[leaf + PAGE_OFFSET]
    state[PAGE_NUMBER] = page // page_size
    node = _node(data, page_size, page, state[leaf + ENTRY], state[leaf + ENTRIES])
    if node < 0:
        return BAD_NODE
    size = _u16(data, node) | _u16(data, node + 2) << 16
    flags = _u16(data, node + 4)
    key[0], key[1] = node + NODE_HEADER, _u16(data, node + 6)
    if flags & (SUB_DATABASE | DUPLICATES):
        return UNSUPPORTED
    start = key[0] + key[1]
    if start + (8 if flags & BIG_VALUE else size) > page + page_size:
        return BAD_NODE
    if flags & BIG_VALUE:
        overflow = _page_offset(data, page_size, _u48(data, start), OVERFLOW)
        if overflow < 0:
            return BAD_VALUE
        pages = _u16(data, overflow + 12) | _u16(data, overflow + 14) << 16
        start = overflow + PAGE_HEADER
        if start + size > min(overflow + pages * page_size, data.size):
            return BAD_VALUE
    value[0], value[1] = start, size
    return OK


@jit
def read(
    data: np.ndarray,
    page_size: int,
    depth: int,
    root: int,
    count: int,
    state: np.ndarray,
    step: int,
    values: np.ndarray,
    keys: np.ndarray,
) -> int:
    """Locate records current, current + step, …, one for each row; returns a status.

    ``values`` and ``keys``: (n, 2) int64, filled with byte offsets and sizes.
    """
    for i in range(len(values)):
        status = _locate(data, page_size, depth, state, values[i], keys[i])
        if status == OK:
            status = skip(data, page_size, depth, root, count, state, step)
        if status != OK:
            return status
    return OK
