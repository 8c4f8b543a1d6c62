"""The form of a weight on the device, as plain data: how codes, scales and offsets combine, and where they lie.

Codes lie in planes of 8, 4, 2 or 1 bits, widest first (3 bits: 2 and 1). A plane of `w` bits has `w` words of 32 bits
for a run of 32 neighbors of a row. Byte `b` of word `j` has, in its bits from `w * h` on, element
`4 * (w * h + j) + b`: a shift and a mask give four neighbors, one in each byte, which is what integer products take.
Rows are filled up to whole runs. The planes of a matrix lie before those of the next, so that a stack is its matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from attrs import field, frozen

from squish_core.api import Codec, CodecError, CodeLayout, ErrorCode, TensorSpec, dtypes

from .blocks import BLOCKS, DIGIT_WORDS, DIGITS, GRIDS, Block, Grid

RUN = 32
"""Neighbors of a row that share words."""
ALL = 1 << 30
"""Rows per number where all rows share one."""
KINDS = {
    **dict.fromkeys(("f32", "f16", "bf16", "u8", "i8", "i16", "i32"), 0),
    "f8_e8m0": 1,
    "f8_e4m3": 2,
    "f8_e5m2": 3,
    "half_e8m0": 4,
    "half_e4m3": 5,
    "low4": 6,
    "high4": 7,
    "nibbles": 8,
    "of_signs": 9,
    "of_high": 10,
}
"""Dtype of stored numbers -> how a kernel reads them (0: as they are). `half_e8m0` and `half_e4m3` are ggml's, whose
tables are doubled; `low4` and `high4` are halves of one byte. The last three are those of grids: two to a byte, above
the signs, and in the high bits."""
BLOCK = 256
"""Elements of a block of grids or of digits."""
ELEMENTS = ("f8_e4m3", "f8_e5m2")
"""Floats of 8 bits whose codes a kernel decodes by their bits, without a table."""
OFFSETS = {"none": 0, "zero_point": 1, "bias": 2, "minimum": 3}
"""Kind of offset -> its number in the kernels: `(v - o) * s`, `v * s + o` and `v * s - o`."""


def planes(bits: int) -> tuple[int, ...]:
    """The widths of the planes of codes, widest and lowest first.

    >>> planes(4), planes(7)
    ((4,), (4, 2, 1))
    """
    return tuple(width for width in (8, 4, 2, 1) if bits & width)


@frozen(kw_only=True)
class Form:
    """How a weight lies on the device.

    Attributes
    ----------
    bits, zero
        Width of a code (without a sign), and what is subtracted from it.
    packing
        "planes" of words; "digits" of TQ1_0, as stored; or a key of GRIDS: indices, whose entries are integers in
        `unit`.
    table
        Whether a table of f32 has the value of each code. `integers`: its numbers as integers of 8 bits, and `unit`
        what one of them means; with `fine`, 256 times an integer and the one in `fine`, for numbers that are none.
    element
        The float of 8 bits that a code is, one of ELEMENTS.
    scale, offset
        Dtypes of the numbers of groups, keys of KINDS; None without an offset.
    group
        Rows and columns of a group. Columns are 4, 8, 16 or a multiple of 32; 0: all.
    factor
        "multiply" or "divide" if numbers of `outer` groups multiply or divide the scales. Minima have their own.
    """

    bits: int
    zero: int = 0
    packing: str = "planes"
    table: bool = False
    integers: tuple[int, ...] | None = None
    fine: tuple[int, ...] | None = None
    element: str | None = None
    unit: float = 1.0
    scale: str
    offset_kind: str = "none"
    offset: str | None = None
    group: tuple[int, int]
    factor: str | None = None
    outer: tuple[int, int] = field(default=(ALL, 0))

    @property
    def grid(self) -> Grid | None:
        """The grid that codes are indices of."""
        return GRIDS.get(self.packing)

    @property
    def widths(self) -> tuple[int, ...]:
        """Words of a run, of each plane."""
        if self.grid:
            return (self.grid.width,)
        return planes(self.bits) if self.packing == "planes" else (8,)

    @property
    def has_integer_products(self) -> bool:
        """Whether codes are integers of 8 bits, by themselves or by their table."""
        if self.table:
            return self.integers is not None or self.has_registers
        return self.element is None and abs(self.zero) <= 1 << 8

    @property
    def has_registers(self) -> bool:
        """Whether its table is stored with the tensor, and small enough for registers."""
        return self.table and self.integers is None and self.bits <= 4

    @property
    def words(self) -> str:
        """What its codes are, in words."""
        if self.grid:
            return f"indices of a grid of {self.grid.size} neighbors"
        return f"codes of {self.bits} bits" if self.packing == "planes" else "digits to the base of 3"

    def numbers(self, columns: int, *, outer: bool = False) -> int:
        """Numbers for a row of groups."""
        size = (self.outer if outer else self.group)[1]
        return -(-runs(columns) * RUN // size) if size else 1


def runs(columns: int) -> int:
    """Runs of a row."""
    return -(-columns // RUN)


def uncovered(reason: str, **details: object) -> CodecError:
    """The error for a layout without a form: torch decodes it."""
    return CodecError(reason, code=ErrorCode.UNCOVERED, **details)  # type: ignore[arg-type]


def form_of(codec: Codec, spec: TensorSpec) -> Form:
    """The form of a tensor, from what its codec declares; CodecError (`uncovered`) says why there is none."""
    if len(spec.shape) not in (2, 3):
        raise uncovered("kernels take matrices, and stacks of them")
    if not spec.elements:
        raise uncovered("it is empty")
    kind, _, name = codec.id.partition(".")
    if kind == "ggml" and name in BLOCKS:
        return _of_block(BLOCKS[name])
    if kind == "ggml" and name in GRIDS:
        return _of_grid(name)
    if kind == "ggml" and name == DIGITS:
        return Form(bits=2, zero=1, packing="digits", scale="f16", group=(1, BLOCK))
    if codec.id in _OTHERS:
        return _OTHERS[codec.id](codec, spec)
    layout = codec.code_layout(spec)
    if layout is None:
        is_dense = codec.id == "dense"
        raise uncovered("its values are not compressed" if is_dense else f"{codec.id} has no codes with one scale each")
    return _of_layout(layout, spec)


def _of_grid(name: str) -> Form:
    grid = GRIDS[name]
    return Form(
        bits=8,
        packing=name,
        unit=grid.unit,
        scale=grid.scale_kind,
        group=(1, grid.group),
        factor="multiply",
        outer=(1, BLOCK),
    )


def _of_block(block: Block) -> Form:
    return Form(
        bits=block.bits,
        zero=block.zero,
        table=block.table is not None,
        integers=block.table,
        scale=block.scale.dtype,
        offset_kind=block.offset_kind,
        offset=block.offset.dtype if block.offset else None,
        group=(1, block.group),
        factor="multiply" if block.factor else None,
        outer=(1, block.elements) if block.factor else (ALL, 0),
    )


def _of_float8(codec: Codec, spec: TensorSpec) -> Form:
    block, height = codec.params.get("block"), spec.shape[-2]
    rows, columns = (block[0] or height, block[1]) if block else (ALL, 0)
    if block and len(spec.shape) == 3 and height % rows:
        raise uncovered("its blocks run from one matrix into the next")
    element = str(codec.params.get("element", "f8_e4m3"))
    return Form(
        bits=8,
        table=element not in ELEMENTS,
        element=element if element in ELEMENTS else None,
        scale=str(codec.params.get("scale_dtype", "f32")) if block else "f32",
        group=(rows, _fitting(columns, spec.shape[-1])),
    )


def _of_hqq(codec: Codec, spec: TensorSpec) -> Form:
    size, columns = codec.params["group_size"], spec.shape[-1]
    if codec.params["axis"] != 1 or columns % size:
        raise uncovered("its groups run across rows")
    dtype = str(codec.params.get("scale_dtype", "f32"))
    group = (1, _fitting(size, columns))
    return Form(bits=codec.params["bits"], scale=dtype, offset_kind="zero_point", offset=dtype, group=group)


_OTHERS = {"float8": _of_float8, "hqq": _of_hqq}
"""Codecs whose codes have a form, but which declare no layout of codes."""


def _of_layout(layout: CodeLayout, spec: TensorSpec) -> Form:
    columns = layout.row_group
    if columns is None:
        raise uncovered("its groups run across rows, or down columns")
    offset = layout.offset_dtype
    if offset is not None and offset not in KINDS:
        offset = "f32" if dtypes.is_dtype(offset) and dtypes.bits(offset) > 8 else "i8" if offset[0] == "i" else "u8"
    integers, fine, unit = integer_table(layout)
    element = layout.table if isinstance(layout.table, str) and layout.table in ELEMENTS else None
    if layout.global_scale and (layout.scale_dtype in ("f32", "f16", "bf16") or offset):
        raise uncovered("a scale of the whole tensor beside scales in f32")
    return Form(
        bits=layout.bits,
        zero=layout.zero - layout.low if layout.table is None else 0,
        table=layout.table is not None and element is None,
        integers=integers,
        fine=fine,
        element=element,
        unit=unit,
        scale=layout.scale_dtype,
        offset_kind=layout.offset_kind,
        offset=offset,
        group=(1, _fitting(columns, spec.shape[-1])),
        factor=layout.global_scale,
        outer=(spec.shape[-2] if layout.global_scale else ALL, 0),
    )


IntegerTable = tuple[tuple[int, ...] | None, tuple[int, ...] | None, float]


def integer_table(layout: CodeLayout) -> IntegerTable:
    """`integers`, `fine` and `unit` of a form, for up to 16 entries of a declared table."""
    table = layout.table
    if table is None or layout.bits > 4:
        return None, None, 1.0
    if isinstance(table, str):
        import numpy as np

        if not dtypes.is_dtype(table):
            return None, None, 1.0
        codes = np.arange(1 << layout.bits, dtype=np.uint8)
        table = tuple(codes.view(dtypes.to_numpy(table)).astype(np.float32).tolist())
    if not all(map(isfinite, table)):
        return None, None, 1.0
    for unit in (1.0, 0.5):
        entries = [value / unit for value in table]
        if all(value == int(value) and abs(value) < 128 for value in entries):
            return tuple(int(value) for value in entries), None, unit
    return two_bytes(table)


def two_bytes(table: Sequence[float]) -> tuple[tuple[int, ...], tuple[int, ...], float]:
    """`integers`, `fine` and `unit` of finite numbers, rounded to integers of 16 bits."""
    unit = (max(map(abs, table)) or 1.0) / (127 << 8)
    rounded = [round(value / unit) for value in table]
    fine = [(value + 128) % 256 - 128 for value in rounded]
    return tuple([(value - low) >> 8 for value, low in zip(rounded, fine)]), tuple(fine), unit


def words_of(entries: Sequence[int]) -> list[int]:
    """Up to 16 integers of 8 bits, as four words."""
    data = bytes([entry & 255 for entry in (*entries, *(0,) * 16)[:16]])
    return [int.from_bytes(data[at : at + 4], "little", signed=True) for at in range(0, 16, 4)]


def _fitting(group: int, columns: int) -> int:
    """The columns of a group, 0 for all; they fit runs."""
    if not group or group >= columns:
        return 0
    if group % RUN and group not in (4, 8, 16):
        raise uncovered(f"groups of {group} columns do not fit runs of {RUN}")
    return group


def nbytes(form: Form, shape: tuple[int, ...]) -> int:
    """Bytes of a weight on the device."""
    rows, columns = dtypes.count(shape[:-1]), shape[-1]
    blocks = rows * columns // BLOCK
    if form.grid:
        return blocks * form.grid.nbytes + form.grid.entries * form.grid.size
    if form.packing == "digits":
        return blocks * (4 * DIGIT_WORDS + 2)
    grid, wide = (-(-rows // form.group[0]) * form.numbers(columns)), runs(columns)
    outer = -(-rows // form.outer[0]) * form.numbers(columns, outer=True)
    shared = (form.scale, form.offset) == ("low4", "high4")
    sizes = [_SIZES.get(dtype, 1) for dtype in (form.scale, None if shared else form.offset) if dtype]
    factors = (2 if form.outer[1] else 4) * outer * ((form.factor is not None) + (form.offset_kind == "minimum"))
    return (
        rows * wide * 4 * form.bits
        + grid * sum(sizes)
        + factors
        + (4 << form.bits) * form.table
        + 36 * form.has_registers
    )


_SIZES = {"f32": 4, "i32": 4, "f16": 2, "bf16": 2, "i16": 2}
