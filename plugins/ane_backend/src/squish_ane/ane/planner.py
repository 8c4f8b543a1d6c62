"""Which weights would stream to a Neural Engine, which would be made dense first, and why; nothing is run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import fields_dict, frozen

from squish_core.api import ErrorCode, SquishError

from . import facts
from .structures import ACTIVATION_BYTES, codebook_bytes, is_vector_size


@frozen(kw_only=True)
class Weights:
    """What the compiler would be given. `form` is a row of `facts.ROWS`; counts are of elements.

    `channels`: output channels; `block`: elements of one scale; `nonzero`: values that a mask keeps.
    """

    form: str
    elements: int
    channels: int = 1
    bits: int = 16
    codebooks: int = 1
    vector_size: int = 1
    block: int = 0
    nonzero: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes that cross to the engine in this form. Source: chapter 25; listing 25.3 for masks."""
        count = self.elements
        palette = codebook_bytes(self.bits, self.vector_size, self.codebooks)
        sizes = {
            "int8": count + 2 * self.channels,
            "int8_asymmetric": count + 3 * self.channels,
            "sparse": -(-count // 8) + 2 * self.nonzero,
            "sparse_int8": -(-count // 8) + self.nonzero + 2 * self.channels,
            "sparse_palette": -(-count // 8) + -(-self.nonzero * self.bits // 8) + palette,
            "blockwise": count + 2 * -(-count // max(self.block, 1)),
            "f8_e4m3": count,
        }
        if self.form.startswith("palette"):
            return -(-count // self.vector_size * self.bits // 8) + palette
        return sizes.get(self.form, 2 * count)


@frozen(kw_only=True)
class Consumer:
    """The operation that reads a weight: whether it streams depends on it, too."""

    stride: int = 1
    dilation: int = 1
    overlapping: bool = False
    mutable: bool = False

    def hindrance(self) -> str:
        """Why a weight cannot stream here, or nothing."""
        rules = (
            (self.stride == 1, "the stride is not 1"),
            (self.dilation == 1, "it is dilated"),
            (not self.overlapping, "tiles overlap"),
            (not self.mutable, "the weight is mutable"),
        )
        return next((why for holds, why in rules if not holds), "")


def consumer_of(options: Mapping[str, Any]) -> Consumer:
    """The consumer of `stride=2,overlapping=true`; SquishError for what no consumer has."""
    fields = fields_dict(Consumer)
    values = {name: {"true": True, "false": False}.get(value, value) for name, value in options.items()}
    for name, value in values.items():
        expected = type(fields[name].default) if name in fields else None
        if type(value) is not expected or (isinstance(value, int) and expected is int and value < 1):
            raise SquishError(
                "no option of ane", found=f"{name}={value}", code=ErrorCode.BACKEND,
                expected="device, stride and dilation from 1, overlapping and mutable as true or false",
            )  # fmt: skip
    return Consumer(**values)


@frozen(kw_only=True)
class Verdict:
    """What happens to a weight on a generation: `nbytes` move for each use, in `pieces`."""

    generation: str
    mode: str
    nbytes: int
    dense: int
    pieces: int
    evidence: str
    why: str


def plan(weights: Weights, generation: str, consumer: Consumer | None = None) -> Verdict:
    """The verdict of the tables; SquishError with rule and table row where nothing encodes the weights."""
    row, cell = facts.ROWS[weights.form], facts.cell(weights.form, generation)
    _check(weights)
    mode, why = cell.mode, f"{row.rule} [{row.source}]"
    if cell.mode == "illegal":
        raise _illegal(row, generation, cell.note)
    hindrance = (consumer or Consumer()).hindrance()
    if mode == "stream" and not facts.is_set(facts.MASTER, generation):
        hindrance = "the master byte 0x48f is not set"
    if mode == "stream" and hindrance:
        mode, why = "fold", f"{hindrance}, so nothing streams [chapter 25, stream or fold]"
    dense = 2 * weights.elements
    nbytes = weights.nbytes if mode == "stream" else dense
    cap = facts.CAP_STREAMED if mode == "stream" else facts.CAP_DENSE
    note = f"; {cell.note}" if cell.note and mode == cell.mode else ""
    return Verdict(
        generation=generation, mode=mode, nbytes=nbytes, dense=dense, pieces=max(1, -(-nbytes // cap)),
        evidence=cell.evidence, why=why + note,
    )  # fmt: skip


def palette_budget(bits: int, vector_size: int = 1, codebooks: int = 1, *, activation: bool = False) -> int:
    """Bytes of on-chip memory that palettes take, with an activation table if there is one: they share a budget.

    How large it is on each target is not stated.
    """
    return codebook_bytes(bits, vector_size, codebooks) + ACTIVATION_BYTES * activation


def generation_of(device: str) -> str:
    """H13 of "M1", "h13" or "H13g"."""
    name = device.strip().upper()
    found = facts.DEVICES.get(name, name.rstrip("GSCD"))
    if found not in facts.GENERATIONS:
        raise SquishError(
            "no tables for this device", found=repr(device), code="device",
            expected=", ".join([*facts.DEVICES, *facts.GENERATIONS]),
        )  # fmt: skip
    return found


def _check(weights: Weights) -> None:
    if weights.form.startswith("palette") and not is_vector_size(weights.vector_size):
        raise SquishError(
            "no codebook holds vectors of this length", expected="1, 2, 4 or 5", found=weights.vector_size,
            code="vector-size", hint="The mask 0x36 says which [chapter 25, four codecs].",
        )  # fmt: skip
    if weights.vector_size > 1 and weights.elements % weights.vector_size:
        raise SquishError(
            "the vectors do not divide the elements", expected=f"a multiple of {weights.vector_size}",
            found=weights.elements, code="vector-size",
        )  # fmt: skip


def _illegal(row: facts.Row, generation: str, note: str) -> SquishError:
    return SquishError(
        f"{row.title} cannot be compiled for {generation}: {note}", code="illegal", found=row.rule,
        hint=f"See {row.source}; a 4-bit palette with one codebook streams on every generation.",
    )  # fmt: skip
