"""Codecs with parameters and shapes, covering every layout of the compiled kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from squish_core.api import CodecSpec

Case = tuple[CodecSpec, tuple[int, ...], str]
GGML = (
    "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q8_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "q8_k", "iq4_nl", "iq4_xs",
    "mxfp4", "nvfp4",
)  # fmt: skip
PACKED_ZEROS = {"offset": "zero_point", "offset_dtype": "packed", "scale_dtype": "f16"}
AWQ = {"axis": -2, "pack_axis": -1, "transposed": True, "word": "i32", "order": [0, 2, 4, 6, 1, 3, 5, 7]}

PANELS: list[dict[str, Any]] = [
    {"group_size": 32, "zero": 8, "scale_dtype": "f16"},
    {"group_size": 64, "signed": True, "scale_dtype": "bf16"},
    {"group_size": 96, "offset": "bias"},
    {"group_size": 192, "signed": True, "offset": "bias", "scale_dtype": "f16", "offset_dtype": "bf16"},
]

# for every code width
AFFINE: list[tuple[dict[str, Any], tuple[int, ...]]] = [
    *(
        ({"group_size": 32, "offset": offset, "scale_dtype": dtype}, (6, 192))
        for offset in ("none", "zero_point", "bias")
        for dtype in ("f32", "f16", "bf16")
    ),
    ({"group_size": 24}, (3, 72)),
    ({"group_size": 8, "offset": "zero_point", "offset_dtype": "f16"}, (3, 40)),
    ({"group_size": 8, "offset": "zero_point", "offset_dtype": "i32"}, (3, 40)),
    ({}, (3, 77)),
    ({"group_size": 2048}, (2, 4096)),
    ({"axis": -2, "group_size": 4}, (8, 50)),
    ({"axis": -2, "pack_axis": -1, "group_size": 4}, (8, 50)),
    ({"axis": "flat", "group_size": 64, "offset": "bias"}, (4, 128)),
    ({"axis": "flat", "group_size": 256, "offset": "bias"}, (4, 128)),
    ({"axis": "flat"}, (4, 128)),
    ({"axis": "flat", "group_size": 48}, (100,)),
    ({"axis": "flat", "group_size": 64}, (1, 32)),
    ({"axis": "flat", "group_size": 64, "offset": "bias", "scale_dtype": "f16"}, (1, 2080)),
    ({"axis": "flat", "group_size": 1 << 20}, (3, 32)),
    ({"group_size": 64, "word": "u32", "offset": "bias", "scale_dtype": "f16"}, (4, 128)),
    ({"group_size": 32, "axis": -2, "transposed": True, "word": "i32", "zero": 1, **PACKED_ZEROS}, (64, 96)),
    ({"group_size": 32}, (3, 4, 64)),
    ({"group_size": 32, "offset": "bias", "scale_dtype": "f16"}, (3, 2144)),
    ({"group_size": 96, "offset": "zero_point", "scale_dtype": "bf16"}, (3, 6240)),
]


def every() -> Iterator[Case]:
    """All cases: codec, shape and dtype of the tensor."""
    yield from ((CodecSpec(f"ggml.{name}"), shape, "f32") for name in GGML for shape in ((5, 512), (2, 2304)))
    for bits in range(1, 9):
        yield from ((CodecSpec("affine", {"bits": bits, **params}), shape, "f32") for params, shape in AFFINE)
        yield CodecSpec("palette", {"bits": bits}), (3, 80), "f32"
        yield CodecSpec("palette", {"bits": bits, "codebook_dtype": "f16", "scale_dtype": "f16"}), (3, 83), "f32"
    for bits in (1, 2, 4, 8):
        words = {"bits": bits, "order": "msb", "group_size": 32}
        yield CodecSpec("affine", {**words, "word": "u32", "scale_dtype": "f8_e4m3"}), (4, 128), "f32"
        yield CodecSpec("affine", {**words, "word": "u64", "axis": "flat"}), (4, 128), "f32"
    for rows in (64, 200):  # a panel of rows is 64 or 128
        yield CodecSpec("affine", {"bits": 4, "group_size": 32, **AWQ, **PACKED_ZEROS}), (rows, 96), "f32"
        yield (
            CodecSpec("affine", {"bits": 2, "group_size": 48, "axis": -2, "transposed": True, "word": "u32"}),
            (rows, 96),
            "f32",
        )
    yield CodecSpec("affine", {"bits": 4, "group_size": 32, "word": "i32", **PACKED_ZEROS}), (64, 96), "f32"
    yield CodecSpec("affine", {"bits": 8, "group_size": 32, "signed": False, "zero": -70000}), (4, 96), "f32"
    nf4 = {"bits": 4, "table": "nf4", "scale_dtype": "f32", "group_size": 64}
    yield CodecSpec("palette", nf4), (3, 128), "f32"
    yield CodecSpec("palette", {**nf4, "axis": "flat", "order": "msb"}), (3, 128), "f32"
    yield CodecSpec("palette", {**nf4, "axis": "flat", "order": "msb", "nested": 256}), (50, 512), "f32"
    for bits in (3, 5, 6, 7):
        padded = {"bits": bits, "group_size": 32, "word": "i32", "order": "padded", "scale_dtype": "bf16"}
        yield CodecSpec("affine", {**padded, "zero": 1 << bits - 1}), (4, 96), "f32"
        yield CodecSpec("affine", {**padded, "axis": -2, "transposed": True}), (64, 96), "f32"
        yield CodecSpec("affine", {**padded, "group_size": 24, "word": "u64"}), (4, 72), "f32"
    yield CodecSpec("palette", {"bits": 2, "table": [1.0, 2.0, 3.0], "scale_dtype": "f32"}), (3, 128), "f32"
    for element in ("f4_e2m1", "f8_e4m3", "f8_e5m2"):
        yield CodecSpec("mx", {"element": element}), (3, 96), "f32"
        for factor in ("none", "multiply", "divide"):
            nvfp4 = {"element": element, "block_size": 16, "scale_dtype": "f8_e4m3", "global_scale": factor}
            yield CodecSpec("mx", nvfp4), (3, 96), "f32"
    for element in ("f8_e4m3", "f8_e5m2", "f8_e4m3fnuz", "f8_e5m2fnuz"):
        yield CodecSpec("float8", {"element": element}), (3, 97), "f32"
        for block in ([1, 0], [0, 1], [8, 32], [7, 5]):
            yield CodecSpec("float8", {"element": element, "block": block, "scale_dtype": "bf16"}), (20, 97), "f32"
    yield CodecSpec("float8", {"block": [128, 128], "scale_dtype": "f8_e8m0"}), (300, 300), "f32"
    yield CodecSpec("uqff.f8q8"), (3, 96), "f32"
    for bits in (1, 2, 3, 4, 8):
        yield from (
            (CodecSpec("hqq", {"bits": bits, "group_size": 64, "axis": axis, **scales}), (32, 128), "f32")
            for axis in (0, 1)
            for scales in ({}, {"scale_dtype": "f16"})
        )
    for size in ({}, {"group_size": 32}, {"group_size": 256}):
        yield from ((CodecSpec(f"squizd.{name}", size), (4, 128), "f32") for name in ("int4", "int2"))
    yield from ((CodecSpec(f"squizd.{name}", {"group_size": 64}), (1, 2080), "f32") for name in ("int4", "int2"))
    yield CodecSpec("palette", {**nf4, "axis": "flat"}), (1, 96), "f32"
    for inner in (CodecSpec("affine", {"bits": 4, "group_size": 32}), CodecSpec("ggml.q8_0"), CodecSpec("dense")):
        yield CodecSpec("masked", {"block_size": 8}, inner=inner), (20, 160), "f32"
    yield from ((CodecSpec("dense"), (5, 77), dtype) for dtype in ("f32", "f16", "bf16"))
    for columns in (40, 64, 77, 320):
        yield CodecSpec("tca_tbe", {"base_exponent": 120}), (9, columns), "bf16"
        yield CodecSpec("bitmask", {"dtype": "bf16", "kept": columns // 2}), (9, columns), "bf16"
        for dtype in ("f32", "f16", "bf16"):
            yield CodecSpec("bitmask", {"dtype": dtype, "kept": "run"}), (9, columns), dtype
        for dtype in ("f32", "bf16", "i8", "f8_e4m3", "f8_e5m2"):
            for scales in ("row", "all"):
                yield CodecSpec("bitmask", {"dtype": dtype, "scale": "f16", "scales": scales}), (9, columns), "f32"
    for params in PANELS:
        yield from ((CodecSpec("panels", params), shape, "f32") for shape in ((37, 192), (3, 7, 192), (16, 6336)))
    yield CodecSpec("dense", {"dtype": "f16"}), (5, 77), "bf16"  # an encoding beside one of the tensor's own dtype


def name_of(case: Case) -> str:
    """A short id for pytest."""
    codec, shape, dtype = case
    params = ",".join(f"{key}={value}" for key, value in codec.params.items())
    return f"{codec.id}:{params} {codec.inner or ''}{list(shape)} {dtype}".replace(" ", "")
