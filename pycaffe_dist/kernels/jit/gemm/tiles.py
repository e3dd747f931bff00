"""How the sums of outer products are cut into tiles."""

from pycaffe_dist.kernels.jit.codegen.target import Target, step_cycles


def lane_tiles(count: int) -> list[int]:
    """Split ``count`` vectors of lanes into tiles of two, and one of three if the count is odd."""
    if count == 1:
        return [1]
    return [2] * (count // 2) if count % 2 == 0 else [2] * (count // 2 - 1) + [3]


def rows_per_tile(count: int, vectors: int, target: Target) -> int:
    """Return the number of broadcast values, of ``count``, in a tile of sums."""
    most = min(target.tile_rows(vectors), 10)
    return min(
        range(most, 0, -1),
        key=lambda rows: -(-count // rows) * step_cycles(rows, vectors),
    )
