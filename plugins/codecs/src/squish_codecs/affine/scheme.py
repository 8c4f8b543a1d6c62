"""The checked parameters of an affine tensor; derived shapes and grains."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from attrs import evolve, fields_dict, frozen

from squish_core.api import CodecError, ErrorCode, dtypes

from ..checks import choice, integer, refuse
from ..packing.bits import Packing

WORDS = ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64")
SCALES = ("f32", "f16", "bf16", "f8_e4m3", "f8_e5m2", "f8_e8m0")
ZEROS = ("packed", "u8", "i8", "u16", "i16", "u32", "i32", "f32", "f16", "bf16")
Shape = tuple[int, ...]
Grain = tuple[int | None, ...]
Item = TypeVar("Item")


@frozen(kw_only=True)
class Scheme:
    """A storage layout of integers and scales; `Affine` documents the parameters."""

    bits: int
    group_size: int
    axis: int | str
    pack_axis: int
    transposed: bool
    word: str
    order: str | tuple[int, ...]
    offset: str
    zero: int
    signed: bool
    scale_dtype: str
    offset_dtype: str
    symmetric: bool
    search: str

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> Scheme:
        """Parse parameters from a file or the command line, with defaults; CodecError if invalid."""
        unknown = [name for name in params if name not in _NAMES]
        if unknown or "bits" not in params:
            raise CodecError(
                f"affine has no parameter {unknown[0]!r}" if unknown else "affine needs bits",
                expected=", ".join(_NAMES),
                found=", ".join(unknown or params) or "no parameters",
                code=ErrorCode.PARAMS,
                hint="For example affine:bits=4,group_size=32.",
            )
        value = {name: _CHECKS[name](name, raw) for name, raw in params.items()}
        for name, default in _DEFAULTS.items():
            value.setdefault(name, default(value))
        scheme = cls(**value)
        scheme._check()
        return scheme

    def params(self) -> dict[str, Any]:
        """Return the shortest parameters for this scheme."""
        values = {name: getattr(self, name) for name in _NAMES}
        required = ("bits", "group_size")
        return {name: value for name, value in values.items() if name in required or value != _DEFAULTS[name](values)}

    @property
    def packing(self) -> Packing:
        """The packing of codes in words."""
        return Packing(self.bits, self.word, self.order)

    @property
    def low(self) -> int:
        """Smallest code."""
        return -(1 << self.bits - 1) if self.signed else 0

    @property
    def high(self) -> int:
        """Largest code."""
        return self.low + (1 << self.bits) - 1

    @property
    def middle(self) -> int:
        """The code in the middle of the range: the zero point of symmetric codes."""
        return self.low + self.high + 1 >> 1

    @property
    def flat(self) -> bool:
        """Whether codes and groups cover the flattened tensor."""
        return self.axis == "flat"

    @property
    def group_axis(self) -> int:
        """Axis of the groups, counted from the end."""
        return -1 if self.flat else int(self.axis)

    @property
    def zero_axis(self) -> int:
        """Axis of packed zero points: across the groups (GPTQ, AWQ, compressed-tensors)."""
        return -1 if self.flat or self.group_axis == -2 else -2

    @property
    def upright(self) -> Scheme:
        """The scheme of the parts after swapping a transposed tensor's last two axes back."""
        if not self.transposed:
            return self
        return evolve(self, transposed=False, axis=-3 - self.group_axis, pack_axis=-3 - self.pack_axis)

    @property
    def packed_zeros(self) -> bool:
        """Whether zero points are packed like codes."""
        return self.offset == "zero_point" and self.offset_dtype == "packed"

    def to_stored(self, shape: tuple[Item, ...]) -> tuple[Item, ...]:
        """Swap the last two items of a shape, region or grain if the tensor is stored transposed; self-inverse."""
        return (*shape[:-2], shape[-1], shape[-2]) if self.transposed else tuple(shape)

    def parts(self, shape: Shape) -> dict[str, tuple[str, Shape]]:
        """Return dtype and shape of each part for a logical shape; CodecError if the shape does not divide."""
        if self.flat:
            shape = (dtypes.count(shape),)
        axes = (self.group_axis, self.pack_axis, self.zero_axis if self.packed_zeros else -1)
        min_rank = 2 if self.transposed or -2 in axes else 1
        if len(shape) < min_rank:
            raise CodecError(
                "too few axes for these parameters",
                expected=f"rank {min_rank} or more",
                found=f"shape {list(shape)}",
                code="shape",
                hint="axis=flat accepts any shape.",
            )
        shape = self.to_stored(shape)
        along = shape[self.group_axis]
        size = self.group_size or max(along, 1)
        if along % size and not self.flat:
            raise CodecError(
                "the groups do not divide the axis",
                expected=f"a multiple of {size}",
                found=along,
                code="group_size",
                hint=f"Use a group_size that divides {along}, 0 (one group) or axis=flat.",
            )
        grid = _replace(shape, self.group_axis, -(-along // size))
        words = _replace(shape, self.pack_axis, self.packing.words(shape[self.pack_axis]))
        parts = {"data": (self.word, words), "scale": (self.scale_dtype, grid)}
        if self.offset != "none":
            parts["offset"] = (self.offset_dtype, grid)
        if self.packed_zeros:
            count = self.packing.words(grid[self.zero_axis])
            parts["offset"] = (self.word, _replace(grid, self.zero_axis, count))
        return parts

    def grain(self, shape: Shape, *, encoding: bool = False) -> Grain:
        """Return the smallest step along each logical axis that decodes (or encodes) independently."""
        if self.flat:
            grain = self._flat_grain(shape, encoding)
            return _outermost(grain) if encoding else grain
        steps: list[int | None] = [1] * len(shape)
        factors = [(self.group_axis, self.group_size or 1), (self.pack_axis, self.packing.unit)]
        if self.packed_zeros:
            factors.append((self.zero_axis, self.packing.unit))
        for axis, factor in factors:
            steps[axis] = math.lcm(steps[axis] or 1, factor)
        if encoding and not self.group_size:
            steps[self.group_axis] = None
        if encoding and self.transposed:
            steps[-1] = None
        return self.to_stored(_outermost(tuple(steps)) if encoding else tuple(steps))

    @property
    def flat_step(self) -> int:
        """Codes of a flat scheme after which words, groups and packed zeros are all aligned."""
        group = self.group_size or 1
        return math.lcm(self.packing.unit, group * (self.packing.unit if self.packed_zeros else 1))

    def _flat_grain(self, shape: Shape, encoding: bool) -> Grain:
        if encoding and not self.group_size:
            return (None,) * len(shape)
        grain: list[int | None] = []
        inner = 1
        for axis in reversed(range(len(shape))):
            step = self.flat_step // math.gcd(self.flat_step, inner)
            grain.append(step if axis == 0 or shape[axis] % step == 0 else None)
            inner *= shape[axis]
        return tuple(reversed(grain))

    def _check(self) -> None:
        """Check constraints between parameters."""
        divides = self.packing.width % self.bits == 0
        rules = [
            (divides or self.order in ("lsb", "padded", "planes"), "order", "lsb, padded or planes for these bits"),
            (self.order != "planes" or (self.packing.width == 32 and self.bits in (3, 5, 6, 7)), "order",
             "planes for 3, 5, 6 or 7 bits in 32-bit words"),
            (not isinstance(self.order, tuple) or sorted(self.order) == list(range(self.packing.unit)), "order",
             f"lsb, msb, padded, planes or a permutation of the {self.packing.unit} codes of a word"),
            (self.offset != "bias" or self.offset_dtype in SCALES, "offset_dtype", " or ".join(SCALES)),
            (self.offset != "zero_point" or self.offset_dtype in ZEROS, "offset_dtype", " or ".join(ZEROS)),
            (self.offset != "bias" or not self.zero, "zero", "0 with a bias"),
            (not self.symmetric or self.offset != "none", "symmetric", "false without zero points"),
            (not self.flat or (self.pack_axis == -1 and not self.transposed), "axis", "-1 or -2 with these parameters"),
        ]  # fmt: skip
        for holds, name, expected in rules:
            if not holds:
                raise CodecError(
                    f"{name} conflicts with the other parameters",
                    expected=expected,
                    found=repr(getattr(self, name)),
                    code=ErrorCode.PARAMS,
                )


_NAMES = tuple(fields_dict(Scheme))


def _replace(shape: Shape, axis: int, size: int) -> Shape:
    axis %= len(shape)
    return (*shape[:axis], size, *shape[axis + 1 :])


def _outermost(grain: Grain) -> Grain:
    """Restrict a grain to its outermost split axis, so that the parts of consecutive panels concatenate."""
    cut = next((axis for axis, step in enumerate(grain) if step != 1), len(grain))
    return (*grain[: cut + 1], *(None for _ in grain[cut + 1 :]))


def _flag(name: str, value: Any) -> bool:
    flag = {"true": True, "false": False, "1": True, "0": False}.get(str(value).lower())
    if flag is None:
        raise refuse(name, "true or false", value)
    return flag


def _axis(name: str, value: Any) -> int | str:
    return "flat" if value == "flat" and name == "axis" else int(integer(-2, -1)(name, value))


def _order(name: str, value: Any) -> str | tuple[int, ...]:
    if isinstance(value, (list, tuple)) and len(value) <= 64 and all(type(position) is int for position in value):
        return tuple(value)
    return str(choice("lsb", "msb", "padded", "planes")(name, value))


_CHECKS: dict[str, Any] = {
    "bits": integer(1, 8), "group_size": integer(0, 1 << 40), "axis": _axis, "pack_axis": _axis,
    "transposed": _flag, "signed": _flag, "word": choice(*WORDS), "order": _order,
    "offset": choice("none", "zero_point", "bias"), "zero": integer(-(1 << 20), 1 << 20),
    "scale_dtype": choice(*SCALES), "offset_dtype": choice(*dict.fromkeys(ZEROS + SCALES)),
    "symmetric": _flag, "search": choice("none", "mse", "activations"),
}  # fmt: skip

# A default may depend on earlier parameters.
_DEFAULTS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "group_size": lambda values: 0,
    "axis": lambda values: -1,
    "pack_axis": lambda values: -1 if values["axis"] == "flat" else values["axis"],
    "transposed": lambda values: False,
    "word": lambda values: "u8",
    "order": lambda values: "lsb",
    "offset": lambda values: "none",
    "zero": lambda values: 0,
    "signed": lambda values: values["offset"] == "none" and values["zero"] == 0,
    "scale_dtype": lambda values: "f32",
    "offset_dtype": lambda values: (
        values["scale_dtype"] if values["offset"] == "bias" else "i8" if values["signed"] else "u8"
    ),
    "symmetric": lambda values: False,
    "search": lambda values: "none",
}
