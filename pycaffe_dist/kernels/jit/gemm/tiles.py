"""How the sums of outer products are cut into tiles."""

from pycaffe_dist.kernels.jit.codegen.target import Target, step_cycles


def lane_tiles(count: int) -> list[int]:
    """Split ``count`` vectors of lanes into tiles of two, and one of three if the count is odd."""
    if count == 1:
        return [1]
    return [2] * (count // 2) if count % 2 == 0 else [2] * (count // 2 - 1) + [3]


def rows_per_tile(count: int, vectors: int, target: Target) -> int:
    """Return the number of broadcast values, of ``count``, in a tile of sums."""
    return rows_of(count, vectors, min(target.tile_rows(vectors), 10))


def rows_of(count: int, vectors: int, most: int, start: float = 0.0) -> int:
    """Return the rows of a tile, at most ``most``, with which ``count`` rows are done fastest.

    ``start`` are the cycles to begin and end a tile, divided by its steps.
    """
    return min(
        range(most, 0, -1),
        key=lambda rows: -(-count // rows) * (step_cycles(rows, vectors) + start),
    )
