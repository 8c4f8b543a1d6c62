"""Malformed files: each fails or warns with the rule it breaks."""

from __future__ import annotations

import struct
import tracemalloc
import zipfile
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from squish_testing import expect_error
from squish_testing.suite import typed_errors_only

import squish_core as squish


def refused(data: bytes, rule: str, part: str | None = None) -> None:
    """Opening fails in both modes with the rule and the part, in little memory."""
    tracemalloc.start()
    for strict in (False, True):
        with pytest.raises(squish.FormatError) as caught:
            squish.open(data, strict=strict)
        assert caught.value.code == rule
        assert part in (None, caught.value.part)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50_000_000
    assert not squish.verify(data).ok


def warned(data: bytes, rule: str, where: str | None = None) -> squish.File:
    """Opening lists exactly one warning, strict mode fails."""
    file = squish.open(data)
    assert [(problem.code, problem.severity) for problem in file.problems] == [(rule, "warning")], file.problems
    assert where in (None, file.problems[0].where)
    with pytest.raises(squish.FormatError):
        squish.open(data, strict=True)
    assert squish.verify(data).ok
    return file


def changed(data: bytes, at: int, form: str, *values: Any) -> bytes:
    out = bytearray(data)
    struct.pack_into(form, out, at, *values)
    return bytes(out)


@pytest.fixture
def two(sq: SimpleNamespace) -> bytes:
    """Two layers of one INT4 tensor each, with sub-blocks."""
    return sq.build([[sq.int4(sq.rng, 4, 8, 8)], [sq.int4(sq.rng, 4, 8, 8)]])


@pytest.fixture
def one(sq: SimpleNamespace) -> bytes:
    """One INT4 tensor of odd size with one pair; its block is at 320, the table at 384."""
    return sq.build([[sq.int4(sq.rng, 3, 5)]])


def test_more_layers_than_the_file_can_hold(sq: SimpleNamespace) -> None:
    refused(changed(sq.header(), 10, "<H", 65535)[:300], "P2", "layer index")


@pytest.mark.parametrize("indices", [(1, 0), (0, 0), (0, 0x80000000), (5, 5)])
def test_layers_out_of_order(two: bytes, indices: tuple[int, int]) -> None:
    refused(changed(changed(two, 256, "<I", indices[0]), 288, "<I", indices[1]), "P2", f"layer {indices[1]}")


def test_missing_layer_numbers_are_a_warning(sq: SimpleNamespace) -> None:
    warned(changed(sq.header(layers=2), 288, "<I", 4), "P2", "layer 4")


@pytest.mark.parametrize("offset", [0, 1, 255, 256, 319])
def test_a_weight_block_in_the_header_or_index(one: bytes, offset: int) -> None:
    refused(changed(one, 260, "<Q", offset), "P2")


@pytest.mark.parametrize(
    ("offset", "length"), [(320, 1 << 63), (320, (1 << 64) - 1), ((1 << 64) - 64, 128), (1 << 32, 8), (320, 10_000)]
)
def test_a_weight_block_past_the_end(one: bytes, offset: int, length: int) -> None:
    refused(changed(one, 260, "<QQ", offset, length), "P2", "layer 0")


def test_overlapping_weight_blocks(two: bytes) -> None:
    offset, length = struct.unpack_from("<QQ", two, 260)
    refused(changed(two, 292, "<QQ", offset, length), "P2", "layer 1")
    refused(changed(two, 292, "<QQ", offset + length - 1, length), "P2", "layer 1")


@pytest.mark.parametrize("value", [0, 1, 320, 385, 1 << 32, (1 << 64) - 1])
def test_invalid_scale_offset(one: bytes, value: int) -> None:
    refused(changed(one, 276, "<Q", value), "P3", "layer 0")


def test_a_reserved_word_of_the_index_is_a_warning(one: bytes) -> None:
    warned(changed(one, 284, "<I", 1), "P1")


def test_unknown_block_magic(one: bytes) -> None:
    refused(changed(one, 320, "<4s", b"INT8"), "P2", "layer 0")


@pytest.mark.parametrize("flags", [0, 32, 2])
def test_a_block_whose_flag_is_not_set(one: bytes, flags: int) -> None:
    refused(changed(one, 6, "<I", flags), "P2", "layer 0")


@pytest.mark.parametrize(
    ("rows", "columns"), [(1 << 31, 1 << 31), (0xFFFFFFFF, 0xFFFFFFFF), (3, 6), (1 << 16, 1 << 16)]
)
def test_a_block_larger_than_its_section(one: bytes, rows: int, columns: int) -> None:
    refused(changed(one, 324, "<II", rows, columns), "P2")


def test_a_block_smaller_than_its_section(one: bytes) -> None:
    refused(changed(one, 324, "<II", 1, 5), "P2", "layer 0")


def test_data_after_the_last_section(one: bytes) -> None:
    refused(one + b"PK", "P2", "end of file")
    refused(one + bytes(64), "P2", "end of file")
    squish.open(one + bytes(63), strict=True)


def test_padding_that_is_not_zero_is_a_warning(one: bytes) -> None:
    warned(changed(one, 383, "<B", 1), "P2", "padding")


def test_set_unused_bits_of_codes_are_a_warning(sq: SimpleNamespace) -> None:
    data = sq.build([[sq.int4(sq.rng, 3, 5)]])
    at = 320 + 12 + 7
    warned(changed(data, at, "<B", data[at] & 15 | 0x10), "P3", "layer 0")
    data = sq.build([[sq.int2(sq.rng, 3, 3)]])
    at = 320 + 16 + 2
    warned(changed(data, at, "<B", data[at] | 0x80), "P3", "layer 0")


def test_int2_without_a_sub_block_length(sq: SimpleNamespace) -> None:
    refused(changed(sq.build([[sq.int2(sq.rng, 4, 4, 4)]]), 332, "<I", 0), "P3", "layer 0")


def test_wrong_int2_sub_block_length_fails_only_that_tensor(sq: SimpleNamespace) -> None:
    data = changed(sq.build([[sq.int2(sq.rng, 4, 4, 4), sq.npcl(sq.rng, (2,))]]), 332, "<I", 3)
    only_one_tensor_fails(data, "P3")


def only_one_tensor_fails(data: bytes, rule: str) -> None:
    file = squish.open(data)
    assert str(file["layers.0.w0"].spec.problem).endswith(f"[{rule}]")
    with expect_error(squish.TensorError, code="unreadable", tensor="layers.0.w0"):
        file["layers.0.w0"].numpy()
    assert file["layers.0.w1"].numpy() is not None
    assert not squish.verify(data).ok


def test_impossible_number_of_int4_sub_blocks_fails_only_that_tensor(sq: SimpleNamespace) -> None:
    tensor = sq.int4(sq.rng, 1, 10, 3)
    tensor.pairs += [(1.0, 0.0)] * 3  # 7 entries: 2 each would need 5
    only_one_tensor_fails(sq.build([[tensor, sq.npcl(sq.rng, (2,))]]), "P3")


@pytest.mark.parametrize("count", [0xFFFFFFFF, 2, 1000])
def test_a_table_longer_than_the_file(one: bytes, count: int) -> None:
    refused(changed(one, 388, "<I", count), "P3", "scale table")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_infinite_scale_fails_only_that_tensor(sq: SimpleNamespace, value: float) -> None:
    tensor = sq.int4(sq.rng, 3, 5)
    tensor.pair = (value, 0.0)
    only_one_tensor_fails(sq.build([[tensor, sq.npcl(sq.rng, (2,))]]), "P3")
    tensor.pair = (1.0, value)
    only_one_tensor_fails(sq.build([[tensor, sq.npcl(sq.rng, (2,))]]), "P3")


def test_infinite_sub_block_scale_fails_reading_and_verify(sq: SimpleNamespace) -> None:
    tensor = sq.int4(sq.rng, 4, 8, 8)
    tensor.pairs[2] = (np.inf, 0.0)
    data = sq.build([[tensor]])
    file = squish.open(data)
    assert np.isfinite(file["layers.0.w0"][0]).all()
    with expect_error(squish.CodecError, code="P3", tensor="layers.0.w0", part="table"):
        file["layers.0.w0"].numpy()
    assert not squish.verify(data).ok


def test_verify_warns_about_a_zero_scale_of_nonzero_codes(sq: SimpleNamespace) -> None:
    tensor = sq.int4(sq.rng, 4, 8)
    tensor.pair = (0.0, 1.0)
    report = squish.verify(sq.build([[tensor]]))
    assert [(problem.code, problem.severity) for problem in report.problems] == [("P3", "warning")]
    tensor.codes = [0] * 32
    assert squish.verify(sq.build([[tensor]])).clean


def test_verify_warns_about_a_denormal_scale(sq: SimpleNamespace) -> None:
    tensor = sq.int4(sq.rng, 4, 8)
    tensor.pair = (1e-40, 1.0)
    assert [problem.severity for problem in squish.verify(sq.build([[tensor]])).problems] == ["warning"]


def test_missing_scale_entry_fails_only_that_tensor(sq: SimpleNamespace) -> None:
    data = sq.build([[sq.int4(sq.rng, 3, 5), sq.npcl(sq.rng, (2,))]])
    cut = changed(data, data.index(b"SCZT") + 4, "<I", 0)[: data.index(b"SCZT") + 8]
    only_one_tensor_fails(cut, "P3")


def test_two_entries_with_one_id(two: bytes) -> None:
    at = two.index(b"SCZT") + 8
    refused(two[: at + 16] + two[at : at + 8] + two[at + 24 :], "P3", "scale table")


def test_scale_entry_without_a_tensor_is_a_warning(sq: SimpleNamespace) -> None:
    data = sq.build([[sq.int4(sq.rng, 3, 5)]])
    at = data.index(b"SCZT") + 4
    warned(changed(data, at, "<I", 2) + struct.pack("<Qff", 5, 1, 0), "P3", "scale table")


def test_entries_in_another_order_are_a_warning(two: bytes, sq: SimpleNamespace) -> None:
    at = two.index(b"SCZT") + 8
    swapped = two[:at] + two[at + 16 : at + 32] + two[at : at + 16] + two[at + 32 :]
    file = warned(swapped, "P3", "scale table")
    assert (file["layers.0.w0"].numpy() == squish.open(two)["layers.0.w0"].numpy()).all()


@pytest.mark.parametrize(("place", "value"), [(4, 0), (8, 0x80000000), (12, 0), (12, 7), (12, 0x55555)])
def test_invalid_astc_headers(sq: SimpleNamespace, place: int, value: int) -> None:
    data = sq.build([[sq.Tensor("ASTW", (5, 9))]])
    refused(changed(data, 320 + place, "<I", value), "P2" if value == 2 or value >> 31 else "P5")


@pytest.mark.parametrize(
    ("place", "form", "value"), [(17, "<B", 249), (20, "<Q", 1 << 63), (28, "<Q", 0), (12, "<I", 3)]
)
def test_invalid_tca_tbe_headers(sq: SimpleNamespace, place: int, form: str, value: int) -> None:
    refused(changed(sq.build([[sq.tcaw(sq.rng, 3, 70)]]), 320 + place, form, value), "P5")


@pytest.mark.parametrize(("place", "form", "value"), [(8, "<I", 32), (16, "<B", 3), (18, "<B", 4)])
def test_an_unknown_kind_of_tca_tbe_is_listed_but_not_decodable(
    sq: SimpleNamespace, place: int, form: str, value: int
) -> None:
    data = changed(sq.build([[sq.tcaw(sq.rng, 3, 70), sq.npcl(sq.rng, (2,))]]), 320 + place, form, value)
    only_one_tensor_fails(data, "P5")


def test_inconsistent_tca_tbe_bitmaps_fail_when_read(sq: SimpleNamespace) -> None:
    data = sq.build([[sq.tcaw(sq.rng, 3, 70)]])
    at = 384  # first word of the first plane
    word = struct.unpack_from("<Q", data, at)[0]
    spare = changed(data, at + 8, "<Q", struct.unpack_from("<Q", data, at + 8)[0] | 1 << 63)
    for damaged in (changed(data, at, "<Q", 0), changed(data, at, "<Q", (1 << 64) - 1), spare):
        assert word
        with expect_error(squish.CodecError, code="P5", tensor="layers.0.w0"):
            squish.open(damaged)["layers.0.w0"].numpy()
        assert not squish.verify(damaged, deep=True).ok


@pytest.mark.parametrize("rank", [9, 65, 1 << 31])
def test_npcl_with_too_many_dimensions(sq: SimpleNamespace, rank: int) -> None:
    refused(changed(sq.build([[sq.npcl(sq.rng, (2, 2))]]), 328, "<I", rank), "P4", "layer 0")


def test_npcl_of_an_unknown_type_is_listed_but_not_decodable(sq: SimpleNamespace) -> None:
    data = changed(sq.build([[sq.npcl(sq.rng, (2, 2))]]), 324, "<I", 3)
    file = squish.open(data)
    problem = file["layers.0.w0"].spec.problem
    assert problem == "unknown dtype_code 3 (expected 0 for f32, 1 for f16, 2 for bf16) [P4]"
    with expect_error(squish.TensorError, code="unreadable", tensor="layers.0.w0"):
        file["layers.0.w0"].numpy()


@pytest.mark.parametrize("shape", [(0, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF)])
def test_npcl_shapes_that_overflow(sq: SimpleNamespace, shape: tuple[int, int]) -> None:
    with pytest.raises(squish.SquishError):
        squish.open(changed(sq.build([[sq.npcl(sq.rng, (2, 2))]]), 332, "<II", *shape))


@pytest.fixture
def sparse(sq: SimpleNamespace) -> bytes:
    """One masked tensor: 5 x 5 tiles."""
    return sq.build([[sq.int4(sq.rng, 10, 10, keep=[1, 0, 1, 1, 1] * 5)]], side=2)


@pytest.mark.parametrize(
    ("at", "form", "value", "rule"), [(128, "<I", 0, "P6"), (128, "<I", 2, "P6"), (132, "<I", 0, "P6")]
)
def test_invalid_sparsity_metadata(sparse: bytes, at: int, form: str, value: int, rule: str) -> None:
    refused(with_crc(changed(sparse, at, form, value)), rule)


def with_crc(data: bytes) -> bytes:
    import zlib

    return changed(data, 14, "<I", zlib.crc32(data[128:160]))


@pytest.mark.parametrize(
    ("at", "form", "value", "field"),
    [(136, "<I", 2, "n_sparse_layers"), (140, "<f", 0.3, "mean_sparsity"), (140, "<f", np.nan, "mean_sparsity")],
)
def test_wrong_mask_totals_are_a_warning(sparse: bytes, at: int, form: str, value: Any, field: str) -> None:
    file = squish.open(with_crc(changed(sparse, at, form, value)))
    assert [(problem.code, problem.severity, problem.where) for problem in file.problems] == [("P6", "warning", field)]


def test_invalid_masks(sparse: bytes, sq: SimpleNamespace) -> None:
    (masks,) = struct.unpack_from("<Q", sparse, 276)
    offset, length = struct.unpack_from("<QQ", sparse, 260)
    assert offset + length == masks + 4
    warned(changed(sparse, masks + 3, "<B", 0x80 | sparse[masks + 3]), "P6", "layer 0")
    refused(changed(sparse, 276, "<Q", masks - 1), "P6", "layer 0")
    refused(changed(sparse, 268, "<Q", length - 1), "P6", "layer 0")
    refused(with_crc(changed(sparse, 132, "<I", 1)), "P6", "layer 0")
    refused(with_crc(changed(sparse, 132, "<I", 5)), "P6", "layer 0")


@pytest.mark.parametrize(("at", "form", "value"), [
    (160, "<Q", 320), (160, "<Q", 0), (160, "<Q", 1 << 63), (168, "<Q", (1 << 64) - 1),
    (168, "<Q", 0), (176, "<I", 3), (180, "<I", 0),
])  # fmt: skip
def test_invalid_draft_head_leaves_the_model_readable(sq: SimpleNamespace, at: int, form: str, value: int) -> None:
    data = sq.build([[sq.npcl(sq.rng, (2,))]], draft=[[sq.npcl(sq.rng, (2,))], [sq.npcl(sq.rng, (2,))]])
    data = changed(data, at, form, value)
    data = changed(data, 18, "<Q", sq.fnv(data[160:192]))
    file = squish.open(data)
    assert [(problem.code, problem.severity) for problem in file.problems] == [("P7", "error")]
    assert file["layers.0.w0"].numpy() is not None
    assert not file.children
    assert not squish.verify(data).ok


def test_valid_appendix_is_a_whole_model_encoding(sq: SimpleNamespace) -> None:
    data = sq.build(
        [[sq.npcl(sq.rng, (2,))]], archive=sq.zipped(("Manifest.json", b"{}"), ("Data/model.mlmodel", b"x" * 99))
    )
    file = squish.open(data, strict=True)
    (whole,) = file.index.whole
    assert (whole.label, whole.codec.id) == ("ANE_COREML", "ane.mlpackage")
    assert squish.verify(data, deep=True).clean


BAD_NAMES = ["../x", "/x", "a/../b", "a//b", "C:x", "a\\b", "./a", "a/."]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_unsafe_path_in_the_appendix(sq: SimpleNamespace, name: str) -> None:
    bad_appendix(sq, sq.zipped((name, b"x")))


def bad_appendix(sq: SimpleNamespace, packed: bytes, change: Any = None) -> None:
    """The appendix alone is in error: the tensors stay readable."""
    data = sq.build([[sq.npcl(sq.rng, (2,))]], archive=packed)
    data = change(data) if change else data
    file = squish.open(data)
    assert {(problem.code, problem.severity) for problem in file.problems} == {("P8", "error")}, file.problems
    assert file["layers.0.w0"].numpy() is not None
    assert not file.index.whole
    assert not squish.verify(data).ok


def test_link_in_the_appendix(sq: SimpleNamespace) -> None:
    bad_appendix(sq, sq.zipped(("a", b"/etc/passwd"), mode=0o120777))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_duplicate_name_in_the_appendix(sq: SimpleNamespace) -> None:
    bad_appendix(sq, sq.zipped(("a", b"1"), ("a", b"2")))


def test_zip_bomb_in_the_appendix(sq: SimpleNamespace) -> None:
    bad_appendix(sq, sq.zipped(("a", bytes(4 << 20))))
    packed = bytearray(sq.zipped(("a", b"x")))
    at = packed.index(b"PK\1\2")
    struct.pack_into("<II", packed, at + 20, 0x10000000, 0xF0000000)
    bad_appendix(sq, bytes(packed))


def test_encryption_and_contradictions_in_the_appendix(sq: SimpleNamespace) -> None:
    for place, form, value in ((8, "<H", 1), (24, "<I", 7), (16, "<I", 7), (10, "<H", 99), (42, "<I", 5)):
        packed = bytearray(sq.zipped(("a", b"xyz")))
        struct.pack_into(form, packed, packed.index(b"PK\1\2") + place, value)
        bad_appendix(sq, bytes(packed))


def test_corrupt_zip_and_wrong_length_of_the_appendix(sq: SimpleNamespace) -> None:
    bad_appendix(sq, b"PK\5\6")
    bad_appendix(sq, b"")
    good = sq.zipped(("a", b"x"))
    for length in (0, len(good) - 1, len(good) + 1, 1 << 63, (1 << 64) - 1):
        bad_appendix(sq, good, lambda data, length=length: changed(data, data.index(b"ANLX") + 4, "<Q", length))


def test_a_wrong_crc_in_the_appendix_is_found_by_verify(sq: SimpleNamespace) -> None:
    packed = sq.zipped(("a", b"x" * 50), method=zipfile.ZIP_STORED)
    data = sq.build([[sq.npcl(sq.rng, (2,))]], archive=packed.replace(b"xxxxx", b"xxyxx", 1))
    squish.open(data, strict=True)
    assert [problem.code for problem in squish.verify(data).problems] == ["P8"]


def test_missing_appendix_is_a_warning(sq: SimpleNamespace) -> None:
    warned(sq.header(64), "P8", "CoreML appendix")


def test_sqxt_section_past_the_end_of_the_file(sq: SimpleNamespace) -> None:
    data = sq.build([[sq.npcl(sq.rng, (2,), name="a")]], names=True)
    refused(changed(data, data.index(b"SQXT") + 4, "<I", 0xFFFFFFFF), "P9", "SQXT")


@pytest.mark.parametrize(
    "field",
    [
        (256, "<I"),
        (260, "<Q"),
        (268, "<Q"),
        (276, "<Q"),
        (284, "<I"),
        (4, "<H"),
        (6, "<I"),
        (10, "<H"),
        (14, "<I"),
        (18, "<Q"),
    ],
)
def test_every_field_at_its_extremes_gives_a_file_or_a_typed_error(two: bytes, field: tuple[int, str]) -> None:
    at, form = field
    most = (1 << 8 * struct.calcsize(form)) - 1
    for value in (0, 1, len(two), 1 << 32, 1 << 63, most):
        if value <= most:
            with typed_errors_only(f"{value} at {at}"):
                assert len(squish.open(changed(two, at, form, value))) <= 2


def test_a_deep_verification_decodes_the_draft_head_too(sq: SimpleNamespace) -> None:
    tensor = sq.int4(sq.rng, 4, 8, 8)
    tensor.pairs[1] = (np.nan, 0.0)
    report = squish.verify(sq.build([], draft=[[tensor]]), deep=True)
    assert "layers.0.w0" in {problem.where.split("/")[0] for problem in report.problems}
