"""What `convert` writes verifies and is what the report states; otherwise it refuses and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import writeback_samples as samples
from squish_testing.sources import memory_file
from squish_testing.writeback import WritebackError, check_conversion

import squish_core as squish
from squish_core.api import CodecSpec, TensorSpec, dtypes
from squish_core.file import File

NAME = "model.layers.0.self_attn.q_proj.weight"
Edit = Mapping[str, Any]


def stored(dtype: str, shape: tuple[int, ...], codec: CodecSpec, edits: Edit) -> File:
    """A file with one tensor: parts of zeros, but for these values at the start of each role."""
    registry, spec = squish.registry(), TensorSpec(name=NAME, shape=shape, dtype=dtype)
    parts = {}
    for role, (kind, size) in registry.codec(codec).parts(spec).items():
        parts[role] = np.zeros(size, dtypes.to_numpy(kind))
        if role in edits:
            values = np.asarray(edits[role])
            parts[role].reshape(-1)[: values.size] = values
    file, _ = memory_file(registry, {NAME: (spec, codec, parts)})
    return file


CSR = {"nnz": 2, "indices": "u64", "indptr": "u64"}
COO = {"nnz": 1, "coords": "u64"}
INT4 = CodecSpec("squizd.int4", {"group_size": 8})
GROUPS = {"bits": 4, "group_size": 8, "word": "i32", "offset": "zero_point", "offset_dtype": "packed", "signed": False,
          "transposed": True, "axis": -2, "scale_dtype": "f16"}  # fmt: skip
DAMAGED = {
    "csr": ("ztensor", "f32", (3, 4), CodecSpec("zt.sparse_csr", CSR), {"indptr": [0, 2, 1, 2]}, "index"),
    "coo": ("ztensor", "f32", (3, 4), CodecSpec("zt.sparse_coo", COO), {"coords": [9]}, "index"),
    "bitmaps": ("squizd", "bf16", (2, 64), CodecSpec("tca_tbe", {"base_exponent": 1, "n_high": 3}), {}, "P5"),
    "texture": ("squizd", "f32", (4, 4), CodecSpec("astc", {"footprint": "4x4", "scale": 1.0, "zero": 0.0}), {}, "P5"),
    "mask": ("mlpackage", "f16", (2, 8), CodecSpec("bitmask", {"dtype": "f16", "kept": "run", "count": 1}), {}, "mask"),
    "table": ("squizd", "f32", (2, 8), INT4, {"table": [0, 0, 0x7FC00000]}, "P3"),
    "masked table": (
        "squizd", "f32", (2, 8), CodecSpec("masked", {"block_size": 4}, INT4),
        {"table": [0, 0, 0x7F800000]}, "P3"),
    "reshaped table": (
        "squizd", "f32", (4, 4), CodecSpec("reshaped", {"shape": (2, 8)}, INT4),
        {"table": [0, 0, 0x7F800000]}, "P3"),
    "masked boxes": (
        "mlpackage", "f32", (2, 8), CodecSpec("boxes", {"bits": 4, "grid": (1, 1), "scale_dtype": "f16", "count": 1}),
        {"scale": 1}, "mask"),
    "group index": (
        "hf:method=gptq", "f32", (8, 16), CodecSpec("hf.act_order", {}, CodecSpec("affine", GROUPS)),
        {"g_idx": [7]}, "g_idx"),
    "bool": ("ztensor", "bool", (2, 4), CodecSpec("dense"), {"data": np.array([7], "u1").view(bool)}, "bool"),
    "spare bits": ("ztensor:wire=2", "f4_e2m1", (3,), CodecSpec("dense"), {"data": [0, 0xFF]}, "spare"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED)
def test_parts_that_do_not_decode_are_not_copied(case: str, tmp_path: Path) -> None:
    to, dtype, shape, codec, edits, code = DAMAGED[case]
    file = stored(dtype, shape, codec, edits)
    with pytest.raises(squish.SquishError) as caught:
        file[NAME].numpy()
    assert caught.value.code == code
    refusal = check_conversion(file, tmp_path / "target", to).refusal
    assert refusal is not None
    assert (refusal.code, refusal.tensor) == (code, NAME)


def test_an_empty_part_behind_a_damaged_filter_is_not_copied(tmp_path: Path) -> None:
    source = bytearray((samples.ROOT / "plugins/ztensor/tests/data/v11_dense_zstd_l3.zt").read_bytes())
    with squish.open(bytes(source)) as file:
        (segment,) = file["empty"].spec.encodings[0].parts["data"].segments
    source[segment.offset] ^= 0xFF
    for to in ("ztensor", "safetensors"):
        refusal = check_conversion(squish.open(bytes(source)), tmp_path / "target", to).refusal
        assert refusal is not None
        assert (refusal.tensor, refusal.part) == ("empty", "data")


@pytest.mark.parametrize("offset", [{}, {"offset": "bias"}, {"offset": "zero_point"}])
@pytest.mark.parametrize("scale", [np.nan, np.inf])
def test_codes_with_a_scale_that_is_not_finite_are_not_repacked_into_a_scale_table(
    scale: float, offset: Edit, tmp_path: Path
) -> None:
    codec = CodecSpec("affine", {"bits": 2, "group_size": 8, **offset})
    refusal = check_conversion(stored("f32", (2, 8), codec, {"scale": [1.0, scale]}), tmp_path / "t", "squizd").refusal
    assert refusal is not None
    assert refusal.tensor == NAME


@pytest.mark.parametrize(("dtype", "bits"), [("f16", 0x7D01), ("f32", 0x7FA00001)])
def test_a_signaling_nan_is_compared_without_a_warning(dtype: str, bits: int, tmp_path: Path) -> None:
    values = np.full(64, bits, f"<u{dtypes.bits(dtype) // 8}").view(dtypes.to_numpy(dtype))
    file = stored(dtype, (2, 32), CodecSpec("dense"), {"data": values})
    assert check_conversion(file, tmp_path / "target", "safetensors", "bf16").report is not None


@pytest.fixture(scope="module")
def fixtures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A file for each format and codec."""
    folder = tmp_path_factory.mktemp("fixtures")
    files = samples.generated_files(folder / "made", ("hf-f32", "hf-bf16"))
    return samples.cover(samples.readable({**samples.written_files(folder / "archives"), **files}))


@pytest.fixture(scope="module")
def all_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every file of the test data that opens, and base models in every format and encoding."""
    folder = tmp_path_factory.mktemp("all")
    return samples.readable({**samples.written_files(folder / "archives"), **samples.generated_files(folder / "made")})


def violations(files: Mapping[str, Path], writer: str, folder: Path, encodings: Iterable[str | None]) -> list[str]:
    """What breaks the property when these files are written by one writer, each in the next of the encodings."""
    failures = []
    for number, ((name, path), encoding) in enumerate(zip(files.items(), cycle(encodings))):
        target = folder / str(number)
        target.mkdir()
        with squish.open(path) as file:
            try:
                check_conversion(file, target / f"target{samples.suffix(writer)}", samples.WRITERS[writer], encoding)
            except WritebackError as error:
                failures.append(f"{name} as {encoding or 'it is'}: {error}")
    return failures


HEADS = {"heads": 2, "groups": 2, "parts": (1, 1), "inverse": False, "first": 0, "columns": False}
IN_NO_FILE = {
    "hf.awq_gemv": ((8, 64), CodecSpec("hf.awq_gemv", {"group_size": 32, "padded": 1})),
    "hf.awq_fast": ((8, 64), CodecSpec("hf.awq_fast", {"group_size": 32, "padded": 1})),
    "hf.bnb8": ((4, 8), CodecSpec("hf.bnb8")),
    "onnx.blocks": ((4, 40), CodecSpec("onnx.blocks", {
        "dtype": "u4", "axis": 1, "block_size": 16, "columns": 48, "offset_dtype": "rows"})),
    "hf.column_scales": ((4, 32), CodecSpec("hf.column_scales", {"scale_dtype": "bf16"}, CodecSpec("affine", {
        "bits": 4, "group_size": 16}))),
    "hf.convrot": ((4, 32), CodecSpec("hf.convrot", {"group_size": 16}, CodecSpec("affine", {
        "bits": 8, "group_size": 0, "word": "i8", "signed": True}))),
    "npydir.int3": ((8, 32), CodecSpec("npydir.int3", {"group_size": 16})),
    "npydir.sqint2": ((8, 32), CodecSpec("npydir.sqint2", {
        "group_size": 16, "rank": 0, "nonzero": 0, "left_start": -1, "right_start": -1})),
    "lowrank": ((4, 32), CodecSpec("lowrank", {"rank": 2}, CodecSpec("affine", {"bits": 4, "group_size": 16}))),
    "masked": ((4, 32), CodecSpec("masked", {"block_size": 4}, CodecSpec("squizd.int4", {"group_size": 8}))),
    "awq": ((4, 32), CodecSpec("awq", {}, CodecSpec("affine", {"bits": 4, "group_size": 16, "offset": "bias"}))),
    "reshaped": ((4, 4), CodecSpec("reshaped", {"shape": (2, 8)}, INT4)),
    "heads": ((8, 32), CodecSpec("heads", HEADS, CodecSpec("affine", {
        "bits": 4, "group_size": 16}))),
    "slice": ((8, 32), CodecSpec("slice", {"start": 1, "rows": 3, "single": True}, CodecSpec("affine", {
        "bits": 4, "group_size": 16}))),
    "lora": ((8, 32), CodecSpec("lora", {
        "products": ((0.5, 2, 4, 2, 0, "f16", False, "bf16", True),)}, CodecSpec("affine", {
        "bits": 4, "group_size": 16}))),
    "scale": ((8, 32), CodecSpec("scale", {"runs": ((8, 0.5),)}, CodecSpec("affine", {"bits": 4, "group_size": 16}))),
    "stack": ((2, 8, 32), CodecSpec("stack", {}, CodecSpec("affine", {"bits": 4, "group_size": 16}))),
    "interleave": ((4, 8, 32), CodecSpec("interleave", {
        "rows": (1, 1), "axis": 1, "axes": 1}, CodecSpec("affine", {"bits": 4, "group_size": 16}))),
    "deinterleave": ((4, 8, 32), CodecSpec("deinterleave", {
        "rows": (1, 1), "axis": 1, "axes": 1, "number": 1}, CodecSpec("affine", {"bits": 4, "group_size": 16}))),
    "transpose": ((32, 8), CodecSpec("transpose", {}, CodecSpec("affine", {"bits": 4, "group_size": 16}))),
    "boxes": ((4, 8), CodecSpec("boxes", {"bits": 4, "grid": (2, 2), "scale_dtype": "f16"})),
    "panels": ((16, 64), CodecSpec("panels", {"group_size": 32, "zero": 7, "scale_dtype": "f32"})),
    "ggml.big_endian": ((2, 256), CodecSpec("ggml.big_endian", {}, CodecSpec("ggml.q4_0"))),
    **{codec: ((2, 256), CodecSpec(codec)) for codec in (
        "ggml.iq1_m", "ggml.iq1_s", "ggml.iq2_s", "ggml.iq2_xs", "ggml.iq2_xxs", "ggml.iq3_s", "ggml.iq3_xxs",
        "ggml.iq4_nl", "ggml.iq4_xs", "ggml.q8_1", "ggml.q8_k", "ggml.scaled_nvfp4",
    )},
}  # fmt: skip
"""Shapes and parameters for the codecs that no file of the fixtures has; a whole package is not a tensor."""


def test_the_fixtures_have_every_format_and_codec(fixtures: dict[str, Path]) -> None:
    registry, formats, codecs = squish.registry(), set(), set()
    for path in fixtures.values():
        with squish.open(path) as file:
            formats.add(file.format)
            codecs.update(samples.codecs_of(file))
    others = {entry.info.id for entry in registry.find("codec", kind="bytes")}
    assert formats == set(registry.containers)
    assert set(registry.codecs) - others - {"ane.mlpackage"} == codecs | set(IN_NO_FILE)


@pytest.mark.parametrize("codec", IN_NO_FILE)
def test_a_tensor_of_every_other_codec_is_written_as_reported_or_refused(codec: str, tmp_path: Path) -> None:
    shape, spec = IN_NO_FILE[codec]
    file = stored("f32", shape, spec, {"scale": 1, "meta": [1, shape[1], shape[0], 16]})
    for writer, to in samples.WRITERS.items():
        target = tmp_path / writer
        target.mkdir()
        check_conversion(file, target / f"target{samples.suffix(writer)}", to)


@pytest.mark.parametrize("writer", samples.WRITERS)
def test_a_file_of_every_format_and_codec_is_written_as_reported_or_refused(
    writer: str, fixtures: dict[str, Path], tmp_path: Path
) -> None:
    assert violations(fixtures, writer, tmp_path, [None]) == []


@pytest.mark.fuzz
@pytest.mark.parametrize("encodings", [(None,), samples.ENCODINGS], ids=["codes", "encoded"])
@pytest.mark.parametrize("writer", samples.WRITERS)
def test_every_file_is_written_as_reported_or_refused(
    writer: str, encodings: tuple[str | None, ...], all_files: dict[str, Path], tmp_path: Path
) -> None:
    assert violations(all_files, writer, tmp_path, encodings) == []
