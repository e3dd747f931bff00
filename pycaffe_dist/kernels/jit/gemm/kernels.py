"""The microkernels of matrix products, which convolutions use, too.

Every argument is a 64-bit integer: an address, a stride or offset in bytes, or a count, which is at
least 1 where it says how often a loop runs.  A tile of sums fills the vector registers; it is never
higher than `Target.tile_rows`.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from pycaffe_dist.kernels.jit.codegen.emitter import Emitter
from pycaffe_dist.kernels.jit.codegen.objects import ENTRY
from pycaffe_dist.kernels.jit.codegen.target import Target

# Steps of k by which lines of B are fetched ahead; rows by which a copy fetches; bytes of a line.
AHEAD, ROWS_AHEAD, LINE = 12, 4, 64


@dataclass(frozen=True)
class OuterKernel:
    """Sums of outer products: ``rows`` broadcast values times ``vectors`` of lanes, in place::

        for n < images: for y < height: for x < width: for i < rows:
            sums[i] += b[n·b_image + y·b_row + x·b_step + offsets[i]]
                       · a[n·a_image + y·a_row + x·vector bytes·vectors …]

    Arguments: b, b_image, b_row, b_step, offsets (int64 each), a, a_image, a_row, images, height,
    width, sums.
    """

    rows: int
    vectors: int

    def build(self, target: Target) -> ir.Module:
        """Return the IR of the loop nest."""
        e = Emitter(target, ENTRY, 12)
        b, b_image, b_row, b_step, offsets, a, a_image, a_row, *counts, sums = e.arguments
        images, height, width = counts
        offset = [e.load_int(offsets, 8 * i) for i in range(self.rows)]
        vector_bytes = 4 * e.lanes

        def one_pixel(state: list[ir.Value]) -> list[ir.Value]:
            at_b, at_a, *tile = state
            lanes = [e.load(at_a, vector_bytes * j) for j in range(self.vectors)]
            for i in range(self.rows):
                value = e.broadcast(at_b, offset[i])
                for j, lane in enumerate(lanes):
                    at = i * self.vectors + j
                    tile[at] = e.multiply_add(value, lane, tile[at])
            return [e.add(at_b, b_step), e.add(at_a, vector_bytes * self.vectors), *tile]

        def one_row(state: list[ir.Value]) -> list[ir.Value]:
            at_b, at_a, *_ = state
            return [e.add(at_b, b_row), e.add(at_a, a_row), *e.repeat(width, state, one_pixel)[2:]]

        def one_image(state: list[ir.Value]) -> list[ir.Value]:
            at_b, at_a, *_ = state
            tile = e.repeat(height, state, one_row)[2:]
            return [e.add(at_b, b_image), e.add(at_a, a_image), *tile]

        count = self.rows * self.vectors
        start = [e.load(sums, vector_bytes * at) for at in range(count)]
        for at, value in enumerate(e.repeat(images, [b, a, *start], one_image)[2:]):
            e.store(value, sums, vector_bytes * at)
        e.builder.ret_void()
        return e.module


@dataclass(frozen=True)
class PixelKernel:
    """Sums over pixels of ``rows`` channels, in place, times ``vectors`` of transposed channels::

        for n < images: for p < pixels: for i < rows:
            sums[i] += b[n·b_image + i·row_step + 4·p] · a[(n·pixels + p)·vector bytes·vectors …]

    The bytes between rows are known here, so that they take no registers.  Arguments: b, b_image,
    a, images, pixels, sums.
    """

    rows: int
    vectors: int
    row_step: int

    def build(self, target: Target) -> ir.Module:
        """Return the IR of the loop nest."""
        e = Emitter(target, ENTRY, 6)
        b, b_image, a, images, pixels, sums = e.arguments
        vector_bytes = 4 * e.lanes

        def one_pixel(state: list[ir.Value]) -> list[ir.Value]:
            at_b, at_a, *tile = state
            lanes = [e.load(at_a, vector_bytes * j) for j in range(self.vectors)]
            for i in range(self.rows):
                value = e.broadcast(at_b, self.row_step * i)
                for j, lane in enumerate(lanes):
                    at = i * self.vectors + j
                    tile[at] = e.multiply_add(value, lane, tile[at])
            return [e.add(at_b, 4), e.add(at_a, vector_bytes * self.vectors), *tile]

        def one_image(state: list[ir.Value]) -> list[ir.Value]:
            at_b, *_ = state
            return [e.add(at_b, b_image), *e.repeat(pixels, state, one_pixel)[1:]]

        count = self.rows * self.vectors
        start = [e.load(sums, vector_bytes * at) for at in range(count)]
        for at, value in enumerate(e.repeat(images, [b, a, *start], one_image)[2:]):
            e.store(value, sums, vector_bytes * at)
        e.builder.ret_void()
        return e.module


@dataclass(frozen=True)
class FlatKernel:
    """A tile of a matrix product: ``rows`` of packed A times ``vectors`` of columns of B::

        sum[i] = bias[i]
        for k < depth: sum[i] += a[k·rows + i] · b[k·b_row …]
        y[i·y_row …] = sum[i] + y[i·y_row …] if add else sum[i], rectified, for i < valid

    With ``masked`` the last vector has only ``lanes`` valid lanes, and nothing beyond them is read
    or written.  Arguments: a, b, b_row, depth, bias, slope, y, y_row, valid, add (0 or 1), lanes.
    """

    rows: int
    vectors: int
    masked: bool

    def build(self, target: Target) -> ir.Module:
        """Return the IR of the loop nest."""
        e = Emitter(target, ENTRY, 11)
        a, b, b_row, depth, bias, slope, y, y_row, valid, add, lanes = e.arguments
        masks = [None] * (self.vectors - 1) + [e.mask_below(lanes) if self.masked else None]
        vector_bytes = 4 * e.lanes
        # Rows beyond the last valid one use that row's memory; it is written last.
        last = e.builder.sub(valid, e.int(1))
        rows = [e.add(y, e.builder.mul(e.minimum(i, last), y_row)) for i in range(self.rows)]

        def one_step(state: list[ir.Value]) -> list[ir.Value]:
            at_a, at_b, *tile = state
            columns = [e.load(at_b, vector_bytes * j, mask) for j, mask in enumerate(masks)]
            for i in range(self.rows):
                value = e.broadcast(at_a, 4 * i)
                for j, column in enumerate(columns):
                    at = i * self.vectors + j
                    tile[at] = e.multiply_add(value, column, tile[at])
            return [e.add(at_a, 4 * self.rows), e.add(at_b, b_row), *tile]

        for row in rows:
            for offset in range(0, vector_bytes * self.vectors, LINE):
                e.prefetch(row, offset, level=1, write=True)
        start = [e.broadcast(bias, 4 * i) for i in range(self.rows) for _ in masks]
        tile = e.repeat(depth, [a, b, *start], one_step)[2:]
        tile = self._added(e, tile, rows, masks, add)
        factor = e.broadcast(slope)
        for i in reversed(range(self.rows)):
            for j, mask in enumerate(masks):
                value = e.rectify(tile[i * self.vectors + j], factor)
                e.store(value, rows[i], vector_bytes * j, mask)
        e.builder.ret_void()
        return e.module

    def _added(self, e: Emitter, tile: list, rows: list, masks: list, add) -> list[ir.Value]:
        """Return the tile, plus the old values if they are wanted."""
        build, before = e.builder, e.builder.block
        old, go = (e.function.append_basic_block() for _ in range(2))
        build.cbranch(build.icmp_signed("!=", add, e.int(0)), old, go)
        build.position_at_end(old)
        places = [(row, 4 * e.lanes * j, mask) for row in rows for j, mask in enumerate(masks)]
        sums = [build.fadd(value, e.load(*place)) for value, place in zip(tile, places)]
        build.branch(go)
        build.position_at_end(go)
        found = []
        for value, added in zip(tile, sums):
            phi = build.phi(e.vector)
            phi.add_incoming(value, before)
            phi.add_incoming(added, old)
            found.append(phi)
        return found


@dataclass(frozen=True)
class ChannelKernel:
    """A tile of a matrix product: ``pixels`` columns of B times ``vectors`` of lanes, rows of A::

        sum[i] = start[i·start_step …]
        for k < depth: sum[i] += b[k·b_row + 4·i] · a[k·a_row …]
        out[i·vector bytes·vectors …] = sum[i]

    With ``ends`` the sums are transposed and rectified, out[lane·out_row + 4·i] = sum[i][lane] for
    lane < valid; with ``adds`` the old values are added before.  In each step the line of the cache
    at ahead + k·ahead_step is fetched.  Arguments: a, a_row, b, b_row, depth, start, start_step,
    ahead, ahead_step, out, out_row, valid, slope.
    """

    pixels: int
    vectors: int
    ends: bool
    adds: bool = False

    def build(self, target: Target) -> ir.Module:
        """Return the IR of the loop."""
        e = Emitter(target, ENTRY, 13)
        a, a_row, b, b_row, depth, start, start_step, ahead, ahead_step, *output = e.arguments
        vector_bytes, last = 4 * e.lanes, 4 * self.pixels - 4
        places = [(i, j) for i in range(self.pixels) for j in range(self.vectors)]
        reach = e.builder.mul(b_row, e.int(AHEAD))

        def one_step(state: list[ir.Value]) -> list[ir.Value]:
            at_a, at_b, at_ahead, *sums = state
            e.prefetch(at_ahead)
            # The hardware does not foresee strides of large images.
            for offset in {*range(0, last, LINE), last}:
                e.prefetch(e.add(at_b, reach), offset, level=1)
            lanes = [e.load(at_a, vector_bytes * j) for j in range(self.vectors)]
            values = [e.broadcast(at_b, 4 * i) for i in range(self.pixels)]
            sums = [e.multiply_add(values[i], lanes[j], s) for s, (i, j) in zip(sums, places)]
            return [e.add(at_a, a_row), e.add(at_b, b_row), e.add(at_ahead, ahead_step), *sums]

        starts = [e.add(start, e.builder.mul(start_step, e.int(i))) for i in range(self.pixels)]
        sums = [e.load(starts[i], vector_bytes * j) for i, j in places]
        if self.ends:
            rows = self._rows(e, *output[:3])
            for row in rows:
                e.prefetch(row, last, level=1, write=True)
        sums = e.repeat(depth, [a, b, ahead, *sums], one_step)[3:]
        if self.ends:
            self._store(e, sums, rows, e.broadcast(output[3]))
        else:
            for at, value in enumerate(sums):
                e.store(value, output[0], vector_bytes * at)
        e.builder.ret_void()
        return e.module

    def _rows(self, e: Emitter, out, out_row, valid) -> list[ir.Value]:
        """Return the address for each lane: lanes beyond the last row have that row's address."""
        last = e.builder.sub(valid, e.int(1))
        lanes = range(self.vectors * e.lanes)
        return [e.add(out, e.builder.mul(e.minimum(lane, last), out_row)) for lane in lanes]

    def _store(self, e: Emitter, sums: list, rows: list, slope: ir.Value) -> None:
        for j in reversed(range(self.vectors)):
            for first in reversed(range(0, self.pixels, e.lanes)):
                count = min(e.lanes, self.pixels - first)
                tile = [sums[i * self.vectors + j] for i in range(first, first + count)]
                stored = list(zip(rows[j * e.lanes :], e.transpose(tile)))
                if self.adds:
                    stored = [
                        (row, e.builder.fadd(value, e.load_first(count, row, 4 * first)))
                        for row, value in stored
                    ]
                # The last row is stored after the lanes beyond it, and overwrites them.
                for row, value in reversed(stored):
                    e.store_first(e.rectify(value, slope), count, row, 4 * first)


@dataclass(frozen=True)
class TransposeKernel:
    """Transposes some rows of a vector each: to[l·to_row + 4·r] = from[r·from_row + 4·l].

    There are ``height`` rows, at most a vector's lanes, by default as many.  Only ``rows`` rows and
    ``columns`` columns are read; missing rows become zeros and missing columns are not written.
    Arguments: from, from_row, to, to_row, rows, columns.
    """

    height: int = 0

    def build(self, target: Target) -> ir.Module:
        """Return the IR."""
        e = Emitter(target, ENTRY, 6)
        source, source_row, to, to_row, rows, columns = e.arguments
        build, height = e.builder, self.height or e.lanes
        whole, partial, go = (e.function.append_basic_block() for _ in range(3))
        full = build.icmp_signed("==", build.add(rows, columns), e.int(height + e.lanes))
        build.cbranch(full, whole, partial)
        build.position_at_end(whole)
        plain = [e.load(source, build.mul(source_row, e.int(r))) for r in range(height)]
        build.branch(go)
        build.position_at_end(partial)
        mask, last_row = e.mask_below(columns), build.sub(rows, e.int(1))
        masked = []
        for r in range(height):
            value = e.load(source, build.mul(source_row, e.minimum(r, last_row)), mask)
            exists = build.icmp_signed("<", e.int(r), rows)
            masked.append(build.select(exists, value, e.zero))
        build.branch(go)
        build.position_at_end(go)
        square = []
        for a, b in zip(plain, masked):
            phi = build.phi(e.vector)
            phi.add_incoming(a, whole)
            phi.add_incoming(b, partial)
            square.append(phi)
        last = build.sub(columns, e.int(1))
        for lane, row in reversed(list(enumerate(e.transpose(square)))):
            e.store_first(row, height, to, build.mul(e.minimum(lane, last), to_row))
        build.ret_void()
        return e.module


@dataclass(frozen=True)
class PanelKernel:
    """Copies neighbouring column blocks of a matrix, ``vectors`` wide.

    panel[p][r·to_row …] = from[r·from_row + p·vector bytes·vectors …] for p < panels, r < rows.
    With ``masked`` the last vector has only ``lanes`` valid lanes, and nothing beyond them is read
    or written.  Arguments: from, from_row, rows, panels, to, to_row, panel_step, lanes.
    """

    vectors: int
    masked: bool

    def build(self, target: Target) -> ir.Module:
        """Return the IR of the loop nest."""
        e = Emitter(target, ENTRY, 8)
        source, source_row, rows, panels, to, to_row, panel_step, lanes = e.arguments
        mask = e.mask_below(lanes) if self.masked else None
        width = 4 * e.lanes * self.vectors

        reach = e.builder.mul(source_row, e.int(ROWS_AHEAD))

        def one_panel(state: list[ir.Value]) -> list[ir.Value]:
            at, out = state
            for offset in range(0, width, LINE):
                e.prefetch(e.add(at, reach), offset)
            for j in range(self.vectors):
                last = mask if j == self.vectors - 1 else None
                e.store(e.load(at, 4 * e.lanes * j, last), out, 4 * e.lanes * j, last)
            return [e.add(at, width), e.add(out, panel_step)]

        def one_row(state: list[ir.Value]) -> list[ir.Value]:
            at, out = state
            e.repeat(panels, [at, out], one_panel)
            return [e.add(at, source_row), e.add(out, to_row)]

        e.repeat(rows, [source, to], one_row)
        e.builder.ret_void()
        return e.module
