"""Microkernels around the products of minimal filtering: tiles of images in, tiles of images out.

Lanes are neighbouring tiles of 2×2 outputs.  The ``size``² values of a transformed tile lie in as
many arrays, column by column, ``step`` bytes apart, each with one element for every tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from pycaffe_dist.kernels.jit.emitter import INT32, Emitter
from pycaffe_dist.kernels.jit.objects import ENTRY
from pycaffe_dist.kernels.jit.target import Target
from pycaffe_dist.kernels.jit.toom_cook import Matrix, matrices

OUTPUTS = 2


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


def transform(e: Emitter, matrix: Matrix, values: Sequence[ir.Value]) -> list[ir.Value]:
    """Return the products of ``matrix`` with a column of vectors.

    Rows for opposite points differ in the signs of every other term only, and share both sums.
    """
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


def _over_tiles(e: Emitter, strips: ir.Value, tiles: ir.Value, state: list, body) -> None:
    """Run ``body(state of the strip, tile, tiles left)`` in steps of a vector over all strips.

    ``state`` is a list of (value, step from strip to strip); the last is where a strip's tiles are.
    """
    build = e.builder
    chunks = build.sdiv(build.add(tiles, e.int(e.lanes - 1)), e.int(e.lanes))

    def one_strip(values: list[ir.Value]) -> list[ir.Value]:
        def one_chunk(inner: list[ir.Value]) -> list[ir.Value]:
            body(values, *inner)
            return [e.add(inner[0], e.lanes), build.sub(inner[1], e.int(e.lanes))]

        e.repeat(chunks, [e.int(0), tiles], one_chunk)
        return [e.add(value, step) for value, (_, step) in zip(values, state)]

    e.repeat(strips, [value for value, _ in state], one_strip)


@dataclass(frozen=True)
class TileInputKernel:
    """Transforms the input of strips of tiles: Bᵀ·d·B of each tile's ``size``² inputs d.

    A strip is a row of tiles.  Arguments: x (a plane), rows (for each strip ``size`` int64: a row's
    offset in x, or -1 for a row of padding), zeros (a row of padding), width (of x), strips, tiles
    (of a strip), to, step.  Strips follow each other without gaps, but for what the last vector of
    one writes beyond its end, which the next overwrites.
    """

    size: int
    pad: int

    def build(self, target: Target) -> ir.Module:
        """Return the IR of the loop nest."""
        e = Emitter(target, ENTRY, 8)
        x, rows, zeros, width, strips, tiles, to, step = e.arguments
        build = e.builder
        matrix = matrices(OUTPUTS, self.size - 1)[2]
        evens = ir.Constant(e.indices, [2 * lane for lane in range(e.lanes)])
        odds = ir.Constant(e.indices, [2 * lane + 1 for lane in range(e.lanes)])
        lanes, limit = ir.Constant(e.indices, list(range(e.lanes))), self._splat(e, width)
        starts = [
            (first, first + e.lanes) for first in range(-self.pad, self.size - self.pad, OUTPUTS)
        ]

        def mask_at(column: ir.Value) -> ir.Value:
            # As unsigned numbers columns before the first are beyond the last.
            return build.icmp_unsigned("<", build.add(self._splat(e, column), lanes), limit)

        def one_row(row: ir.Value, column: ir.Value, masks: list) -> list[ir.Value]:
            exists = build.icmp_signed(">=", row, e.int(0))
            at = build.select(exists, build.add(x, row), zeros)
            at = build.add(at, build.mul(column, e.int(4)))
            pieces = []
            for pair, pair_masks in zip(starts, masks):
                halves = [e.load(at, 4 * start, mask) for start, mask in zip(pair, pair_masks)]
                pieces += [build.shuffle_vector(*halves, part) for part in (evens, odds)]
            return transform(e, matrix, pieces)

        def one_chunk(strip: list[ir.Value], tile: ir.Value, left: ir.Value) -> None:
            table, out = strip
            column = build.mul(tile, e.int(OUTPUTS))
            masks = [[mask_at(e.add(column, start)) for start in pair] for pair in starts]
            grid = [one_row(e.load_int(table, 8 * i), column, masks) for i in range(self.size)]
            at = build.add(out, build.mul(tile, e.int(4)))
            for column_of_tile in zip(*grid):
                for value in transform(e, matrix, column_of_tile):
                    e.store(value, at)
                    at = build.add(at, step)

        state = [(rows, e.int(8 * self.size)), (to, build.mul(tiles, e.int(4)))]
        _over_tiles(e, strips, tiles, state, one_chunk)
        build.ret_void()
        return e.module

    @staticmethod
    def _splat(e: Emitter, value: ir.Value) -> ir.Value:
        nothing = ir.Constant(e.indices, ir.Undefined)
        low = e.builder.trunc(value, INT32)
        single = e.builder.insert_element(nothing, low, ir.Constant(INT32, 0))
        return e.builder.shuffle_vector(single, nothing, ir.Constant(e.indices, [0] * e.lanes))


@dataclass(frozen=True)
class TileProductKernel:
    """Products of tiles of packed A with one panel of ``vectors`` of columns of B::

        for t < tiles: for i < rows:
            sum = y[(t·rows + i)·y_row …] if add else 0
            y[(t·rows + i)·y_row …] = sum + Σ a[t·a_tile + 4·(k·rows + i)] · b[k·b_row …], k < depth

    Arguments: a, a_tile, b, b_row, depth, y, y_row, tiles.
    """

    rows: int
    vectors: int
    add: bool

    def build(self, target: Target) -> ir.Module:
        """Return the IR of the loop nest."""
        e = Emitter(target, ENTRY, 8)
        a, a_tile, b, b_row, depth, y, y_row, tiles = e.arguments
        build = e.builder
        places = [(i, j) for i in range(self.rows) for j in range(self.vectors)]

        def one_step(state: list[ir.Value]) -> list[ir.Value]:
            at_a, at_b, *sums = state
            columns = [e.load(at_b, 4 * e.lanes * j) for j in range(self.vectors)]
            for i in range(self.rows):
                value = e.broadcast(at_a, 4 * i)
                for j, column in enumerate(columns):
                    at = i * self.vectors + j
                    sums[at] = e.multiply_add(value, column, sums[at])
            return [e.add(at_a, 4 * self.rows), e.add(at_b, b_row), *sums]

        def one_tile(state: list[ir.Value]) -> list[ir.Value]:
            at_a, at_y = state
            lines = [e.add(at_y, build.mul(y_row, e.int(i))) for i in range(self.rows)]
            start = [e.load(lines[i], 4 * e.lanes * j) if self.add else e.zero for i, j in places]
            sums = e.repeat(depth, [at_a, b, *start], one_step)[2:]
            for (i, j), value in zip(places, sums):
                e.store(value, lines[i], 4 * e.lanes * j)
            return [e.add(at_a, a_tile), e.add(at_y, build.mul(y_row, e.int(self.rows)))]

        e.repeat(tiles, [a, y], one_tile)
        build.ret_void()
        return e.module


@dataclass(frozen=True)
class TileOutputKernel:
    """Transforms the products of strips of tiles into rows of y: Aᵀ·z·A, plus bias, rectified.

    Arguments: from, step, strips, tiles, bias (one float), slope, y, y_row, width (of y), rows (of
    y from here on; the last strip may have fewer than two).  Nothing outside y's rows is written.
    """

    size: int

    def build(self, target: Target) -> ir.Module:
        """Return the IR of the loop nest."""
        e = Emitter(target, ENTRY, 10)
        source, step, strips, tiles, bias, slope, y, y_row, width, rows = e.arguments
        build = e.builder
        matrix = matrices(OUTPUTS, self.size - 1)[0]
        low = ir.Constant(e.indices, [i // 2 + i % 2 * e.lanes for i in range(e.lanes)])
        half = e.lanes // 2
        high = ir.Constant(e.indices, [half + i // 2 + i % 2 * e.lanes for i in range(e.lanes)])
        added, factor = e.broadcast(bias), e.broadcast(slope)

        def one_chunk(strip: list[ir.Value], tile: ir.Value, left: ir.Value) -> None:
            out, below, at = strip
            at = build.add(at, build.mul(tile, e.int(4)))
            columns = []
            for _ in range(self.size):
                values = []
                for _ in range(self.size):
                    values.append(e.load(at))
                    at = build.add(at, step)
                columns.append(transform(e, matrix, values))
            place = build.mul(tile, e.int(4 * OUTPUTS))
            columns_left = build.sub(width, build.mul(tile, e.int(OUTPUTS)))
            for i in range(OUTPUTS):
                pair = transform(e, matrix, [column[i] for column in columns])
                pair = [e.rectify(build.fadd(value, added), factor) for value in pair]
                exists = build.icmp_signed("<", e.int(i), below)
                count = build.select(exists, columns_left, e.int(0))
                for part, lanes in enumerate((low, high)):
                    where = e.add(build.add(place, build.mul(y_row, e.int(i))), 4 * e.lanes * part)
                    value = build.shuffle_vector(*pair, lanes)
                    self._store(e, value, out, where, e.add(count, -e.lanes * part))

        state = [
            (y, build.mul(y_row, e.int(OUTPUTS))),
            (rows, e.int(-OUTPUTS)),
            (source, build.mul(tiles, e.int(4))),
        ]
        _over_tiles(e, strips, tiles, state, one_chunk)
        build.ret_void()
        return e.module

    @staticmethod
    def _store(e: Emitter, value: ir.Value, out: ir.Value, where: ir.Value, count: ir.Value):
        """Store the first ``count`` lanes, which may be more than there are, or none."""
        build = e.builder
        whole, rest, masked, go = (e.function.append_basic_block() for _ in range(4))
        build.cbranch(build.icmp_signed(">=", count, e.int(e.lanes)), whole, rest)
        build.position_at_end(whole)
        e.store(value, out, where)
        build.branch(go)
        build.position_at_end(rest)
        build.cbranch(build.icmp_signed(">", count, e.int(0)), masked, go)
        build.position_at_end(masked)
        e.store(value, out, where, e.mask_below(count))
        build.branch(go)
        build.position_at_end(go)


@dataclass(frozen=True)
class DealKernel:
    """Copies rows into panels: to[r·to_row + p·panel_step …] = from[r·from_row + p·vectors …].

    Arguments: from, from_row, rows, panels, to, to_row, panel_step.
    """

    vectors: int

    def build(self, target: Target) -> ir.Module:
        """Return the IR of the loop nest."""
        e = Emitter(target, ENTRY, 7)
        source, source_row, rows, panels, to, to_row, panel_step = e.arguments

        def one_panel(state: list[ir.Value]) -> list[ir.Value]:
            at, out = state
            for j in range(self.vectors):
                e.store(e.load(at, 4 * e.lanes * j), out, 4 * e.lanes * j)
            return [e.add(at, 4 * e.lanes * self.vectors), e.add(out, panel_step)]

        def one_row(state: list[ir.Value]) -> list[ir.Value]:
            at, out = state
            e.repeat(panels, [at, out], one_panel)
            return [e.add(at, source_row), e.add(out, to_row)]

        e.repeat(rows, [source, to], one_row)
        e.builder.ret_void()
        return e.module
