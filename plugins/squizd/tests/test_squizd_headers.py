"""Headers that released software wrote, each with the outcome that the profile demands."""

from __future__ import annotations

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from squish_testing import expect_error

import squish_core as squish
from squish_core.api import MissingPluginError, SquishError

OK, WARNING, NOTE = "ok", "warning", "note"
# file -> what opening gives: ok, a note, a warning (strict refuses), or the rule of the error
CASES = {
    "ok_int4": OK, "layers_0": OK, "layers_1": OK, "layers_512": OK, "layers_513": OK, "layers_65535": OK,
    "flags_000": OK, "flags_001": OK, "flags_004": OK, "flags_064": WARNING,
    "bad_magic": "P1", "version_0": "P1", "version_2": "P1", "version_65535": "P1",
    "unknown_flag_bit7": "P1", "unknown_flag_bit8": "P1", "unknown_flag_bit31": "P1",
    "reserved26_nonzero": WARNING, "reserved127_nonzero": WARNING, "reserved2_192_nonzero": WARNING,
    "reserved2_255_nonzero": WARNING,
    "toy_spec_5A2B": NOTE, "nosparse_crc_garbage": WARNING, "nosparse_crc_of_zero_block": WARNING,
    "noeagle_hash_garbage": WARNING,
    "sparse_meta_zero_crc0": "P1", "sparse_meta_zero_crc_ok": "P6", "sparse_meta_set_crc0": "P1",
    "sparse_meta_set_crc_bad": "P1", "sparse_meta_set_crc_ok": WARNING,
    "eagle_hash0_meta0": "P1", "eagle_hash0_meta_set": "P1", "eagle_hash_bad": "P1",
}  # fmt: skip


def whole(path: Path) -> bytes:
    """A header file with the index of empty layers that its count asks for."""
    head = path.read_bytes()
    (layers,) = struct.unpack_from("<H", head, 10)
    return head + b"".join(struct.pack("<IQQQI", number, 0, 0, 0, 0) for number in range(layers))


@pytest.mark.parametrize("name", CASES)
def test_header_outcome(data: Path, name: str) -> None:
    file, outcome = whole(data / f"{name}.squizd"), CASES[name]
    if outcome.startswith("P"):
        for strict in (False, True):
            with pytest.raises(squish.FormatError) as caught:
                squish.open(file, "squizd", strict=strict)
            assert caught.value.code == outcome
        return
    opened = squish.open(file)
    assert {problem.severity for problem in opened.problems} == (set() if outcome == OK else {outcome})
    assert squish.verify(file).ok
    if outcome == WARNING:
        with pytest.raises(squish.FormatError):
            squish.open(file, strict=True)
    else:
        squish.open(file, strict=True)


@pytest.mark.parametrize("name", ["eagle_hash_ok", "eagle_hash_zero_block"])
def test_invalid_draft_metadata_leaves_the_model_readable(data: Path, name: str) -> None:
    file = whole(data / f"{name}.squizd")
    opened = squish.open(file)
    assert [(problem.code, problem.severity) for problem in opened.problems] == [("P7", "error")]
    assert not opened.children
    assert not squish.verify(file).ok
    with pytest.raises(squish.FormatError):
        squish.open(file, strict=True)


@pytest.mark.parametrize(("name", "size"), [("empty", 0), ("short_3", 3), ("short_255", 255)])
def test_a_short_header_is_refused_with_its_size(data: Path, name: str, size: int) -> None:
    fields = {"code": "P1", "part": "header", "found": f"{size} bytes"} if size else {"code": "empty"}
    with expect_error(squish.FormatError, **fields):
        squish.open((data / f"{name}.squizd").read_bytes(), "squizd")


def test_swapped_byte_order_is_explained(sq: SimpleNamespace) -> None:
    with pytest.raises(squish.UnsupportedVersionError) as caught:
        squish.open(sq.header(version=256))
    assert (caught.value.code, caught.value.part, caught.value.found) == ("P1", "version", 256)
    assert "byte order" in str(caught.value.hint)


@pytest.mark.parametrize("bit", range(7, 32))
def test_reserved_flag_bits_are_refused(sq: SimpleNamespace, bit: int) -> None:
    with pytest.raises(squish.FormatError) as caught:
        squish.open(sq.header(1 << bit))
    assert (caught.value.part, caught.value.offset, caught.value.found) == ("flags", 6, f"{1 << bit:#010x}")


@pytest.mark.parametrize("position", [*range(26, 128), *range(192, 256)])
def test_every_nonzero_reserved_byte_is_a_warning_with_its_offset(sq: SimpleNamespace, position: int) -> None:
    file = bytearray(sq.header())
    file[position] = 1
    (problem,) = squish.open(bytes(file)).problems
    assert (problem.code, problem.severity) == ("P1", "warning")
    assert (position >= 52 and position < 192) or "26" in problem.message or f"byte {position}" in problem.message


def test_fields_of_the_old_header_are_shown(sq: SimpleNamespace) -> None:
    file = bytearray(sq.header())
    struct.pack_into("<IHIffQ", file, 26, 4096, 32, 32000, 4.5, 0.5, 77)
    opened = squish.open(bytes(file))
    assert [problem.severity for problem in opened.problems] == ["warning"]
    assert opened.index.attrs["legacy.hidden_dim"] == 4096
    assert opened.index.attrs["legacy.vocab_size"] == 32000


def test_hashes_match_the_test_vectors() -> None:
    import zlib

    from squish_squizd.read.header import fnv1a64

    assert zlib.crc32(bytes(32)) == 0x190A55AD
    assert zlib.crc32(struct.pack("<IIIf16x", 1, 64, 2, 0.42)) == 0xCE57AE33
    assert fnv1a64(bytes(32)) == 0x0C8210784D8AF5A5
    assert fnv1a64(struct.pack("<QQII8x", 4096, 1000, 3, 32000)) == 0xCE2A6E70314FC690


def test_verify_lists_all_findings_of_a_file_that_does_not_open(sq: SimpleNamespace) -> None:
    file = bytearray(sq.header(8, crc=1))
    file[30], file[200] = 1, 1
    report = squish.verify(bytes(file))
    assert not report.ok
    assert [problem.code for problem in report.problems].count("P1") >= 3
    assert {problem.severity for problem in report.problems} == {"error", "warning"}


def test_every_flag_word_resolves_in_the_specified_order(sq: SimpleNamespace) -> None:
    names = list(sq.bits)
    order = ["ANE_COREML", "ASTC", "TCA_TBE", "INT2", "INT4"]
    container = squish.registry().container("squizd")
    for word in range(128):
        flags = {name for name in names if word & sq.bits[name]}
        labels = [encoding.label for encoding in container.encodings_for(flags=flags)]
        blocks = flags & set(order[1:])
        assert labels == [name for name in order if name in flags] + ([] if blocks else ["NumPy"])


def test_resolve_explains_rejected_encodings() -> None:
    chain = squish.registry().resolve(container="squizd", flags={"ANE_COREML", "INT4", "SPARSE"})
    assert chain.chosen.encoding.label == "INT4"
    assert str(chain.chosen.encoding.codec).startswith("masked")
    assert "ane.mlpackage" in chain.explain()


def test_resolve_rejects_encodings_that_cannot_store_the_dtype() -> None:
    resolve = squish.registry().resolve
    assert resolve(container="squizd", flags={"TCA_TBE"}, dtype="bf16").chosen.encoding.label == "TCA_TBE"
    chain = resolve(container="squizd", flags=set(), dtype="f16")
    assert (chain.chosen.encoding.label, chain.chosen.encoding.parts["data"].dtype) == ("NumPy", "f16")
    with pytest.raises(SquishError) as caught:
        resolve(container="squizd", flags={"TCA_TBE"}, dtype="f32")
    assert caught.value.code == "no-chain"


@pytest.mark.parametrize("word", [0x24, "0x24", "36", {"INT4", "INT2"}, ["INT4", 0x20]])
def test_a_flag_word_resolves_like_its_names(word: Any) -> None:
    chain = squish.registry().resolve(container="squizd", flags=word)
    assert chain.chosen.encoding.label == "INT2"
    assert [offer.encoding.label for offer in chain.others if offer.backend == "numpy"][-1] == "INT4"
    assert "flags=INT2+INT4" in chain.target


@pytest.mark.parametrize("word", [0x80, "0x124", -1])
def test_a_flag_word_with_an_unknown_bit_is_refused(word: Any) -> None:
    with pytest.raises(SquishError) as caught:
        squish.registry().resolve(container="squizd", flags=word)
    assert caught.value.code == "feature"


def test_the_message_about_astc_without_its_codec_names_it_once() -> None:
    registry = squish.Registry(plugins="-squish-astc")
    with pytest.raises(MissingPluginError) as caught:
        registry.resolve(container="squizd", flags={"ASTC"})
    assert "squish-astc" in str(caught.value.hint) or "plugins/astc" in str(caught.value.hint)
    assert caught.value.message.count("is not installed") == 1
