"""Winograd's microkernels: transforms of grids of vectors, and the products between them.

Lanes are channels.  A grid is a square of vectors: a tile of pixels, or its transform.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from llvmlite import ir

from pycaffe_dist.kernels.jit.codegen.emitter import Emitter
from pycaffe_dist.kernels.jit.codegen.objects import ENTRY
from pycaffe_dist.kernels.jit.codegen.target import Target
from pycaffe_dist.kernels.jit.winograd.toom_cook import Matrix, matrices

# The parts that are transformed: inputs, weights and their products; for the weight gradient, the
# gradients of outputs, and their products with inputs.
Part = Literal["inputs", "filters", "outputs", "gradients", "weights"]


def matrix_of(part: Part, outputs: int, taps: int) -> Matrix:
    """Return the matrix that transforms one axis of a ``part``."""
    output, filters, inputs = matrices(outputs, taps)
    found: dict[Part, Matrix] = {
        "inputs": inputs,
        "filters": filters,
        "outputs": output,
        "gradients": tuple(zip(*output)),
        "weights": tuple(zip(*filters)),
    }
    return found[part]


def _sum(e: Emitter, terms: Sequence[tuple[float, ir.Value]]) -> ir.Value | None:
    """Return Σ factor·value, or None for an empty sum."""
    total = None
    for factor, value in sorted(terms, key=lambda term: abs(term[0]) != 1):
        if total is None:
            total = value
            if factor != 1:
                total = e.builder.fmul(value, ir.Constant(e.vector, [factor] * e.lanes))
        elif abs(factor) == 1:
            total = (e.builder.fadd if factor > 0 else e.builder.fsub)(total, value)
        else:
            total = e.multiply_add(value, ir.Constant(e.vector, [factor] * e.lanes), total)
    return total


def _join_columns(e: Emitter, matrix: Matrix, values: Sequence[ir.Value]) -> tuple[Matrix, list]:
    """Replace columns of opposite points by their sum and difference, which all rows share."""
    columns: list[tuple] = []
    vectors: list[ir.Value] = []
    left = list(zip(zip(*matrix), values))
    while left:
        column, value = left.pop(0)
        for i, (other, opposite) in enumerate(left):
            same = [a == b for a, b in zip(column, other)]
            if [abs(a) for a in column] == [abs(b) for b in other] and not all(same):
                del left[i]
                columns.append(tuple(a if keep else 0 for a, keep in zip(column, same)))
                columns.append(tuple(0 if keep else a for a, keep in zip(column, same)))
                vectors += [e.builder.fadd(value, opposite), e.builder.fsub(value, opposite)]
                break
        else:
            columns.append(column)
            vectors.append(value)
    return tuple(zip(*columns)), vectors


def transform(e: Emitter, matrix: Matrix, values: Sequence[ir.Value]) -> list[ir.Value]:
    """Return the products of ``matrix`` with a column of vectors."""
    if len(matrix) < len(matrix[0]):
        matrix, values = _join_columns(e, matrix, values)
    # The rows of two opposite points differ only in the sign of every other term, and share two
    # sums.
    done: dict[int, ir.Value] = {}
    for i, row in enumerate(matrix):
        if i in done:
            continue
        halves = [
            [(float(row[k]), values[k]) for k in range(first, len(row), 2) if row[k]]
            for first in (0, 1)
        ]
        mirrored = tuple(-value if k % 2 else value for k, value in enumerate(row))
        negated = tuple(-value for value in mirrored)
        even, odd = (_sum(e, half) for half in halves)
        for j in range(i + 1, len(matrix)):
            if even is not None and odd is not None and matrix[j] in (mirrored, negated):
                pair = (even, odd) if matrix[j] == mirrored else (odd, even)
                done[j] = e.builder.fsub(*pair)
        if even is not None and odd is not None:
            done[i] = e.builder.fadd(even, odd)
        else:
            done[i] = odd if even is None else even
    return [done[i] for i in range(len(matrix))]


def _over_pieces(
    e: Emitter,
    rows: ir.Value,
    width: ir.Value | None,
    steps: Sequence[tuple[ir.Value, ir.Value]],
    body: Callable[[list[ir.Value], ir.Value], None],
) -> None:
    """Run ``body(addresses, pixel)`` for pieces of a vector of pixels, over all rows.

    ``steps`` are pairs of an address and its step from row to row.  The last piece of a row ends
    with it; without a ``width`` a row is one piece.
    """
    build = e.builder

    def one_row(addresses: list[ir.Value]) -> list[ir.Value]:
        def one_piece(state: list[ir.Value]) -> list[ir.Value]:
            most = build.sub(width, e.int(e.lanes))
            late = build.icmp_signed(">", state[0], most)
            body(addresses, build.select(late, most, state[0]))
            return [e.add(state[0], e.lanes)]

        if width is None:
            body(addresses, e.int(0))
        else:
            count = build.sdiv(build.add(width, e.int(e.lanes - 1)), e.int(e.lanes))
            e.repeat(count, [e.int(0)], one_piece)
        return [e.add(address, step) for address, (_, step) in zip(addresses, steps)]

    e.repeat(rows, [address for address, _ in steps], one_row)


def _planes(e: Emitter, channels: ir.Value, plane: ir.Value) -> list[ir.Value]:
    """Return the offset of each lane's plane; lanes beyond the last channel share its plane."""
    last = e.builder.sub(channels, e.int(1))
    return [e.builder.mul(e.minimum(c, last), plane) for c in range(e.lanes)]


@dataclass(frozen=True)
class GatherKernel:
    """Makes vectors of channels from rows of planes::

        to[y·to_row + x·vector bytes][c] = from[min(c, channels - 1)·plane + y·row + 4·x]

    ``narrow`` rows are shorter than a vector, and are filled with zeros to a vector.  The same
    rows of the next planes, as many as a vector has lanes, are fetched into the second-level cache.
    Arguments: from, plane, row, rows, width, channels, to, to_row.
    """

    narrow: bool

    def build(self, target: Target) -> ir.Module:
        """Return the IR of the loop nest."""
        e = Emitter(target, ENTRY, 8)
        source, plane, row, rows, width, channels, to, to_row = e.arguments
        planes = _planes(e, channels, plane)
        mask = e.mask_below(width) if self.narrow else None
        ahead = e.builder.mul(plane, e.int(e.lanes))

        def piece(addresses: list[ir.Value], pixel: ir.Value) -> None:
            at = e.add(addresses[0], e.builder.mul(pixel, e.int(4)))
            out = e.add(addresses[1], e.builder.mul(pixel, e.int(4 * e.lanes)))
            for i, value in enumerate(e.transpose([e.load(at, step, mask) for step in planes])):
                e.store(value, out, 4 * e.lanes * i)
            for step in planes:
                e.prefetch(e.add(at, ahead), step)

        steps = [(source, row), (to, to_row)]
        _over_pieces(e, rows, None if self.narrow else width, steps, piece)
        e.builder.ret_void()
        return e.module


@dataclass(frozen=True)
class ScatterKernel:
    """Makes rows of planes from vectors of channels: the inverse of `GatherKernel`.

    ``narrow`` is the width of rows that are shorter than a vector, else 0; a whole vector is read
    of such a row.  Arguments: from, from_row, rows, width, channels, to, plane, row.
    """

    narrow: int

    def build(self, target: Target) -> ir.Module:
        """Return the IR of the loop nest."""
        e = Emitter(target, ENTRY, 8)
        source, source_row, rows, width, channels, to, plane, row = e.arguments
        planes = _planes(e, channels, plane)

        def piece(addresses: list[ir.Value], pixel: ir.Value) -> None:
            at = e.add(addresses[0], e.builder.mul(pixel, e.int(4 * e.lanes)))
            out = e.add(addresses[1], e.builder.mul(pixel, e.int(4)))
            square = e.transpose([e.load(at, 4 * e.lanes * i) for i in range(e.lanes)])
            # Lanes beyond the last channel are written to that channel, which is stored last and
            # overwrites them.
            for step, value in reversed(list(zip(planes, square))):
                e.store_first(value, self.narrow or e.lanes, out, step)

        steps = [(source, source_row), (to, row)]
        _over_pieces(e, rows, None if self.narrow else width, steps, piece)
        e.builder.ret_void()
        return e.module


@dataclass(frozen=True)
class GridKernel:
    """Transforms rows of grids, along both axes of each, by the matrix of a ``part``.

    Arguments: from, its steps from row to row, column to column, grid to grid and row of grids to
    row of grids, to, its steps, how many grids a row has, rows of grids; for outputs also a vector
    of biases and the slope (one float) that the sums are rectified with.
    """

    part: Part
    outputs: int
    taps: int

    def build(self, target: Target) -> ir.Module:
        """Return the IR of the loop nest."""
        e = Emitter(target, ENTRY, 14 if self.part == "outputs" else 12)
        source, row, column, step, row_step, *rest = e.arguments
        to, to_row, to_column, to_step, to_row_step, grids, rows, *finish = rest
        build, matrix = e.builder, matrix_of(self.part, self.outputs, self.taps)
        count = len(matrix[0])
        added, slope = (e.load(finish[0]), e.broadcast(finish[1])) if finish else (None, None)

        def one_grid(state: list[ir.Value]) -> list[ir.Value]:
            columns = []
            for j in range(count):
                at = e.add(state[0], build.mul(column, e.int(j)))
                values = [e.load(at, build.mul(row, e.int(i))) for i in range(count)]
                columns.append(transform(e, matrix, values))
            for i, line in enumerate(zip(*columns)):
                out = e.add(state[1], build.mul(to_row, e.int(i)))
                for j, value in enumerate(transform(e, matrix, line)):
                    if added is not None:
                        value = e.rectify(build.fadd(value, added), slope)
                    e.store(value, out, build.mul(to_column, e.int(j)))
            return [e.add(state[0], step), e.add(state[1], to_step)]

        def one_row(state: list[ir.Value]) -> list[ir.Value]:
            e.repeat(grids, state, one_grid)
            return [e.add(state[0], row_step), e.add(state[1], to_row_step)]

        e.repeat(rows, [source, to], one_row)
        build.ret_void()
        return e.module


@dataclass(frozen=True)
class TileProductKernel:
    """Products of rows of B, ``rows`` at a time, with packed A of ``vectors``::

        for i < tiles·rows:
            sum = y[i·y_row …] if add else 0
            y[i·y_row …] = sum + Σ b[i·b_row + 4·k] · a[k·vectors …] over k < depth

    Arguments: b, b_row, a, depth, y, y_row, tiles.
    """

    rows: int
    vectors: int
    add: bool

    def build(self, target: Target) -> ir.Module:
        """Return the IR of the loop nest."""
        e = Emitter(target, ENTRY, 7)
        b, b_row, a, depth, y, y_row, tiles = e.arguments
        build, vector_bytes = e.builder, 4 * e.lanes
        places = [(i, j) for i in range(self.rows) for j in range(self.vectors)]
        b_rows = [build.mul(b_row, e.int(i)) for i in range(self.rows)]

        def one_step(state: list[ir.Value]) -> list[ir.Value]:
            at_b, at_a, *sums = state
            columns = [e.load(at_a, vector_bytes * j) for j in range(self.vectors)]
            for i, offset in enumerate(b_rows):
                value = e.broadcast(at_b, offset)
                for j, column in enumerate(columns):
                    at = i * self.vectors + j
                    sums[at] = e.multiply_add(value, column, sums[at])
            return [e.add(at_b, 4), e.add(at_a, vector_bytes * self.vectors), *sums]

        def one_tile(state: list[ir.Value]) -> list[ir.Value]:
            at_b, at_y = state
            lines = [e.add(at_y, build.mul(y_row, e.int(i))) for i in range(self.rows)]
            start = [e.load(lines[i], vector_bytes * j) if self.add else e.zero for i, j in places]
            sums = e.repeat(depth, [at_b, a, *start], one_step)[2:]
            for (i, j), value in zip(places, sums):
                e.store(value, lines[i], vector_bytes * j)
            return [
                e.add(at_b, build.mul(b_row, e.int(self.rows))),
                e.add(at_y, build.mul(y_row, e.int(self.rows))),
            ]

        e.repeat(tiles, [b, y], one_tile)
        build.ret_void()
        return e.module
