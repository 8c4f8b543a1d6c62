"""The kernels, one family for every `Form`: products of few rows by integers, tiles on matrix units, and values.

A kernel takes the arrays of a weight (`codes` to `offset_factor`; where one is missing, any other), its sizes, and the
constants of its form. Everything that depends on the form is decided when a kernel is compiled. Rows of numbers of groups:
`place`; codes of four neighbors: `planes` and `quad`, as `form` describes them.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def dot4(a, b, c, SIGNED: tl.constexpr, ASM: tl.constexpr):
    """`c` and four products of the bytes of `a` (signed or not) and the signed ones of `b`."""
    if ASM:
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
def chosen16(q, T0: tl.constexpr, T1: tl.constexpr, T2: tl.constexpr, T3: tl.constexpr, ASM: tl.constexpr):
    """The byte of a table of 16 for each byte of `q`: four words of the table hold its entries in order."""
    if ASM:
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
            "=r,r,r,r,r,r", [q, T0, T1, T2, T3], dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        result = q * 0
        for byte in tl.static_range(4):
            code = (q >> (8 * byte)) & 15
            entries = tl.where(code < 8, tl.where(code < 4, T0, T1), tl.where(code < 12, T2, T3))
            result = result | (((entries >> (8 * (code & 3))) & 255) << (8 * byte))
    return result


@triton.jit
def number(at, inside, KIND: tl.constexpr):
    """Stored numbers as f32; kinds are those of `form.KINDS`."""
    raw = tl.load(at, mask=inside, other=0)
    byte = raw.to(tl.int32)
    if KIND == 0:
        result = raw.to(tl.float32)
    elif KIND == 1:
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
    """The number of a group: rows [.., 1, 1], runs [1, .., 1], quads [1, 1, ..] of a run."""
    at = row // ROWS * numbers + run * 0
    if COLUMNS >= 32:
        at = row // ROWS * numbers + run // (COLUMNS // 32)
    elif COLUMNS > 0:
        at = row // ROWS * numbers + run * (32 // COLUMNS) + quad * 4 // COLUMNS
    return at


@triton.jit
def scales(
    scale, factor, row, run, quad, numbers, outers, inside, SCALE: tl.constexpr, FACTOR: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, OUTER_ROWS: tl.constexpr, OUTER_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Scales (or offsets) of groups, times (1) or divided by (2) those of groups of groups."""
    result = number(scale + place(row, run, quad, numbers, ROWS, COLUMNS), inside, SCALE)
    if FACTOR > 0:
        outer = number(factor + place(row, run, quad, outers, OUTER_ROWS, OUTER_COLUMNS), inside, 0)
        if FACTOR == 1:
            result = result * outer
        else:
            result = result / outer
    return result


@triton.jit
def word(codes, row, run, lane, plane, runs, inside, SKIPPED: tl.constexpr, WIDTH: tl.constexpr):
    """Words of a plane for the quads of lanes; planes of `SKIPPED` bits, of `plane` runs, lie before it."""
    at = codes + (row.to(tl.int64) * runs + run) * WIDTH
    if SKIPPED > 0:  # it may be narrower than the lanes
        at = at + plane * SKIPPED + lane % WIDTH
    else:
        at = at + lane
    return tl.load(at, mask=inside, other=0)


@triton.jit
def quad_of(first, second, third, quad, BITS: tl.constexpr):
    """The codes of quads out of the words of up to three planes: one in each byte."""
    LEAD: tl.constexpr = 8 if BITS == 8 else 4 if BITS >= 4 else 2 if BITS >= 2 else 1
    NEXT: tl.constexpr = BITS - LEAD
    WIDE: tl.constexpr = 2 if NEXT >= 2 else 1
    codes = first
    if BITS < 8:
        codes = (first >> (LEAD * (quad // LEAD))) & (0x01010101 * ((1 << LEAD) - 1))
    if NEXT > 0:
        codes = codes | (((second >> (WIDE * (quad // WIDE))) & (0x01010101 * ((1 << WIDE) - 1))) << LEAD)
    if NEXT == 3:
        codes = codes | (((third >> quad) & 0x01010101) << (LEAD + WIDE))
    return codes


@triton.jit
def planes(codes, row, run, lane, plane, runs, inside, BITS: tl.constexpr):
    """The words of up to three planes, for lanes of the widest."""
    LEAD: tl.constexpr = 8 if BITS == 8 else 4 if BITS >= 4 else 2 if BITS >= 2 else 1
    NEXT: tl.constexpr = BITS - LEAD
    WIDE: tl.constexpr = 2 if NEXT >= 2 else 1
    first = word(codes, row, run, lane, plane, runs, inside, 0, LEAD)
    second, third = first, first
    if NEXT > 0:
        second = word(codes, row, run, lane, plane, runs, inside, LEAD, WIDE)
    if NEXT == 3:
        third = word(codes, row, run, lane, plane, runs, inside, LEAD + WIDE, 1)
    return first, second, third


@triton.jit
def value(code, s, o, table, ZERO: tl.constexpr, TABLE: tl.constexpr, SCALE: tl.constexpr, OFFSET: tl.constexpr):
    """The values of codes, with the roundings of the codecs."""
    if TABLE:
        v = tl.load(table + code)
    else:
        v = (code - ZERO).to(tl.float32)
    if OFFSET == 1:
        v = v - o
    if SCALE >= 0:
        v = v * s
    if OFFSET == 2:
        v = v + o
    if OFFSET == 3:
        v = v - o
    return v


@triton.jit
def prepare(
    x, order, high, low, steps, sums, columns, runs, x_row, x_column, ORDERED: tl.constexpr, SUB: tl.constexpr,
    LEVELS: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Rows of x as integers with a step for each run: `step * (256 * high + low)` in 16 bits (LEVELS 2), `step * high` in 8
    (1), or as they are, in f32 planes of every fourth column (0); and sums of those, `SUB` for a run."""
    row = tl.program_id(1)
    run = tl.program_id(0) * BR + tl.arange(0, BR)
    element = run[:, None] * 32 + tl.arange(0, 32)[None, :]
    inside = element < columns
    source = element.to(tl.int64)
    if ORDERED:
        source = tl.load(order + element, mask=inside, other=0)
    values = tl.load(x + row.to(tl.int64) * x_row + source * x_column, mask=inside, other=0.0).to(tl.float32)
    kept = (run < runs)[:, None]
    if LEVELS == 0:
        plane = element % 4 * (runs * 8) + element // 4
        tl.store(high + row.to(tl.int64) * runs * 32 + plane, values, mask=kept)
        whole = values
        step = tl.full((BR,), 1.0, tl.float32)
    else:
        LARGEST: tl.constexpr = 32512 if LEVELS == 2 else 127
        step = tl.max(tl.abs(values), 1) / LARGEST
        scaled = values / tl.where(step > 0, step, 1.0)[:, None]
        rounded = tl.floor(scaled + 0.5).to(tl.int32)
        at = row.to(tl.int64) * runs * 32 + element
        if LEVELS == 2:
            fine = ((rounded + 128) & 255) - 128
            tl.store(high + at, ((rounded - fine) >> 8).to(tl.int8), mask=kept)
            tl.store(low + at, fine.to(tl.int8), mask=kept)
        else:
            tl.store(high + at, rounded.to(tl.int8), mask=kept)
        whole = rounded.to(tl.float32)
        tl.store(steps + row.to(tl.int64) * runs + run, step, mask=run < runs)
    parts = tl.sum(tl.reshape(whole, (BR, SUB, 32 // SUB)), 2) * step[:, None]
    part = run[:, None] * SUB + tl.arange(0, SUB)[None, :]
    tl.store(sums + row.to(tl.int64) * runs * SUB + part, parts, mask=kept)


@triton.jit
def product(
    high, low, steps, sums, ids, bias, y, codes, table, scale, factor, offset, offset_factor, plane, height, runs, count,
    numbers, outers, y_row, BITS: tl.constexpr, ZERO: tl.constexpr, TABLE: tl.constexpr, UNIT: tl.constexpr,
    T0: tl.constexpr, T1: tl.constexpr, T2: tl.constexpr, T3: tl.constexpr, SCALE: tl.constexpr, FACTOR: tl.constexpr,
    OFFSET: tl.constexpr, OFFSET_DTYPE: tl.constexpr, OFFSET_FACTOR: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, OUTER_ROWS: tl.constexpr, OUTER_COLUMNS: tl.constexpr, LEVELS: tl.constexpr,
    EXPERTS: tl.constexpr, BIASED: tl.constexpr, M: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """M rows of prepared x times rows of codes; with EXPERTS, each row of x has the matrix that `ids` names."""
    LEAD: tl.constexpr = 8 if BITS == 8 else 4 if BITS >= 4 else 2 if BITS >= 2 else 1
    SUB: tl.constexpr = 32 // COLUMNS if COLUMNS > 0 and COLUMNS < 32 else 1
    # lanes have numbers of their own, or all lanes of SHARE steps have one
    LANES: tl.constexpr = LEAD if SUB * LEAD > 8 else 1
    SHARE: tl.constexpr = 8 // (SUB * LEAD) if SUB * LEAD < 8 else 1
    out = tl.program_id(0) * BN + tl.arange(0, BN)
    number_of_x = tl.program_id(1) * M + tl.arange(0, M)
    row = tl.minimum(out, height - 1)
    real = number_of_x < count
    if EXPERTS:
        row += tl.load(ids + tl.program_id(1)).to(tl.int32) * height
    row = row[None, :, None, None]
    lane = tl.arange(0, LEAD)[None, None, None, :]
    few = tl.arange(0, LANES)[None, None, None, :]
    x_row = tl.minimum(number_of_x, count - 1).to(tl.int64)[:, None, None, None] * runs
    total = tl.zeros((M, BN, BR, LEAD), tl.float32)
    rest = tl.zeros((M, BN, BR, LANES), tl.float32)
    for start in range(0, runs, BR):
        run = (start + tl.arange(0, BR))[None, None, :, None]
        inside = run < runs
        first, second, third = planes(codes, row, run, lane, plane, runs, inside, BITS)
        if LEVELS > 0:
            step = tl.load(steps + x_row + run, mask=inside, other=0.0)
        part = tl.zeros((M, BN, BR, LEAD), tl.int32)
        for half in tl.static_range(8 // LEAD):
            quad = half * LEAD + lane
            group = half * LEAD + few
            q = quad_of(first, second, third, quad, BITS)
            if half % SHARE == 0 and SCALE >= 0:
                s = scales(
                    scale, factor, row, run, group, numbers, outers, inside, SCALE, FACTOR, ROWS, COLUMNS, OUTER_ROWS,
                    OUTER_COLUMNS,
                )  # fmt: skip
            if LEVELS == 0:
                some = tl.zeros((M, BN, BR, LEAD), tl.float32)
                for byte in tl.static_range(4):
                    at = high + x_row * 32 + byte * (runs * 8) + run * 8 + quad
                    code = (q >> (8 * byte)) & 255
                    if TABLE:
                        v = tl.load(table + code)
                    else:
                        v = code.to(tl.float32)
                    some += v * tl.load(at, mask=inside, other=0.0)
                if SCALE >= 0:
                    some = some * s
                total += some
            else:
                if TABLE:
                    q = chosen16(q, T0, T1, T2, T3, ASM)
                q = q + part * 0
                at = x_row * 8 + run * 8 + quad
                if LEVELS == 2:
                    # `256 * high + low` is summed exactly: |part| stays below 2 ** 31
                    upper = dot4(q, tl.load(high + at, mask=inside, other=0) + part * 0, part * 0, TABLE, ASM)
                    part = dot4(q, tl.load(low + at, mask=inside, other=0) + part * 0, part + upper * 256, TABLE, ASM)
                else:
                    part = dot4(q, tl.load(high + at, mask=inside, other=0) + part * 0, part, TABLE, ASM)
                if half % SHARE == SHARE - 1:
                    some = part.to(tl.float32) * step
                    if SCALE >= 0:
                        some = some * s
                    total += some
                    part = part * 0
            if half % SHARE == 0 and (OFFSET > 0 or (ZERO != 0 and not TABLE)):
                around = tl.load(sums + (x_row + run) * SUB + group * SUB // 8, mask=inside, other=0.0)
                if LANES > 1:  # some of them share a number
                    around = around * (SUB / 8)
                if ZERO != 0 and not TABLE:
                    less = around * ZERO
                    if SCALE >= 0:
                        less = less * s
                    rest -= less
                if OFFSET > 0:
                    o = scales(
                        offset, offset_factor, row, run, group, numbers, outers, inside, OFFSET_DTYPE, OFFSET_FACTOR, ROWS,
                        COLUMNS, OUTER_ROWS, OUTER_COLUMNS,
                    )  # fmt: skip
                    if OFFSET == 1:
                        rest -= o * s * around / UNIT
                    elif OFFSET == 2:
                        rest += o * around / UNIT
                    else:
                        rest -= o * around / UNIT
    result = (tl.sum(tl.sum(total, 3), 2) + tl.sum(tl.sum(rest, 3), 2)) * UNIT
    if BIASED:
        result += tl.load(bias + tl.minimum(out, height - 1)).to(tl.float32)[None, :]
    keep = real[:, None] & (out < height)[None, :]
    at = number_of_x.to(tl.int64)[:, None] * y_row + out[None, :]
    tl.store(y + at, result.to(y.dtype.element_ty), mask=keep)


@triton.jit
def decoded(
    codes, table, scale, factor, offset, offset_factor, row, run, lane, half: tl.constexpr, plane, runs, numbers, outers,
    inside, BITS: tl.constexpr, ZERO: tl.constexpr, TABLE: tl.constexpr, SCALE: tl.constexpr, FACTOR: tl.constexpr,
    OFFSET: tl.constexpr, OFFSET_DTYPE: tl.constexpr, OFFSET_FACTOR: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, OUTER_ROWS: tl.constexpr, OUTER_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Values [rows, runs, lanes, 4] of the quads of one step."""
    LEAD: tl.constexpr = 8 if BITS == 8 else 4 if BITS >= 4 else 2 if BITS >= 2 else 1
    quad = half * LEAD + lane
    first, second, third = planes(codes, row, run, lane, plane, runs, inside, BITS)
    q = quad_of(first, second, third, quad, BITS)
    s, o = 1.0, 0.0
    if SCALE >= 0:
        s = scales(
            scale, factor, row, run, quad, numbers, outers, inside, SCALE, FACTOR, ROWS, COLUMNS, OUTER_ROWS, OUTER_COLUMNS
        )
    if OFFSET > 0:
        o = scales(
            offset, offset_factor, row, run, quad, numbers, outers, inside, OFFSET_DTYPE, OFFSET_FACTOR, ROWS, COLUMNS,
            OUTER_ROWS, OUTER_COLUMNS,
        )  # fmt: skip
    v0 = value(q & 255, s, o, table, ZERO, TABLE, SCALE, OFFSET)
    v1 = value((q >> 8) & 255, s, o, table, ZERO, TABLE, SCALE, OFFSET)
    v2 = value((q >> 16) & 255, s, o, table, ZERO, TABLE, SCALE, OFFSET)
    v3 = value((q >> 24) & 255, s, o, table, ZERO, TABLE, SCALE, OFFSET)
    return tl.join(tl.join(v0, v2), tl.join(v1, v3))  # [.., 2, 2]: byte 2 * second + first index


@triton.jit
def values(
    ids, out, codes, table, scale, factor, offset, offset_factor, plane, rows, runs, columns, count, numbers, outers, out_row,
    BITS: tl.constexpr, ZERO: tl.constexpr, TABLE: tl.constexpr, SCALE: tl.constexpr, FACTOR: tl.constexpr,
    OFFSET: tl.constexpr, OFFSET_DTYPE: tl.constexpr, OFFSET_FACTOR: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, OUTER_ROWS: tl.constexpr, OUTER_COLUMNS: tl.constexpr, CHOSEN: tl.constexpr,
    BN: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Values of rows: of all (from row `ids` on), or of those that `ids` names (CHOSEN; NaN for a row that does not exist)."""
    LEAD: tl.constexpr = 8 if BITS == 8 else 4 if BITS >= 4 else 2 if BITS >= 2 else 1
    line = tl.program_id(0) * BN + tl.arange(0, BN)
    if CHOSEN:
        row = tl.load(ids + line, mask=line < count, other=0).to(tl.int32)
    else:
        row = line + ids
    exists = (row >= 0) & (row < rows)
    row = tl.where(exists, row, 0)[:, None, None]
    run = (tl.program_id(1) * BR + tl.arange(0, BR))[None, :, None]
    lane = tl.arange(0, LEAD)[None, None, :]
    inside = run < runs
    for half in tl.static_range(8 // LEAD):
        v = decoded(
            codes, table, scale, factor, offset, offset_factor, row, run, lane, half, plane, runs, numbers, outers, inside,
            BITS, ZERO, TABLE, SCALE, FACTOR, OFFSET, OFFSET_DTYPE, OFFSET_FACTOR, ROWS, COLUMNS, OUTER_ROWS, OUTER_COLUMNS,
        )  # fmt: skip
        v = tl.reshape(v, (BN, BR, LEAD, 4))
        element = (run * 32 + (half * LEAD + lane) * 4)[:, :, :, None] + tl.arange(0, 4)[None, None, None, :]
        v = tl.where(exists[:, None, None, None], v, float("nan"))
        at = out + line.to(tl.int64)[:, None, None, None] * out_row + element
        tl.store(at, v.to(out.dtype.element_ty), mask=(line < count)[:, None, None, None] & (element < columns))


@triton.jit
def matrix(a, b, c, ASM: tl.constexpr):
    """`a @ b + c` of bf16 in f32; the interpreter takes bf16 for integers."""
    if ASM:
        c = tl.dot(a, b, c)
    else:
        c = tl.dot(a.to(tl.float32), b.to(tl.float32), c)
    return c


@triton.jit
def tiles(
    x, order, experts, starts, stops, bias, y, codes, table, scale, factor, offset, offset_factor, plane, height, runs,
    columns, count, numbers, outers, x_row, x_column, y_row, BITS: tl.constexpr, ZERO: tl.constexpr, TABLE: tl.constexpr,
    SCALE: tl.constexpr, FACTOR: tl.constexpr, OFFSET: tl.constexpr, OFFSET_DTYPE: tl.constexpr,
    OFFSET_FACTOR: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, OUTER_ROWS: tl.constexpr,
    OUTER_COLUMNS: tl.constexpr, GROUPED: tl.constexpr, BIASED: tl.constexpr, WIDE: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BR: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Tiles on matrix units. Values, and x in more than 8 bits (WIDE), are sums of two bf16, so that products are as exact as
    f32 sums. With GROUPED, tile `i` takes the rows `starts` to `stops` of x in `order`, and the matrix `experts`."""
    LEAD: tl.constexpr = 8 if BITS == 8 else 4 if BITS >= 4 else 2 if BITS >= 2 else 1
    SIZE: tl.constexpr = BR * LEAD * 4
    out = tl.program_id(0) * BN + tl.arange(0, BN)
    row = tl.minimum(out, height - 1)
    tile = tl.program_id(1)
    if GROUPED:
        row += tl.load(experts + tile).to(tl.int32) * height
        place_of_x = tl.load(starts + tile).to(tl.int32) + tl.arange(0, BM)
        real = place_of_x < tl.load(stops + tile)
        number_of_x = tl.load(order + place_of_x, mask=real, other=0)
    else:
        number_of_x = tile * BM + tl.arange(0, BM)
        real = number_of_x < count
    row = row[:, None, None]
    lane = tl.arange(0, LEAD)[None, None, :]
    at_x = x + number_of_x.to(tl.int64)[:, None] * x_row
    within = tl.arange(0, SIZE)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, runs, BR):
        run = (start + tl.arange(0, BR))[None, :, None]
        inside = run < runs
        for half in tl.static_range(8 // LEAD):
            v = decoded(
                codes, table, scale, factor, offset, offset_factor, row, run, lane, half, plane, runs, numbers, outers,
                inside, BITS, ZERO, TABLE, SCALE, FACTOR, OFFSET, OFFSET_DTYPE, OFFSET_FACTOR, ROWS, COLUMNS, OUTER_ROWS,
                OUTER_COLUMNS,
            )  # fmt: skip
            v = tl.trans(tl.reshape(v, (BN, SIZE)))
            coarse = v.to(tl.bfloat16)
            fine = (v - coarse.to(tl.float32)).to(tl.bfloat16)
            element = (start + within // (LEAD * 4)) * 32 + half * LEAD * 4 + within % (LEAD * 4)
            seen = real[:, None] & (element < columns)[None, :]
            u = tl.load(at_x + element.to(tl.int64)[None, :] * x_column, mask=seen, other=0.0)
            upper = u.to(tl.bfloat16)
            total = matrix(upper, coarse, total, ASM)
            total = matrix(upper, fine, total, ASM)
            if WIDE:
                total = matrix((u.to(tl.float32) - upper.to(tl.float32)).to(tl.bfloat16), coarse, total, ASM)
    if BIASED:
        total += tl.load(bias + tl.minimum(out, height - 1)).to(tl.float32)[None, :]
    at = y + number_of_x.to(tl.int64)[:, None] * y_row + out[None, :]
    tl.store(at, total.to(y.dtype.element_ty), mask=real[:, None] & (out < height)[None, :])
