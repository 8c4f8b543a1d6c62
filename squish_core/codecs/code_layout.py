"""Code layouts: the form of a quantized tensor's stored integers, declared without data; and the codes themselves."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from squish_core import dtypes

if TYPE_CHECKING:
    import numpy as np

OFFSET_KINDS = ("none", "zero_point", "bias")
GLOBAL_SCALES = ("multiply", "divide")
STORED_TABLE = "stored"
"""`CodeLayout.table` of codes whose table is stored with the tensor."""


@frozen(kw_only=True)
class CodeLayout:
    """How codes, scales and offsets combine into values; plain data without arrays.

    For a code `q`, the value is `(q - zero) * scale`, `(q - zero - offset) * scale` (zero points) or
    `q * scale + offset` (biases), in float32. Formats match on the layout to decide how to store the codes of codecs
    that they do not know.

    Parameters
    ----------
    bits
        Width of a code, 1 to 8.
    signed
        Whether codes are in two's complement.
    group
        Elements per scale along each axis of the tensor; 0 means the whole axis.
    run
        For groups that cross row boundaries: number of consecutive elements, in row-major order, that share a scale;
        `group` then describes the largest cells within rows. 0 otherwise.
    scale_dtype
        Dtype of scales.
    offset_kind
        "none", "zero_point" or "bias".
    offset_dtype
        Dtype of offsets for "zero_point" and "bias"; "u3" for zero points packed in 3 bits each.
    zero
        Constant zero point of all codes; not allowed with a bias.
    table
        Codebook: the value of each code before scaling; the dtype whose codes they are, such as "f8_e4m3" (256
        values, among them NaN); or `STORED_TABLE`. None for integers.
    global_scale
        "multiply" or "divide" if a scale of the whole tensor is multiplied with its scales or divides them; else None.
    word
        Dtype of the integers that codes are packed into, where the codec packs into words: a format that has words of
        this width can keep it. It does not change a value.

    Examples
    --------
    >>> layout = CodeLayout(bits=4, group=(1, 32), scale_dtype="f16", zero=8)
    >>> layout.group_sizes((64, 128)), layout.run_length((64, 128))
    ((1, 32), 32)
    """

    bits: int
    signed: bool = False
    group: tuple[int, ...]
    run: int = 0
    scale_dtype: str
    offset_kind: str = "none"
    offset_dtype: str | None = None
    zero: int = 0
    table: tuple[float, ...] | str | None = None
    global_scale: str | None = None
    word: str | None = None

    def __attrs_post_init__(self) -> None:
        has_dtype_of_offsets = (self.offset_kind == "none") == (self.offset_dtype is None)
        rules = (
            (1 <= self.bits <= 8, "bits", "1 to 8"),
            (self.offset_kind in OFFSET_KINDS, "offset_kind", " or ".join(OFFSET_KINDS)),
            (has_dtype_of_offsets, "offset_dtype", "a dtype if there are offsets"),
            (not self.zero or self.offset_kind != "bias", "zero", "0 with a bias"),
            (self.global_scale in (None, *GLOBAL_SCALES), "global_scale", " or ".join(GLOBAL_SCALES)),
            (self._has_legal_table, "table", f"numbers, a dtype of {self.bits} bits or {STORED_TABLE!r}"),
        )
        for holds, name, expected in rules:
            if not holds:
                raise ValueError(f"{name} of a code layout must be {expected}, not {getattr(self, name)!r}")

    @property
    def _has_legal_table(self) -> bool:
        table = self.table
        if not isinstance(table, str) or table == STORED_TABLE:
            return True
        return dtypes.is_dtype(table) and dtypes.bits(table) == self.bits

    @property
    def low(self) -> int:
        """Smallest code."""
        return -(1 << self.bits - 1) if self.signed else 0

    @property
    def high(self) -> int:
        """Largest code."""
        return self.low + (1 << self.bits) - 1

    @property
    def is_symmetric(self) -> bool:
        """Whether zero is the code in the middle of the range, in every group."""
        return self.offset_kind == "none" and self.zero == self.low + self.high + 1 >> 1

    @property
    def row_group(self) -> int | None:
        """Columns per scale (0: all) if groups of several rows are split into rows.

        None if groups cross row boundaries or consist of single columns.
        """
        *rows, columns = self.group or (0,)
        across = columns == 1 and any(step != 1 for step in rows)
        return None if self.run or across else columns

    def group_sizes(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Elements per scale along each axis of a tensor or region of this shape."""
        return tuple(step or max(size, 1) for step, size in zip(self.group, shape))

    def run_length(self, shape: tuple[int, ...]) -> int | None:
        """Number of consecutive elements, in row-major order, that share a scale; None if groups are not contiguous."""
        if self.run:
            return self.run
        sizes = self.group_sizes(shape)
        first = next((axis for axis, size in enumerate(sizes) if size > 1), len(sizes))
        contiguous = all(size == max(extent, 1) for size, extent in zip(sizes[first + 1 :], shape[first + 1 :]))
        return prod(sizes) if contiguous else None


@frozen(kw_only=True, eq=False)
class Codes:
    """Codes of a region: a `CodeLayout` with its arrays, for repacking without floats.

    `values`: integers in the region's `shape` (i8 or u8). `group`: elements per scale along each axis of the region;
    may be finer than the layout's. `scale` and `offset`: one element per group; `offset` excludes the constant zero
    point. `table` (f32): only for a stored table. `global_scale` (f32): one for the tensor, or one for each of its
    matrices if it is a stack. `words`: the same integers still packed, if the codec can provide
    them: unsigned little-endian words [..., words per row] with any strides, each row one bit stream with the first
    code in the lowest bits. `unpack` and `pack` compute `values` and `words` on demand.
    """

    layout: CodeLayout
    shape: tuple[int, ...]
    group: tuple[int, ...] = field()
    scale: np.ndarray
    offset: np.ndarray | None = None
    table: np.ndarray | None = field()
    global_scale: np.ndarray | None = None
    unpack: Callable[[], np.ndarray]
    pack: Callable[[], np.ndarray | None] = lambda: None

    @group.default
    def _group_of_layout(self) -> tuple[int, ...]:
        return self.layout.group_sizes(self.shape)

    @table.default
    def _table_of_layout(self) -> Any:
        import numpy as np

        table = self.layout.table
        if table is None or table == STORED_TABLE:
            return None
        if isinstance(table, str):
            return np.arange(1 << self.layout.bits, dtype=np.uint8).view(dtypes.to_numpy(table)).astype(np.float32)
        return np.array(table, np.float32)

    @cached_property
    def values(self) -> np.ndarray:
        """The integers, one per byte."""
        return self.unpack()

    @cached_property
    def words(self) -> np.ndarray | None:
        """The integers as packed rows; None if that would require unpacking them."""
        return self.pack()

    @cached_property
    def offsets(self) -> np.ndarray | None:
        """Biases, or zero points including the constant one; None without either."""
        import numpy as np

        if not self.layout.zero:
            return self.offset
        offset = np.zeros(self.scale.shape) if self.offset is None else self.offset.astype(np.float64)
        return (offset + self.layout.zero).astype(np.float32)
