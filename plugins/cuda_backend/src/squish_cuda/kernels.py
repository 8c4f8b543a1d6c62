"""The kernels, one family for every `Form`: products of few rows by integers, tiles on matrix units, and values.

A kernel takes a weight as one tuple (`launch.Arguments`): its arrays (None where there is none), its sizes, and the
constants of its form, in capitals; all that depends on the form is decided when a kernel is compiled. The axes of a
tile of codes are rows, runs of 32 columns, and lanes: the words of a run. `planes` reads words, `quad_of` takes the
codes of four neighbors out of them, one in each byte.
"""

from __future__ import annotations

import os

import triton
import triton.language as tl

MACHINE: tl.constexpr = tl.constexpr(os.environ.get("TRITON_INTERPRET") != "1")
"""Whether kernels are compiled. The interpreter knows no assembly, and takes bf16 for integers."""


@triton.jit
def dot4(a, b, c, SIGNED: tl.constexpr):
    """`c` and four products of the bytes of `a` (signed or not) and the signed ones of `b`."""
    if MACHINE:
        if SIGNED:
            c = tl.inline_asm_elementwise(
                "dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, c], dtype=tl.int32, is_pure=True, pack=1
            )
        else:
            c = tl.inline_asm_elementwise(
                "dp4a.u32.s32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, c], dtype=tl.int32, is_pure=True, pack=1
            )
    else:
        for byte in tl.static_range(4):
            if SIGNED:
                left = (a << (24 - 8 * byte)) >> 24
            else:
                left = (a >> (8 * byte)) & 255
            c += left * ((b << (24 - 8 * byte)) >> 24)
    return c


@triton.jit
def entries_of(q, t0, t1, t2, t3):
    """The entry of a table of 16 integers for each byte of `q`."""
    if MACHINE:
        result = tl.inline_asm_elementwise(
            """
            {
            .reg .b32 pair, select, low, high, mask;
            shr.u32 pair, $1, 4;
            or.b32 pair, pair, $1;
            prmt.b32 select, pair, 0, 0x4420;
            and.b32 mask, select, 0x7777;
            prmt.b32 low, $2, $3, mask;
            prmt.b32 high, $4, $5, mask;
            shr.u32 select, select, 1;
            and.b32 select, select, 0x4444;
            or.b32 select, select, 0x3210;
            prmt.b32 $0, low, high, select;
            }
            """,
            "=r,r,r,r,r,r",
            [q, t0, t1, t2, t3],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    else:
        result = q * 0
        for byte in tl.static_range(4):
            code = (q >> (8 * byte)) & 15
            words = tl.where(code < 8, tl.where(code < 4, t0, t1), tl.where(code < 12, t2, t3))
            result = result | (((words >> (8 * (code & 3))) & 255) << (8 * byte))
    return result


@triton.jit
def entry_words(at):
    """Four words of a table of integers."""
    return tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3)


@triton.jit
def matrix(a, b, c):
    """`a @ b + c` of bf16 in f32."""
    if MACHINE:
        c = tl.dot(a, b, c)
    else:
        c = tl.dot(a.to(tl.float32), b.to(tl.float32), c)
    return c


@triton.jit
def number(at, inside, KIND: tl.constexpr):
    """Stored numbers as f32; kinds are those of `form.KINDS`."""
    raw = tl.load(at, mask=inside, other=0)
    if KIND == 0:
        result = raw.to(tl.float32)
    else:
        result = of_byte(raw.to(tl.int32), KIND)
    return result


@triton.jit
def of_byte(byte, KIND: tl.constexpr):
    """The number that a byte is, as f32."""
    if KIND == 1:
        bits = tl.where(byte == 0, 0x400000, byte << 23)
        result = tl.where(byte == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)
    elif KIND == 2:
        size = ((byte & 127) << 7).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * 256.0
        size = tl.where((byte & 127) == 127, float("nan"), size)
        result = tl.where(byte < 128, size, -size)
    elif KIND == 3:
        result = (byte << 8).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    elif KIND == 4:
        result = tl.where(byte < 2, 0x200000 << (byte & 1), (byte - 1) << 23).to(tl.float32, bitcast=True)
    elif KIND == 5:
        size = ((byte & 127) << 7).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * 128.0
        result = tl.where((byte & 127) == 127, 0.0, size)
    elif KIND == 6:
        result = (byte & 15).to(tl.float32)
    else:
        result = (byte >> 4).to(tl.float32)
    return result


@triton.jit
def place(row, run, quad, numbers, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The number of a group of so many rows and columns, for quads of runs."""
    at = row // ROWS * numbers + run * 0
    if COLUMNS >= 32:
        at = row // ROWS * numbers + run // (COLUMNS // 32)
    elif COLUMNS > 0:
        at = row // ROWS * numbers + run * (32 // COLUMNS) + quad * 4 // COLUMNS
    return at


@triton.jit
def scales(w, row, run, quad, inside):
    """The scales of quads."""
    if w.SCALE < 8:
        s = number(w.scale + place(row, run, quad, w.numbers, w.ROWS, w.COLUMNS), inside, w.SCALE)
    else:  # of a grid: one and twice a number
        if w.SCALE == 8:
            at = place(row, run, quad, w.numbers, w.ROWS, w.COLUMNS)
            n = (tl.load(w.scale + at // 2, mask=inside, other=0).to(tl.int32) >> (at % 2 * 4)) & 15
        elif w.SCALE == 9:
            n = (tl.load(w.signs + row.to(tl.int64) * w.runs + run, mask=inside, other=0) >> 28) & 15
        else:
            n = (tl.load(w.high + row.to(tl.int64) * w.runs + run, mask=inside, other=0).to(tl.int32) >> 12) & 7
        s = (2 * n + 1).to(tl.float32)
    if w.factor is not None:
        factor = number(w.factor + place(row, run, quad, w.outers, w.OUTER_ROWS, w.OUTER_COLUMNS), inside, 0)
        if w.DIVIDES:
            s = s / factor
        else:
            s = s * factor
    return s


@triton.jit
def offsets(w, row, run, quad, inside):
    """The zero points, biases or minima of quads."""
    o = number(w.offset + place(row, run, quad, w.numbers, w.ROWS, w.COLUMNS), inside, w.OFFSET_DTYPE)
    if w.offset_factor is not None:
        o *= number(w.offset_factor + place(row, run, quad, w.outers, w.OUTER_ROWS, w.OUTER_COLUMNS), inside, 0)
    return o


@triton.jit
def words(w, row, run, lane, inside, SKIPPED: tl.constexpr, WIDTH: tl.constexpr):
    """Words of a plane for lanes; planes of `SKIPPED` bits lie before it, and those of a matrix before the next's."""
    at = w.codes + (row.to(tl.int64) * w.runs + run) * WIDTH
    if w.STACKED:
        at = at + (row // w.height).to(tl.int64) * w.plane * (w.FIRST + w.SECOND + w.THIRD - WIDTH)
    if SKIPPED > 0:  # it may be narrower than the lanes
        at = at + w.plane * SKIPPED + lane % WIDTH
    else:
        at = at + lane
    return tl.load(at, mask=inside, other=0)


@triton.jit
def digits(w, row, run, lane, inside):
    """The digits of TQ1_0 for quads: a byte is a fraction of 243, multiplied by 3 for each digit."""
    quad = run % 8 * 8 + lane
    word = tl.where(quad < 40, quad % 8, tl.where(quad < 60, 8 + (quad - 40) % 4, 12))
    power = tl.where(quad < 40, quad // 8, tl.where(quad < 60, (quad - 40) // 4, quad - 60))
    by = tl.where(power < 2, tl.where(power < 1, 1, 3), tl.where(power < 3, 9, tl.where(power < 4, 27, 81)))
    at = (row.to(tl.int64) * (w.runs // 8) + run // 8) * 13 + word
    packed = tl.load(w.codes + at, mask=inside, other=0)
    even = ((packed & 0x00FF00FF) * by) & 0x00FF00FF
    odd = (((packed >> 8) & 0x00FF00FF) * by) & 0x00FF00FF
    return ((even * 3 >> 8) & 0x00030003) | (((odd * 3 >> 8) & 0x00030003) << 8)


@triton.jit
def entries_of_grid(w, first, second, third, quad):
    """The entries of a grid for quads: four integers, with their signs."""
    octet = quad // 2
    index = (first >> (octet * 8)) & 255
    if w.HIGH == 1:
        index = index | (((third >> quad) & 1) << 8)
    elif w.HIGH == 2:
        index = index | (((third >> (octet * 2)) & 3) << 8)
    elif w.HIGH == 3:
        index = index | (((third >> (octet * 3)) & 7) << 8) | (((third >> 15) & 1) << 11)
    elif w.HIGH == 4:
        index = index | (((third >> (octet * 4)) & 15) << 8)
    elif w.HIGH == 5:
        index = index | (((second >> (28 + octet)) & 1) << 8)
    at = index
    if w.ENTRY_WORDS == 2:
        at = index * 2 + quad % 2
    q = tl.load(w.grid + at)
    if w.SIGN_BITS > 0:
        signs = (second >> (octet * w.SIGN_BITS)) & 255
        if w.SIGN_BITS == 7:
            signs = signs & 127
            odd = signs ^ (signs >> 4)
            odd = odd ^ (odd >> 2)
            signs = signs | (((odd ^ (odd >> 1)) & 1) << 7)
        negative = (((signs >> (quad % 2 * 4)) & 15) * 0x00204081) & 0x01010101
        q = (q ^ ((negative << 8) - negative)) + negative  # no entry is 0, so no byte carries into the next
    return q


@triton.jit
def planes(w, row, run, lane, inside):
    """The words of up to three planes, for lanes of the widest. A grid has signs in the second, high bits in the third;
    digits are codes already."""
    if w.DIGITS:
        first = digits(w, row, run, lane, inside)
    else:
        first = words(w, row, run, lane, inside, 0, w.FIRST)
    second, third = first, first
    if w.SIGN_BITS > 0:
        second = tl.load(w.signs + row.to(tl.int64) * w.runs + run, mask=inside, other=0)
    if w.high is not None:
        third = tl.load(w.high + row.to(tl.int64) * w.runs + run, mask=inside, other=0).to(tl.int32)
    if w.SECOND > 0:
        second = words(w, row, run, lane, inside, w.FIRST, w.SECOND)
    if w.THIRD > 0:
        third = words(w, row, run, lane, inside, w.FIRST + w.SECOND, w.THIRD)
    return first, second, third


@triton.jit
def quad_of(w, first, second, third, quad):
    """The codes of quads out of the words of up to three planes: one in each byte."""
    q = first
    if w.grid is not None:
        q = entries_of_grid(w, first, second, third, quad)
    elif w.FIRST < 8:
        q = (first >> (quad // w.FIRST * w.FIRST)) & w.FIRST_MASK
    if w.SECOND > 0:
        q = q | (((second >> (quad // w.SECOND * w.SECOND)) & w.SECOND_MASK) << w.FIRST)
    if w.THIRD > 0:
        q = q | (((third >> quad) & 0x01010101) << (w.FIRST + w.SECOND))
    return q


@triton.jit
def value(w, q, byte: tl.constexpr, s, o, ENTRIES: tl.constexpr):
    """The values of the codes in a byte, with the roundings of the codecs. With ENTRIES, it has those of a table; of a
    grid it always has."""
    code = (q >> (8 * byte)) & 255
    if ENTRIES or w.grid is not None:
        v = ((q << (24 - 8 * byte)) >> 24).to(tl.float32) * w.ENTRY
    elif w.table is not None:
        v = tl.load(w.table + code)
    elif w.ELEMENT > 0:
        v = of_byte(code, w.ELEMENT)
    else:
        v = (code - w.ZERO).to(tl.float32)
    if w.OFFSET == 1:
        v = v - o
    v = v * s
    if w.OFFSET == 2:
        v = v + o
    if w.OFFSET == 3:
        v = v - o
    return v


@triton.jit
def decoded(w, row, run, lane, inside, half: tl.constexpr, ENTRIES: tl.constexpr):
    """The values [rows, runs, lanes, 2, 2] of the quads of a step; of a table in registers with ENTRIES, without -0."""
    quad = lane + half * w.FIRST
    first, second, third = planes(w, row, run, lane, inside)
    q = quad_of(w, first, second, third, quad)
    s = scales(w, row, run, quad, inside)
    o = s
    if w.OFFSET > 0:
        o = offsets(w, row, run, quad, inside)
    if ENTRIES and w.grid is None:
        q = entries_of(q, w.T0, w.T1, w.T2, w.T3)
    v0, v1 = value(w, q, 0, s, o, ENTRIES), value(w, q, 1, s, o, ENTRIES)
    v2, v3 = value(w, q, 2, s, o, ENTRIES), value(w, q, 3, s, o, ENTRIES)
    return tl.join(tl.join(v0, v2), tl.join(v1, v3))


@triton.jit
def prepare(
    x,
    order,
    high,
    low,
    steps,
    sums,
    columns,
    runs,
    x_row,
    x_column,
    SUB: tl.constexpr,
    LEVELS: tl.constexpr,
    BR: tl.constexpr,
):
    """Rows of x with a step for each run, and the sums of `SUB` parts of a run.

    LEVELS 2: in 16 bits, `step * (256 * high + low)`. 1: in 8 bits, `step * high`. 0: in f32, every fourth in a plane.
    """
    row = tl.program_id(1).to(tl.int64)
    run = tl.program_id(0) * BR + tl.arange(0, BR)
    element = run[:, None] * 32 + tl.arange(0, 32)[None, :]
    inside = element < columns
    source = element.to(tl.int64)
    if order is not None:
        source = tl.load(order + element, mask=inside, other=0)
    values = tl.load(x + row * x_row + source * x_column, mask=inside, other=0.0).to(tl.float32)
    kept = (run < runs)[:, None]
    at = row * runs * 32
    if LEVELS == 0:
        tl.store(high + at + element % 4 * (runs * 8) + element // 4, values, mask=kept)
        sums_of_parts = tl.sum(tl.reshape(values, (BR, SUB, 32 // SUB)), 2)
    else:
        step = tl.max(tl.abs(values), 1) / (32512 if LEVELS == 2 else 127)
        rounded = tl.floor(values / tl.where(step > 0, step, 1.0)[:, None] + 0.5).to(tl.int32)
        if LEVELS == 2:
            fine = ((rounded + 128) & 255) - 128
            tl.store(high + at + element, ((rounded - fine) >> 8).to(tl.int8), mask=kept)
            tl.store(low + at + element, fine.to(tl.int8), mask=kept)
        else:
            tl.store(high + at + element, rounded.to(tl.int8), mask=kept)
        tl.store(steps + row * runs + run, step, mask=run < runs)
        sums_of_parts = tl.sum(tl.reshape(rounded, (BR, SUB, 32 // SUB)), 2).to(tl.float32) * step[:, None]
    part = run[:, None] * SUB + tl.arange(0, SUB)[None, :]
    tl.store(sums + row * runs * SUB + part, sums_of_parts, mask=kept)


@triton.jit
def product(
    x,
    w,
    ids,
    bias,
    y,
    count,
    y_row,
    LEVELS: tl.constexpr,
    M: tl.constexpr,
    BN: tl.constexpr,
    BR: tl.constexpr,
):
    """M rows of prepared x times rows of codes. Where there are `ids`, each row of x has the matrix that they name.

    Codes are multiplied without their zero; it, and offsets, multiply the sums of x.
    """
    # lanes have numbers of their own, or all lanes of SHARE steps have one
    LANES: tl.constexpr = w.FIRST if w.SUB * w.FIRST > 8 else 1
    SHARE: tl.constexpr = 8 // (w.SUB * w.FIRST) if w.SUB * w.FIRST < 8 else 1
    out = tl.program_id(0) * BN + tl.arange(0, BN)
    line = tl.program_id(1) * M + tl.arange(0, M)
    row = tl.minimum(out, w.height - 1)
    if ids is not None:
        row += tl.load(ids + tl.program_id(1)).to(tl.int32) * w.height
    row = row[None, :, None, None]
    lane = tl.arange(0, w.FIRST)[None, None, None, :]
    few = tl.arange(0, LANES)[None, None, None, :]
    start_of_x = tl.minimum(line, count - 1).to(tl.int64)[:, None, None, None] * w.runs
    t0, t1, t2, t3, unit = w.T0, w.T1, w.T2, w.T3, w.UNIT
    f0, f1, f2, f3 = w.F0, w.F1, w.F2, w.F3
    if w.registers is not None and LEVELS > 0:
        t0, t1, t2, t3 = entry_words(w.registers)
        f0, f1, f2, f3 = entry_words(w.registers + 4)
        unit = tl.load(w.registers + 8).to(tl.float32, bitcast=True)
    total = tl.zeros((M, BN, BR, w.FIRST), tl.float32)
    rest = tl.zeros((M, BN, BR, LANES), tl.float32)
    for start in range(0, w.runs, BR):
        run = (start + tl.arange(0, BR))[None, None, :, None]
        inside = run < w.runs
        first, second, third = planes(w, row, run, lane, inside)
        part = tl.zeros((M, BN, BR, w.FIRST), tl.int32)
        coarse = tl.zeros((M, BN, BR, w.FIRST), tl.int32)
        for half in tl.static_range(8 // w.FIRST):
            quad = lane + half * w.FIRST
            q = quad_of(w, first, second, third, quad)
            if half // SHARE * SHARE == half:
                group = few + half * w.FIRST
                s = scales(w, row, run, group, inside)
                if w.OFFSET > 0 or w.ZERO != 0:
                    sum_of_x = tl.load(x.sums + (start_of_x + run) * w.SUB + group * w.SUB // 8, mask=inside, other=0.0)
                    if LANES > 1:  # each sum is there as often as lanes share it
                        sum_of_x = sum_of_x * (w.SUB / 8)
                    rest -= sum_of_x * w.ZERO * s
                    if w.OFFSET > 0:
                        o = offsets(w, row, run, group, inside) / unit
                        if w.OFFSET == 1:
                            rest -= sum_of_x * o * s
                        elif w.OFFSET == 2:
                            rest += sum_of_x * o
                        else:
                            rest -= sum_of_x * o
            if LEVELS == 0:
                some = tl.zeros((M, BN, BR, w.FIRST), tl.float32)
                for byte in tl.static_range(4):
                    code = (q >> (8 * byte)) & 255
                    if w.grid is not None:
                        v = ((q << (24 - 8 * byte)) >> 24).to(tl.float32)
                    elif w.table is not None:
                        v = tl.load(w.table + code)
                    elif w.ELEMENT > 0:
                        v = of_byte(code, w.ELEMENT)
                    else:
                        v = code.to(tl.float32)
                    at = x.high + start_of_x * 32 + byte * (w.runs * 8) + run * 8 + quad
                    some += v * tl.load(at, mask=inside, other=0.0)
                total += some * s
            else:
                fine = q
                if w.FINE:
                    fine = entries_of(q, f0, f1, f2, f3) + tl.zeros_like(part)
                if w.table is not None:
                    q = entries_of(q, t0, t1, t2, t3)
                q += tl.zeros_like(part)
                at = start_of_x * 8 + run * 8 + quad
                high = tl.load(x.high + at, mask=inside, other=0) + tl.zeros_like(part)
                if w.FINE:  # of `(256 * q + fine) * (256 * high + low)`, `fine * low` is left out
                    coarse = dot4(q, high, coarse, True)
                    part = dot4(fine, high, part, True)
                    if LEVELS == 2:
                        low = tl.load(x.low + at, mask=inside, other=0) + tl.zeros_like(part)
                        part = dot4(q, low, part, True)
                elif LEVELS == 2:  # `256 * high + low` is summed exactly: it stays below 2 ** 31
                    low = tl.load(x.low + at, mask=inside, other=0) + tl.zeros_like(part)
                    upper = dot4(q, high, tl.zeros_like(part), w.SIGNED)
                    part = dot4(q, low, part + upper * 256, w.SIGNED)
                else:
                    part = dot4(q, high, part, w.SIGNED)
                if (half + 1) // SHARE * SHARE == half + 1:
                    step = tl.load(x.steps + start_of_x + run, mask=inside, other=0.0)
                    sums_of_step = part.to(tl.float32)
                    if w.FINE:
                        sums_of_step = coarse.to(tl.float32) * 256.0 + sums_of_step
                        if LEVELS == 2:
                            sums_of_step *= 256.0
                        coarse = tl.zeros_like(part)
                    total += sums_of_step * (step * s)
                    part = tl.zeros_like(part)
    result = (tl.sum(tl.sum(total, 3), 2) + tl.sum(tl.sum(rest, 3), 2)) * unit
    if bias is not None:
        result += tl.load(bias + tl.minimum(out, w.height - 1)).to(tl.float32)[None, :]
    at = y + line.to(tl.int64)[:, None] * y_row + out[None, :]
    tl.store(at, result.to(y.dtype.element_ty), mask=(line < count)[:, None] & (out < w.height)[None, :])


@triton.jit
def values(w, ids, start, count, out, out_row, BN: tl.constexpr, BR: tl.constexpr):
    """Values of the rows that `ids` name (NaN where there is no such row), or of those from `start` on."""
    line = tl.program_id(0) * BN + tl.arange(0, BN)
    row = line + start
    if ids is not None:
        row = tl.load(ids + line, mask=line < count, other=0).to(tl.int32)
    exists = (row >= 0) & (row < w.rows)
    row = tl.where(exists, row, 0)[:, None, None]
    run = (tl.program_id(1) * BR + tl.arange(0, BR))[None, :, None]
    lane = tl.arange(0, w.FIRST)[None, None, :]
    to = out + line.to(tl.int64)[:, None, None, None] * out_row
    for half in tl.static_range(8 // w.FIRST):
        v = tl.reshape(decoded(w, row, run, lane, run < w.runs, half, False), (BN, BR, w.FIRST, 4))
        v = tl.where(exists[:, None, None, None], v, float("nan"))
        element = (run * 32 + (lane + half * w.FIRST) * 4)[:, :, :, None] + tl.arange(0, 4)[None, None, None, :]
        inside = (line < count)[:, None, None, None] & (element < w.columns)
        tl.store(to + element, v.to(out.dtype.element_ty), mask=inside)


@triton.jit
def tiles(
    x,
    w,
    groups,
    bias,
    y,
    count,
    x_row,
    x_column,
    y_row,
    WIDE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BR: tl.constexpr,
):
    """Tiles on matrix units. Where there are `groups`, a tile has rows of x in their order, and the matrix they name.

    Values, and x in more than 8 bits (WIDE), are sums of two bf16, so that products are as exact as sums in f32.
    """
    SIZE: tl.constexpr = BR * w.FIRST * 4
    out = tl.program_id(0) * BN + tl.arange(0, BN)
    row = tl.minimum(out, w.height - 1)
    tile = tl.program_id(1)
    if groups is not None:
        row += tl.load(groups.experts + tile).to(tl.int32) * w.height
        line = tl.load(groups.starts + tile).to(tl.int32) + tl.arange(0, BM)
        real = line < tl.load(groups.stops + tile)
        line = tl.load(groups.order + line, mask=real, other=0).to(tl.int32)
    else:
        line = tile * BM + tl.arange(0, BM)
        real = line < count
    row = row[:, None, None]
    lane = tl.arange(0, w.FIRST)[None, None, :]
    from_x = x + line.to(tl.int64)[:, None] * x_row
    within = tl.arange(0, SIZE)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, w.runs, BR):
        run = (start + tl.arange(0, BR))[None, :, None]
        for half in tl.static_range(8 // w.FIRST):
            v = tl.trans(tl.reshape(decoded(w, row, run, lane, run < w.runs, half, w.ENTRY != 0), (BN, SIZE)))
            coarse = v.to(tl.bfloat16)
            fine = (v - coarse.to(tl.float32)).to(tl.bfloat16)
            element = (start + within // (w.FIRST * 4)) * 32 + half * w.FIRST * 4 + within % (w.FIRST * 4)
            seen = real[:, None] & (element < w.columns)[None, :]
            u = tl.load(from_x + element.to(tl.int64)[None, :] * x_column, mask=seen, other=0.0)
            upper = u.to(tl.bfloat16)
            total = matrix(upper, fine, matrix(upper, coarse, total))
            if WIDE:
                total = matrix((u.to(tl.float32) - upper.to(tl.float32)).to(tl.bfloat16), coarse, total)
    if bias is not None:
        total += tl.load(bias + tl.minimum(out, w.height - 1)).to(tl.float32)[None, :]
    to = y + line.to(tl.int64)[:, None] * y_row + out[None, :]
    tl.store(to, total.to(y.dtype.element_ty), mask=real[:, None] & (out < w.height)[None, :])
