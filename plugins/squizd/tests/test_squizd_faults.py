"""Malformed SQUIZD files, each with the outcome that a reader must give."""

from __future__ import annotations

import os
import struct
import time
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from squish_testing import expect_error
from squish_testing.suite import typed_errors_only

import squish_core as squish

Build = Callable[[Any], bytes]


def changed(data: bytes, at: int, form: str, *values: Any) -> bytes:
    """`data` with a field replaced, and the checksums of the header corrected."""
    out = bytearray(data)
    struct.pack_into(form, out, at, *values)
    if at >= 128:
        flags = struct.unpack_from("<I", out, 6)[0]
        struct.pack_into("<I", out, 14, zlib.crc32(out[128:160]) if flags & 8 else 0)
        value = 0xCBF29CE484222325
        for byte in out[160:192]:
            value = (value ^ byte) * 0x100000001B3 % (1 << 64)
        struct.pack_into("<Q", out, 18, value if flags & 16 else 0)
    return bytes(out)


def one(sq: Any) -> bytes:
    """A layer of an INT4 tensor of odd size at 320, its entry at 392, and a norm."""
    return bytes(sq.build([[sq.int4(sq.rng, 3, 5), sq.npcl(sq.rng, (2,))]]))


def two(sq: Any) -> bytes:
    """Two layers of one INT4 tensor each."""
    return bytes(sq.build([[sq.int4(sq.rng, 4, 8, 8)], [sq.int4(sq.rng, 4, 8, 8)]]))


def alone(sq: Any, kind: str, *shape: int, **more: Any) -> bytes:
    """A layer of one tensor, whose block starts at 320."""
    tensor = sq.Tensor("ASTW", shape) if kind == "astw" else getattr(sq, kind)(sq.rng, *shape, **more)
    return bytes(sq.build([[tensor, sq.npcl(sq.rng, (2,))]]))


def masked(sq: Any) -> bytes:
    return bytes(sq.build([[sq.int4(sq.rng, 10, 10, keep=[1, 0, 1, 1, 1] * 5)]], side=2))


def drafted(sq: Any) -> bytes:
    return bytes(sq.build([[sq.npcl(sq.rng, (2,))]], draft=[[sq.npcl(sq.rng, (2,))], [sq.npcl(sq.rng, (2,))]]))


def appended(sq: Any, archive: bytes, at: int | None = None, form: str = "<I", value: int = 0) -> bytes:
    """A file with an appendix; a field of the zip's directory replaced where `at` is given."""
    if at is not None:
        archive = bytearray(archive)  # type: ignore[assignment]
        struct.pack_into(form, archive, archive.index(b"PK\1\2") + at, value)  # type: ignore[arg-type]
    return bytes(sq.build([[sq.npcl(sq.rng, (2,))]], archive=bytes(archive)))


def tabled(sq: Any, change: Callable[[bytes, int], bytes]) -> bytes:
    """`one` with its scale table changed; the second argument is where its first entry lies."""
    data = one(sq)
    return change(data, data.index(b"SCZT") + 8)


# fault -> (builder, rule, part, offset): opening fails in both modes
ERRORS: dict[str, tuple[Build, str, str, int | None]] = {
    "the_magic_alone": (lambda sq: b"SQZD", "P1", "header", None),
    "a_byte_short": (lambda sq: one(sq)[:255], "P1", "header", None),
    "version_0": (lambda sq: changed(one(sq), 4, "<H", 0), "P1", "version", 4),
    "version_2": (lambda sq: changed(one(sq), 4, "<H", 2), "P1", "version", 4),
    "version_swapped": (lambda sq: changed(one(sq), 4, "<H", 256), "P1", "version", 4),
    "flag_bit_7": (lambda sq: changed(one(sq), 6, "<I", 4 | 1 << 7), "P1", "flags", 6),
    "flag_bit_31": (lambda sq: changed(one(sq), 6, "<I", 4 | 1 << 31), "P1", "flags", 6),
    "sparse_without_metadata": (lambda sq: sq.header(8, crc=zlib.crc32(bytes(32))), "P6", "sparsity_version", 128),
    "65535_layers_in_300_bytes": (lambda sq: changed(one(sq), 10, "<H", 65535)[:300], "P2", "layer index", 256),
    "layers_unsorted": (lambda sq: changed(two(sq), 256, "<I", 2), "P2", "layer 1", 288),
    "layers_twice": (lambda sq: changed(two(sq), 288, "<I", 0), "P2", "layer 0", 288),
    "weights_in_the_header": (lambda sq: changed(one(sq), 260, "<Q", 64), "P2", "layer 0", 260),
    "weights_in_the_index": (lambda sq: changed(one(sq), 260, "<Q", 256), "P2", "layer 0", 260),
    "scale_offset_in_weights": (lambda sq: changed(one(sq), 276, "<Q", 320), "P3", "layer 0", 276),
    "past_the_end_by_one": (lambda sq: changed(two(sq), 300, "<Q", len(two(sq)) - 383), "P2", "layer 1", 292),
    "offset_that_wraps": (lambda sq: changed(one(sq), 260, "<QQ", (1 << 64) - 64, 128), "P2", "layer 0", 260),
    "overlap_in_part": (lambda sq: changed(two(sq), 292, "<Q", 321), "P2", "layer 1", 292),
    "identical_ranges": (lambda sq: changed(two(sq), 292, "<Q", 320), "P2", "layer 1", 292),
    "a_zip_behind": (lambda sq: one(sq) + sq.zipped(("a", b"x")), "P2", "end of file", 472),
    "64_zeros_behind": (lambda sq: one(sq) + bytes(64), "P2", "end of file", 472),
    "block_over_the_index": (lambda sq: changed(one(sq), 260, "<Q", 287), "P2", "layer 0", 260),
    "block_without_its_flag": (lambda sq: changed(one(sq), 6, "<I", 32), "P2", "layer 0", 320),
    "product_over_2_64": (lambda sq: changed(one(sq), 324, "<II", 0xFFFFFFFF, 0xFFFFFFFF), "P2", "layer 0", 320),
    "product_over_the_length": (lambda sq: changed(one(sq), 324, "<II", 300, 500), "P2", "layer 0", 320),
    "zero_elements_with_data": (lambda sq: changed(one(sq), 324, "<II", 0, 5), "P2", "layer 0", 332),
    "sub_block_len_0": (lambda sq: changed(alone(sq, "int2", 4, 4, 4), 332, "<I", 0), "P3", "layer 0", 332),
    "astc_width_2_31": (lambda sq: changed(alone(sq, "astw", 5, 9), 324, "<I", 1 << 31), "P2", "layer 0", 320),
    "astc_without_area": (lambda sq: changed(alone(sq, "astw", 5, 9), 328, "<I", 0), "P5", "layer 0", 324),
    "astc_footprint_0": (lambda sq: changed(alone(sq, "astw", 5, 9), 332, "<I", 0), "P5", "layer 0", 332),
    "astc_footprint_unknown": (lambda sq: changed(alone(sq, "astw", 5, 9), 332, "<I", 0x77), "P5", "layer 0", 332),
    "astc_other_length": (lambda sq: changed(alone(sq, "astw", 5, 9), 324, "<I", 400), "P2", "layer 0", 320),
    "entries_2_32": (
        lambda sq: tabled(sq, lambda data, at: changed(data, at - 4, "<I", (1 << 32) - 1)), "P3", "scale table", 452),
    "two_entries_with_one_id": (
        lambda sq: tabled(sq, lambda data, at: changed(data, at - 4, "<I", 2) + data[at : at + 16]),
        "P3", "scale table", 456),
    "crc_wrong": (lambda sq: masked(sq)[:14] + b"\1\2\3\4" + masked(sq)[18:], "P1", "sparsity_crc32", 14),
    "hash_wrong": (lambda sq: drafted(sq)[:18] + bytes(8) + drafted(sq)[26:], "P1", "eagle_hash", 18),
    "npcl_rank_9": (lambda sq: changed(alone(sq, "npcl", (2, 2)), 328, "<I", 9), "P4", "layer 0", 328),
    "npcl_rank_2_31": (lambda sq: changed(alone(sq, "npcl", (2, 2)), 328, "<I", 1 << 31), "P4", "layer 0", 328),
    "npcl_zero_with_data": (lambda sq: changed(alone(sq, "npcl", (2, 2)), 332, "<I", 0), "P2", "layer 0", 340),
}  # fmt: skip

# fault -> (builder, rule): opens in lenient mode with exactly this warning, strict mode refuses
WARNINGS: dict[str, tuple[Build, str]] = {
    **{
        f"reserved_byte_{at}": (lambda sq, at=at: changed(one(sq), at, "<B", 1), "P1")
        for at in (52, 127, 192, 255)
    },
    "reserved_word_of_an_entry": (lambda sq: changed(one(sq), 284, "<I", 1), "P1"),
    "reserved_sparsity_byte": (lambda sq: changed(masked(sq), 159, "<B", 1), "P1"),
    "reserved_draft_byte": (lambda sq: changed(drafted(sq), 191, "<B", 1), "P1"),
    "coreml_without_appendix": (lambda sq: changed(one(sq), 6, "<I", 4 | 64), "P8"),
    "a_gap_in_the_numbers": (lambda sq: changed(sq.header(layers=2), 288, "<I", 4), "P2"),
    "data_in_a_hole": (lambda sq: changed(two(sq), 381, "<B", 1), "P2"),
    "spare_nibble": (lambda sq: changed(alone(sq, "int4", 3, 5), 339, "<B", 0x1F), "P3"),
    "spare_crumbs": (lambda sq: changed(alone(sq, "int2", 3, 3), 338, "<B", 0xFF), "P3"),
    "padding_before_the_bitmaps": (lambda sq: changed(alone(sq, "tcaw", 3, 70), 370, "<B", 1), "P5"),
    "crc_without_sparse": (lambda sq: one(sq)[:14] + b"\1\2\3\4" + one(sq)[18:], "P1"),
    "hash_without_eagle": (lambda sq: one(sq)[:18] + b"\1\2\3\4\5\6\7\x08" + one(sq)[26:], "P1"),
}  # fmt: skip


def finite(sq: Any, scale: float, zero: float = 0.0) -> bytes:
    tensor = sq.int4(sq.rng, 3, 5)
    tensor.pair = (scale, zero)
    return bytes(sq.build([[tensor, sq.npcl(sq.rng, (2,))]]))


# fault -> (builder, rule): opens; `layers.0.w0` fails when it is read, and in deep verification
DECODE: dict[str, tuple[Build, str]] = {
    "entries_that_fit_no_length": (lambda sq: changed(alone(sq, "int2", 4, 4, 4), 332, "<I", 3), "P3"),
    "bitmap_of_zeros": (lambda sq: changed(alone(sq, "tcaw", 3, 70), 384, "<Q", 0), "P5"),
    "bitmap_of_ones": (lambda sq: changed(alone(sq, "tcaw", 3, 70), 384, "<Q", (1 << 64) - 1), "P5"),
    "padding_of_a_bitmap": (lambda sq: changed(alone(sq, "tcaw", 3, 70), 399, "<B", 0x80), "P5"),
    "word_width_32": (lambda sq: changed(alone(sq, "tcaw", 3, 70), 328, "<I", 32), "P5"),
    "no_entry": (lambda sq: tabled(sq, lambda data, at: changed(data, at - 4, "<I", 0)[:at]), "P3"),
    "scale_nan": (lambda sq: finite(sq, np.nan), "P3"),
    "scale_inf": (lambda sq: finite(sq, np.inf), "P3"),
    "zero_nan": (lambda sq: finite(sq, 1.0, np.nan), "P3"),
    "npcl_unknown_type": (
        lambda sq: changed(sq.build([[sq.npcl(sq.rng, (2, 2))]]), 324, "<I", 3), "P4"),
}  # fmt: skip

# fault -> (builder, rule): an error of one section; the model's tensors stay readable
SECTION: dict[str, tuple[Build, str]] = {
    "eagle_without_metadata": (
        lambda sq: changed(changed(one(sq), 6, "<I", 4 | 16), 160, "<Q", 0), "P7"),
    "draft_in_the_weights": (lambda sq: changed(drafted(sq), 160, "<Q", 320), "P7"),
    "draft_layers_lie": (lambda sq: changed(drafted(sq), 176, "<I", 3), "P7"),
    "draft_layers_do_not_divide": (
        lambda sq: changed(changed(drafted(sq), 176, "<I", 3), drafted(sq).index(b"EGDH") + 4, "<I", 3), "P7"),
    "draft_vocabulary_0": (lambda sq: changed(drafted(sq), 180, "<I", 0), "P7"),
    "draft_past_the_end": (lambda sq: changed(drafted(sq), 168, "<Q", 1 << 40), "P7"),
    "bomb": (lambda sq: appended(sq, sq.zipped(("a", bytes(8 << 20)))), "P8"),
    "bomb_that_lies": (lambda sq: appended(sq, sq.zipped(("a", b"x")), 20, "<Q", 0xF0000000_10000000), "P8"),
    "climbing_name": (lambda sq: appended(sq, sq.zipped(("../a", b"x"))), "P8"),
    "absolute_name": (lambda sq: appended(sq, sq.zipped(("/a", b"x"))), "P8"),
    "drive_name": (lambda sq: appended(sq, sq.zipped(("c:a", b"x"))), "P8"),
    "backslash_name": (lambda sq: appended(sq, sq.zipped(("a\\b", b"x"))), "P8"),
    "link": (lambda sq: appended(sq, sq.zipped(("a", b"/etc/passwd"), mode=0o120777)), "P8"),
    "names_that_differ_in_case": (lambda sq: appended(sq, sq.zipped(("a", b"1"), ("A", b"2"))), "P8"),
    "encrypted": (lambda sq: appended(sq, sq.zipped(("a", b"xyz")), 8, "<H", 1), "P8"),
    "other_crc_in_the_directory": (lambda sq: appended(sq, sq.zipped(("a", b"xyz")), 16, "<I", 7), "P8"),
    "other_size_in_the_directory": (lambda sq: appended(sq, sq.zipped(("a", b"xyz")), 24, "<I", 7), "P8"),
    "other_place_in_the_directory": (lambda sq: appended(sq, sq.zipped(("a", b"xyz")), 42, "<I", 5), "P8"),
    "a_directory_of_gigabytes": (
        lambda sq: appended(sq, sq.zipped(("a", b"x"))[:-10] + struct.pack("<IIH", 1 << 30, 0, 0)), "P8"),
    "section_length_lies": (
        lambda sq: changed(d := appended(sq, sq.zipped(("a", b"x"))), d.index(b"ANLX") + 4, "<Q", 1 << 63), "P8"),
    "not_a_zip": (lambda sq: appended(sq, b"PK\5\6"), "P8"),
}  # fmt: skip


@pytest.mark.parametrize("fault", ERRORS)
def test_a_faulty_file_is_refused_at_little_cost(sq: SimpleNamespace, fault: str) -> None:
    build, rule, part, offset = ERRORS[fault]
    data = build(sq)
    squish.registry()
    tracemalloc.start()
    started = time.perf_counter()
    for strict in (False, True):
        with expect_error(squish.FormatError, code=rule, part=part, offset=offset):
            squish.open(data, strict=strict, format="squizd")
    assert time.perf_counter() - started < 30  # a guard against work in proportion to a lie
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50_000_000
    assert not squish.verify(data, format="squizd").ok


@pytest.mark.parametrize("fault", WARNINGS)
def test_a_suspicious_file_is_a_warning_that_strict_refuses(sq: SimpleNamespace, fault: str) -> None:
    build, rule = WARNINGS[fault]
    data = build(sq)
    assert [(p.code, p.severity) for p in squish.open(data).problems] == [(rule, "warning")]
    with expect_error(squish.FormatError, code=rule):
        squish.open(data, strict=True)
    assert squish.verify(data).ok


@pytest.mark.parametrize("fault", DECODE)
def test_only_a_faulty_tensor_is_unreadable_and_the_message_names_its_rule(sq: SimpleNamespace, fault: str) -> None:
    build, rule = DECODE[fault]
    data = build(sq)
    file = squish.open(data)
    with expect_error(squish.SquishError, tensor="layers.0.w0") as caught:
        file["layers.0.w0"].numpy()
    assert caught.value.code in (rule, "unreadable")
    assert caught.value.message.endswith(f"[{rule}]")
    assert all(file[name].numpy() is not None for name in file if name != "layers.0.w0")
    assert not squish.verify(data, deep=True).ok


@pytest.mark.parametrize("fault", SECTION)
def test_a_faulty_section_leaves_the_model_readable(sq: SimpleNamespace, fault: str) -> None:
    build, rule = SECTION[fault]
    data = build(sq)
    tracemalloc.start()
    file = squish.open(data)
    assert tracemalloc.get_traced_memory()[1] < 50_000_000
    tracemalloc.stop()
    assert {(problem.code, problem.severity) for problem in file.problems} == {(rule, "error")}
    assert all(f"[{rule}]" in problem.message for problem in file.problems)
    assert all(file[name].numpy() is not None for name in file)
    assert not file.children
    assert not file.index.whole
    assert not squish.verify(data).ok
    with pytest.raises(squish.FormatError):
        squish.open(data, strict=True)


def test_no_bytes() -> None:
    with pytest.raises(squish.FormatError):
        squish.open(b"", format="squizd")


def test_wrong_magic(sq: SimpleNamespace) -> None:
    data = b"SQZX" + one(sq)[4:]
    with pytest.raises(squish.FormatError) as caught:
        squish.open(data, format="squizd")
    assert (caught.value.code, caught.value.part, caught.value.offset) == ("P1", "magic", 0)
    with pytest.raises(squish.UnknownFormatError):
        squish.open(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n".ljust(300))


def test_with_two_primary_flags_the_magic_of_each_block_decides(sq: SimpleNamespace) -> None:
    file = squish.open(changed(one(sq), 6, "<I", 4 | 32 | 2), strict=True)  # INT4, INT2, TCA_TBE; P2 makes it legal
    assert file["layers.0.w0"].codec == "squizd.int4"


def test_dense_blocks_beside_the_primary_encoding_are_legal(sq: SimpleNamespace) -> None:
    assert {squish.open(one(sq), strict=True)[f"layers.0.w{i}"].codec for i in (0, 1)} == {"squizd.int4", "dense"}


@pytest.mark.parametrize("group", [7, 1000])
def test_sub_blocks_need_not_divide_the_elements_or_fit_a_row(sq: SimpleNamespace, group: int) -> None:
    tensor = sq.int2(sq.rng, 5, 9, group)
    file = squish.open(sq.build([[tensor]]), strict=True)
    assert (file["layers.0.w0"].numpy() == tensor.values()).all()


@pytest.mark.parametrize("scale", [0.0, 1e-42])
def test_verify_warns_about_zero_and_denormal_scales(sq: SimpleNamespace, scale: float) -> None:
    found = squish.verify(finite(sq, scale)).problems
    assert [(problem.code, problem.severity) for problem in found] == [("P3", "warning")]


def test_the_misprinted_crc_is_a_note_in_strict_mode_too(sq: SimpleNamespace) -> None:
    data = one(sq)[:14] + bytes.fromhex("5a2b0000") + one(sq)[18:]
    assert [problem.severity for problem in squish.open(data, strict=True).problems] == ["note"]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_duplicate_name_in_the_appendix(sq: SimpleNamespace) -> None:
    file = squish.open(appended(sq, sq.zipped(("a", b"1"), ("a", b"2"))))
    assert [(problem.code, problem.severity) for problem in file.problems] == [("P8", "error")]


def test_appendix_larger_than_the_limit_when_unpacked(sq: SimpleNamespace) -> None:
    data = appended(sq, sq.zipped(*((str(number), np.random.default_rng(number).bytes(9000)) for number in range(3))))
    assert squish.open(data, strict=True).index.whole
    file = squish.open(data, limits=squish.Limits(decoded=20_000))
    assert [(problem.code, problem.severity) for problem in file.problems] == [("P8", "error")]


def test_a_bomb_inside_the_archive_is_never_unpacked(sq: SimpleNamespace) -> None:
    inner = sq.zipped(("a", bytes(1 << 20)), method=zipfile.ZIP_DEFLATED)
    file = squish.open(appended(sq, sq.zipped(("inner.zip", inner), method=zipfile.ZIP_STORED)), strict=True)
    assert file.index.whole


def test_a_scalar_and_a_zero_in_the_shape_are_legal(sq: SimpleNamespace) -> None:
    file = squish.open(sq.build([[sq.npcl(sq.rng, ()), sq.npcl(sq.rng, (0, 7))]]), strict=True)
    assert [file[name].shape for name in file] == [(), (0, 7)]


@pytest.mark.parametrize("name", ["", "a" * 1025, "a\0b"])
def test_invalid_names(sq: SimpleNamespace, name: str) -> None:
    data = sq.build([[sq.npcl(sq.rng, (2,), name=name)]], names=True)
    file = squish.open(data)
    assert list(file) == ["layers.0.w0"]
    assert [(problem.code, problem.severity) for problem in file.problems] == [("P9", "warning")]


def test_control_characters_and_similar_letters_in_names_are_kept(sq: SimpleNamespace) -> None:
    names = ["\x1b[2J", "\u202e", "\u00e9", "e\u0301", "__metadata__"]
    data = sq.build([[sq.npcl(sq.rng, (2,), name=name) for name in names]], names=True)
    assert list(squish.open(data)) == names


def test_many_small_tensors_open_in_linear_time(sq: SimpleNamespace) -> None:
    rng, times = sq.rng, []
    for count in (2000, 8000):
        data = sq.build([[sq.int4(rng, 1, 2, 2) for _ in range(count)]])
        started = time.process_time()
        assert len(squish.open(data)) == count
        times.append(time.process_time() - started)
    assert times[1] < 10 * times[0]  # 16 if it were quadratic


def test_a_file_that_shrinks_while_open(sq: SimpleNamespace, tmp_path: Path) -> None:
    path = tmp_path / "a.squizd"
    path.write_bytes(sq.build([[sq.npcl(sq.rng, (64, 64))]]))
    with squish.open(path) as file:
        os.truncate(path, 400)
        with typed_errors_only("a shrunken file"):
            file["layers.0.w0"].numpy()
