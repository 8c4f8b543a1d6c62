"""Descriptors and records of compiled weights, and the rules on their consumers. Source: chapter 25."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from attrs import frozen

VECTOR_MASK = 0x36
"""Bit v is set if a codebook may have vectors of v consecutive output channels."""

ELEMENT_CODES = {"f8_e4m3": 0xC, "f8_e5m2": 0xD}
"""Tensor formats of the float8 datapath: E4M3 is gated, E5M2 is converted to float16."""

CONVERTIBLE = 0x2FF0
"""Bit f is set if the memory engine converts tensor format f (below 14) to float16; 13 is E5M2, 12 is E4M3."""


def is_vector_size(size: int) -> bool:
    """Return whether palettes support this vector length."""
    return 0 <= size < 32 and bool(VECTOR_MASK >> size & 1)


def converts_to_half(tensor_format: int) -> bool:
    """Return whether the memory engine converts a tensor format to float16."""
    return 0 <= tensor_format < 0xE and bool(CONVERTIBLE >> tensor_format & 1)


class Lut(NamedTuple):
    """The activation table in a descriptor (listing 25.1)."""

    typeno: int
    bitdepth: int
    lut_bytes: int


class Pal(NamedTuple):
    """The palette in a descriptor (listing 25.1): several codebooks are the vector-palettized case."""

    palette_format: str
    bitdepth: int
    num_luts: int
    lut_bytes: int


@frozen(kw_only=True)
class Descriptor:
    """A compiled weight: its tables and group records, and the bytes of scales, biases and codes."""

    lut: Lut | None = None
    pal: Pal | None = None
    ocgs: tuple[GroupRecord, ...] = ()
    scale: int = 0
    bias: int = 0
    weights: int = 0

    @property
    def sections(self) -> Mapping[str, int]:
        """Size of each section in bytes, in the order of listing 25.1."""
        return {
            "lut": self.lut.lut_bytes if self.lut else 0,
            "pal": self.pal.lut_bytes if self.pal else 0,
            "ocgs": len(self.ocgs) * RECORD_BYTES,
            "scale": self.scale,
            "bias": self.bias,
            "weights": self.weights,
        }

    @property
    def tables(self) -> Mapping[str, Mapping[str, int | str]]:
        """The tuples of listing 25.1 that this weight has, by section."""
        return {name: table._asdict() for name, table in (("lut", self.lut), ("pal", self.pal)) if table}


RECORD_WORDS, ADDRESSES = 14, 10
RECORD_BYTES = RECORD_WORDS * 4
"""A record's words (table 25.3), assumed to have 32 bits."""


@frozen(kw_only=True)
class GroupRecord:
    """A group of output channels: its offset in the section in bytes, and its channels."""

    offset: int
    channels: int

    def words(self) -> tuple[int, ...]:
        """Return the fourteen words of table 25.3: offset, channels, ten addresses for the loader (-1), two flags."""
        return (self.offset, self.channels, *(-1,) * ADDRESSES, 0, 0)


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


def winograd(
    *, kernel: tuple[int, int], stride: int, form: str, channels: int, depth: int = 1, unit: str = "float"
) -> tuple[bool, str]:
    """Return whether a convolution may use Winograd, and the first failed condition. Source: chapter 20.

    `unit` is the work unit's mode, "integer" or "float".
    """
    work = channels * kernel[0] * kernel[1] * depth * 2
    rules = (
        (form != "unity", "weights are unity"),
        (not form.startswith("sparse"), "weights are sparse"),
        (kernel == (3, 3), "the kernel is not 3 x 3"),
        (stride == 1, "the stride is not 1"),
        (depth < 6, "the depth is 6 or more"),
        (work >= WINOGRAD_FLOORS[unit], f"too little work: {work} of {WINOGRAD_FLOORS[unit]}"),
    )
    failed = next((why for holds, why in rules if not holds), "")
    return not failed, failed


WINOGRAD_FLOORS = {"integer": 8, "float": 16}


def implicit_zeros(kernel: Sequence[int], *, stride: int = 1, padding: int = 0, size: int = 0) -> float:
    """Return the share of multiplications by zeros that a convolution's stride and padding add to those of its weights.

    The chapter names them without a formula. A stride of s is counted as a kernel at unit stride over s phases of the
    input, whose size is the next multiple of s; padding as the taps that lie outside an input of `size` along each
    axis, none if the size is unknown (0).
    """
    nonzero = 1.0
    for taps in kernel:
        nonzero *= taps / (-(-taps // stride) * stride)
        starts = range(-padding, size + padding - taps + 1, stride)
        if size and starts:
            inside = sum(max(min(start + taps, size) - max(start, 0), 0) for start in starts)
            nonzero *= inside / (len(starts) * taps)
    return 1 - nonzero


def cycles_after_skipping(cycles: float, zeros: float, implicit: float = 0.0) -> float:
    """Estimate cycles with a fraction `zeros` of zero weights, in any form, and `implicit` zeros of the convolution.

    If weight streaming is the bottleneck, the gain is about one percent.
    """
    return cycles * (1 - zeros) * (1 - implicit)
