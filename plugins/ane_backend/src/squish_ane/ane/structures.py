"""Enumerations, descriptors and records of compiled weights. Source: chapter 25."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

TYPE_NUMBERS = {"i8": 2, "u8": 3, "f16": 5, "lut": 8, "f8_e4m3": 16}
"""Type numbers of sections in the descriptor; other parts of the system number types differently."""

VECTOR_MASK = 0x36
"""Bit v is set if a codebook may have vectors of v consecutive output channels."""

ELEMENT_CODES = {"f8_e4m3": 0xC, "f8_e5m2": 0xD}
"""Tensor formats of the float8 datapath: E4M3 is gated, E5M2 is converted to float16."""

CONVERTIBLE = 0x2FF0
"""Bit f is set if the memory engine converts tensor format f (below 14) to float16; 13 is E5M2, 12 is E4M3."""


def is_vector_size(size: int) -> bool:
    """Whether palettes support this vector length."""
    return 0 <= size < 32 and bool(VECTOR_MASK >> size & 1)


def converts_to_half(tensor_format: int) -> bool:
    """Whether the memory engine converts a tensor format to float16."""
    return 0 <= tensor_format < 0xE and bool(CONVERTIBLE >> tensor_format & 1)


def codebook_bytes(bits: int, vector_size: int = 1, count: int = 1) -> int:
    """Return the size of float16 codebooks: 32 bytes for 4 bits, 512 for 8."""
    return (1 << bits) * vector_size * 2 * count


def is_quantized_palette(entries: int) -> bool:
    """Whether an integer palette may have this many entries (fewer than 256)."""
    return 0 < entries < 256


@frozen(kw_only=True)
class Descriptor:
    """The sections of a compiled weight without activation table and biases, which files do not store; in bytes."""

    palette: int = 0
    groups: tuple[GroupRecord, ...] = ()
    scales: int = 0
    weights: int = 0

    @property
    def sections(self) -> Mapping[str, int]:
        """Size of each section in bytes, in the order of listing 25.1."""
        return {
            "lut": 0, "pal": self.palette, "ocgs": len(self.groups) * RECORD_BYTES,
            "scale": self.scales, "bias": 0, "weights": self.weights,
        }  # fmt: skip


RECORD_BYTES = 14 * 4
"""A record's words (table 25.3), assumed to have 32 bits: offset, channels, ten addresses for the loader, two flags."""


@frozen(kw_only=True)
class GroupRecord:
    """What a plan knows of a group of output channels: its offset in the section in bytes, and its channels."""

    offset: int
    channels: int


def group_records(channels: int, cores: int, stride: int) -> tuple[GroupRecord, ...]:
    """Return one record per core, H13's layout; later generations share kernel memory."""
    share = -(-channels // cores)
    sizes = [min(share, channels - core * share) for core in range(cores)]
    return tuple(GroupRecord(offset=at * stride, channels=size) for at, size in enumerate(sizes) if size > 0)


@frozen
class Stream:
    """Registers of one coefficient stream (table 25.4)."""

    enable: int
    base: int
    relocation: int


STREAMS: Mapping[str, Stream] = {
    "bias": Stream(0x5548, 0x554C, 0x1554),
    "post_scale": Stream(0x5558, 0x555C, 0x1558),
    "palette": Stream(0x5568, 0x556C, 0x155C),
    "activation": Stream(0x5578, 0x557C, 0x1560),
}

ACTIVATION_BYTES = 86
"""A table of 43 half-precision entries by the chapter's count; its fields add up to 42."""


def winograd(
    *, kernel: tuple[int, int], stride: int, form: str, channels: int, depth: int = 1, unit: str = "float"
) -> tuple[bool, str]:
    """Return whether a convolution may use Winograd, and the first failed condition. Source: chapter 20.

    `unit` is the work unit's mode, "integer" or "float".
    """
    work = channels * kernel[0] * kernel[1] * depth * 2
    rules = (
        (not form.startswith("sparse"), "weights are sparse"),
        (kernel == (3, 3), "the kernel is not 3 x 3"),
        (stride == 1, "the stride is not 1"),
        (depth < 6, "the depth is 6 or more"),
        (work >= WINOGRAD_FLOORS[unit], f"too little work: {work} of {WINOGRAD_FLOORS[unit]}"),
    )
    failed = next((why for holds, why in rules if not holds), "")
    return not failed, failed


WINOGRAD_FLOORS = {"integer": 8, "float": 16}


def cycles_after_skipping(cycles: float, zeros: float) -> float:
    """Estimate cycles with a fraction `zeros` of zero weights, in any form.

    If weight streaming is the bottleneck, the gain is about one percent.
    """
    return cycles * (1 - zeros)
