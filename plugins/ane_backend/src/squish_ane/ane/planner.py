"""Predicts which weights stream to a Neural Engine, which are dequantized first, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import fields_dict, frozen

from squish_core.api import ErrorCode, SquishError, UsageError

from . import facts
from .activation import FUNCTIONS
from .kernel_formats import DENSE, QUANTIZED, UNITY, KernelFormat, codebook_bytes, is_quantized_palette
from .structures import is_vector_size


@frozen(kw_only=True)
class Weights:
    """A weight in the compiler's terms. `form` is a row of `facts.ROWS`; sizes are in elements.

    `channels`: output channels; `block`: elements per scale; `nonzero`: values under a mask; `codebook`: type of the
    entries of codebooks; `signed`: integer codes in two's complement.
    """

    form: str
    elements: int
    channels: int = 1
    bits: int = 16
    codebooks: int = 1
    vector_size: int = 1
    block: int = 0
    nonzero: int = 0
    codebook: str = "f16"
    signed: bool = True

    @property
    def has_palette(self) -> bool:
        """Whether codes are indices into codebooks."""
        return "palette" in self.form

    @property
    def sections(self) -> Mapping[str, int]:
        """Bytes of palette, scales, biases and codes while it streams. Source: chapter 25; listing 25.3 for masks.

        Zero points are counted among the biases: there is no stream for them.
        """
        count, channels = self.elements, self.channels
        mask = -(-count // 8)
        palette = codebook_bytes(self.bits, self.vector_size, self.codebooks) if self.has_palette else 0
        scale, bias, weights = {
            "int8": (2 * channels, 0, count),
            "int8_asymmetric": (2 * channels, channels, count),
            "sparse": (0, 0, mask + 2 * self.nonzero),
            "sparse_int8": (2 * channels, 0, mask + self.nonzero),
            "sparse_palette": (0, 0, mask + -(-self.nonzero * self.bits // 8)),
            "blockwise": (2 * -(-count // max(self.block, 1)), 0, count),
            "f8_e4m3": (0, 0, count),
        }.get(self.form, (0, 0, -(-count // self.vector_size * self.bits // 8) if self.has_palette else 2 * count))
        return {"pal": palette, "scale": scale, "bias": bias, "weights": weights}

    @property
    def nbytes(self) -> int:
        """Bytes transferred to the engine."""
        return sum(self.sections.values())

    @property
    def kernel_format(self) -> KernelFormat:
        """The storage encoding while it streams."""
        if self.has_palette:
            return KernelFormat("palette", self.bits, self.codebook if self.codebook in QUANTIZED else "f16")
        if self.form == "f8_e4m3":
            return KernelFormat("plain", 8, "f8_e4m3")
        if "int8" in self.form or self.form == "blockwise":
            return KernelFormat("plain", 8, "i8" if self.signed else "u8")
        return UNITY if self.form == "unity" else DENSE

    @property
    def element(self) -> str | None:
        """Type of the stored codes; None if descriptors have no type of this width."""
        if self.form == "affine4" or self.has_palette:
            signed = self.signed and not self.has_palette
            return {4: "i4" if signed else "u4", 8: "u8"}.get(self.bits)
        return self.kernel_format.type


@frozen(kw_only=True)
class Consumer:
    """The operation that reads a weight, which also decides whether it streams.

    `padding` and `size`, of a convolution's input, along each axis; `depthwise`: each channel has its own kernel;
    `activation`: a function of `activation.FUNCTIONS` on the result.
    """

    stride: int = 1
    dilation: int = 1
    overlapping: bool = False
    mutable: bool = False
    padding: int = 0
    size: int = 0
    depthwise: bool = False
    activation: str = ""

    def hindrance(self) -> str:
        """Return why a weight cannot stream, or an empty string."""
        rules = (
            (self.stride == 1, "the stride is not 1"),
            (self.dilation == 1, "the dilation is not 1"),
            (not self.overlapping, "tiles overlap"),
            (not self.mutable, "the weight is mutable"),
        )
        return next((why for holds, why in rules if not holds), "")


def consumer_of(options: Mapping[str, Any]) -> Consumer:
    """Parse consumer options such as `stride=2,overlapping=true`; UsageError if invalid."""
    fields = fields_dict(Consumer)
    values = {name: {"true": True, "false": False}.get(value, value) for name, value in options.items()}
    for name, value in values.items():
        default = fields[name].default if name in fields else None
        legal = value in FUNCTIONS if name == "activation" else type(value) is not int or value >= (default or 0)
        if type(value) is not type(default) or not legal:
            raise UsageError(
                "invalid ane option",
                found=f"{name}={value}",
                code=ErrorCode.BACKEND,
                expected="device, stride and dilation from 1, padding and size from 0, overlapping, mutable and"
                f" depthwise as true or false, activation as one of {', '.join(FUNCTIONS)}, zeros=count",
            )
    if values.get("padding") and not values.get("size"):
        raise UsageError(
            "padding needs the size of the input",
            found=f"padding={values['padding']}",
            code=ErrorCode.BACKEND,
            expected=f"padding={values['padding']},size=N",
        )
    return Consumer(**values)


@frozen(kw_only=True)
class Verdict:
    """The prediction for a weight on a generation: `nbytes` transferred per use, in `pieces`."""

    generation: str
    mode: str
    nbytes: int
    dense: int
    pieces: int
    evidence: str
    why: str


def plan(weights: Weights, generation: str, consumer: Consumer | None = None) -> Verdict:
    """Predict a weight's mode and cost; SquishError with the rule and table row if the weight is illegal."""
    row, cell = facts.ROWS[weights.form], facts.cell(weights.form, generation)
    _check(weights)
    mode, why = cell.mode, f"{row.rule} [{row.source}]"
    if cell.mode == "illegal":
        raise _illegal(row, generation, cell.note)
    hindrance = (consumer or Consumer()).hindrance()
    unset = [gate for gate in row.gates if not facts.is_set(gate, generation)]
    if mode == "stream" and unset:
        hindrance = f"the byte {unset[0]:#x} is not set"
    if mode == "stream" and hindrance:
        mode, why = "fold", f"{hindrance}, so the weight is folded [chapter 25, stream or fold]"
    dense = 2 * weights.elements
    nbytes = weights.nbytes if mode == "stream" else dense
    cap = facts.CAP_STREAMED if mode == "stream" else facts.CAP_DENSE
    note = f"; {cell.note}" if cell.note and mode == cell.mode else ""
    return Verdict(
        generation=generation,
        mode=mode,
        nbytes=nbytes,
        dense=dense,
        pieces=max(1, -(-nbytes // cap)),
        evidence=cell.evidence,
        why=why + note,
    )


def cores_of(device: str) -> int:
    """Return the engine cores that the suffix of a target name states: 8 for "H13g", 4 without one."""
    name = device.strip().upper()
    is_target = name not in facts.DEVICES and name.rstrip("GSCD") in facts.GENERATIONS
    return facts.CORES.get(name.lstrip("H0123456789").lower(), 4) if is_target else facts.CORES[""]


def generation_of(device: str) -> str:
    """Return the generation of a device: H13 for "M1", "h13" or "H13g"."""
    name = device.strip().upper()
    generation = facts.DEVICES.get(name, name.rstrip("GSCD"))
    if generation not in facts.GENERATIONS:
        raise UsageError(
            "unknown device",
            found=repr(device),
            code=ErrorCode.BACKEND,
            expected=", ".join([*facts.DEVICES, *facts.GENERATIONS]),
        )
    return generation


def _check(weights: Weights) -> None:
    if weights.form.startswith("palette") and not is_vector_size(weights.vector_size):
        raise SquishError(
            "unsupported vector length of a codebook",
            expected="1, 2, 4 or 5",
            found=weights.vector_size,
            code="vector-size",
            hint="Legal lengths are bits of the mask 0x36 [chapter 25, four codecs].",
        )
    if weights.codebook in QUANTIZED and not is_quantized_palette(1 << weights.bits):
        raise SquishError(
            "a codebook of integers has too many entries",
            expected="fewer than 256",
            found=1 << weights.bits,
            code="codebook",
            hint="Take 6 bits, or a codebook of f16 [chapter 25, four codecs].",
        )
    if weights.vector_size > 1 and weights.elements % weights.vector_size:
        raise SquishError(
            "the vectors do not divide the elements",
            expected=f"a multiple of {weights.vector_size}",
            found=weights.elements,
            code="vector-size",
        )


def _illegal(row: facts.FormRow, generation: str, note: str) -> SquishError:
    why = note if row.rule in note else f"{note} ({row.rule})"
    return SquishError(
        f"{row.title} cannot be compiled for {generation}: {why}",
        code="illegal",
        hint=f"See {row.source}; a 4-bit palette with one codebook streams on every generation.",
    )
