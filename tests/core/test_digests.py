"""Digest strings and the CRC-32C behind one kind of them."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import toys
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

import squish_core as squish
from squish_core import api
from squish_core.checking.verify import report_lines
from squish_core.file import File
from squish_core.io.digest import Crc32c, Digest, check_digest, crc32c


def crc(data: bytes) -> str:
    hasher = Crc32c()
    hasher.update(data)
    return hasher.hexdigest()


def bit_by_bit(data: bytes) -> str:
    """CRC-32C as RFC 3720 defines it, a bit at a time."""
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    return f"{state ^ 0xFFFFFFFF:08x}"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "00000000"),
        (b"123456789", "e3069283"),
        (bytes(32), "8a9136aa"),
        (b"\xff" * 32, "62a8ab43"),
        (bytes(range(32)), "46dd794e"),
        (bytes(range(31, -1, -1)), "113fdb5c"),
    ],
)
def test_crc32c_of_the_vectors_of_rfc_3720(data: bytes, expected: str) -> None:
    assert crc(data) == expected


@pytest.mark.parametrize("size", [1, 3, 4, 511, 512, 513, 65535, 65536, 65537, 131075])
def test_crc32c_of_every_path_by_size(size: int) -> None:
    data = bytes(number * 37 % 251 for number in range(size))
    assert crc(data) == bit_by_bit(data)


@given(st.lists(st.binary(max_size=2000), max_size=5))
def test_crc32c_in_pieces_is_that_of_the_whole(pieces: list[bytes]) -> None:
    hasher = Crc32c()
    for piece in pieces:
        hasher.update(memoryview(piece))
    assert hasher.hexdigest() == crc(b"".join(pieces)) == bit_by_bit(b"".join(pieces))


@pytest.mark.parametrize("compiled", [True, False])
def test_google_crc32c_is_used_where_its_compiled_code_is(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = []

    def extend(checksum: int, data: Any) -> int:
        lengths.append(len(data))
        return checksum + len(data)

    library = SimpleNamespace(implementation="c" if compiled else "python", extend=extend)
    monkeypatch.setitem(sys.modules, "google_crc32c", library)
    hasher = crc32c()
    hasher.update(memoryview(b"1234"))
    hasher.update(bytearray(b"56789"))
    assert lengths == ([4, 5] if compiled else [])
    assert hasher.hexdigest() == ("00000009" if compiled else "e3069283")


@given(st.lists(st.binary(max_size=2000), max_size=5))
def test_google_crc32c_and_numpy_agree(pieces: list[bytes]) -> None:
    pytest.importorskip("google_crc32c")
    hasher = crc32c()
    for piece in pieces:
        hasher.update(memoryview(bytearray(piece)))
    assert hasher.hexdigest() == crc(b"".join(pieces))


@pytest.mark.parametrize("text", ["crc32c:0xE3069283", "crc32c:e3069283", "CRC32C:0xe3069283"])
def test_a_right_digest_is_right_in_any_spelling(text: str) -> None:
    assert check_digest(text, [b"1234", b"56789"]).state == "ok"


def test_a_wrong_digest_names_both_values() -> None:
    verdict = check_digest("crc32c:0x00000000", [b"123456789"])
    assert (verdict.state, verdict.expected, verdict.found) == ("wrong", "00000000", "e3069283")


@pytest.mark.parametrize("text", ["md5:00", "", "e3069283"])
def test_an_unknown_kind_is_unverified(text: str) -> None:
    assert check_digest(text, [b"123456789"]).state == "unverified"


@pytest.mark.parametrize(("algorithm", "start"), [("sha256", "sha256:15e2b0d3"), ("crc32c", "crc32c:0xE3069283")])
def test_a_computed_digest_verifies(algorithm: str, start: str) -> None:
    digest = Digest(algorithm)
    digest.update(b"123456789")
    assert str(digest).startswith(start)
    assert check_digest(str(digest), [b"123456789"]).state == "ok"


def test_a_report_counts_the_digests_of_a_draft_head_too() -> None:
    file = squish.open(toys.box({}), registry=toys.registry())
    supported, unknown = (
        api.Part(dtype="u8", shape=(9,), data=b"123456789", digest=digest)
        for digest in ("crc32c:0xE3069283", "strange:0")
    )
    encoding = api.Encoding(codec=api.DENSE, parts={"data": supported})
    spec = api.TensorSpec(name="w", shape=(9,), dtype="u8", encodings=(encoding,), extras={"more": unknown})
    draft = evolve(file.index, tensors={"w": spec})
    both = File(file.source, evolve(draft, children={"draft": draft}), file.registry, file.limits)
    for target, count in ((both, 2), (both.children["draft"], 1)):
        report = squish.verify(target, deep=True)
        assert (report.digests, report.unverified) == (2 * count, count)


def with_part(part: api.Part, *, registry: squish.Registry | None = None) -> File:
    """A file with one tensor of nine bytes that has this part."""
    file = squish.open(toys.box({}), registry=registry or toys.registry())
    encoding = api.Encoding(codec=api.DENSE, parts={"data": part})
    spec = api.TensorSpec(name="w", shape=(9,), dtype="u8", encodings=(encoding,))
    return File(file.source, evolve(file.index, tensors={"w": spec}), file.registry, file.limits)


def test_digests_of_parts_whose_byte_codec_is_not_installed_are_unverified() -> None:
    part = api.Part(
        dtype="u8",
        shape=(9,),
        data=b"123456789",
        filters=(api.Filter("gone"),),
        digest="crc32c:0xE3069283",
        digest_of="decoded",
    )
    report = squish.verify(with_part(part), deep=True)
    assert (report.digests, report.unverified, report.decoded) == (1, 1, 0)
    assert {(problem.code, problem.severity) for problem in report.problems} == {("not-installed", "warning")}
    *_, verdict, not_checked = report_lines(report)
    assert "0 of 1 digest checked" in verdict
    assert "1 digest that cannot be checked here" in not_checked


def test_a_wrong_digest_of_stored_bytes_is_an_error_without_the_byte_codec() -> None:
    part = api.Part(
        dtype="u8", shape=(9,), data=b"123456789", filters=(api.Filter("gone"),), digest="crc32c:0x00000000"
    )
    report = squish.verify(with_part(part), deep=True)
    assert (report.digests, report.unverified) == (1, 0)
    assert ("digest", "error") in {(problem.code, problem.severity) for problem in report.problems}


def test_a_wrong_digest_counts_as_checked() -> None:
    report = squish.verify(
        with_part(api.Part(dtype="u8", shape=(9,), data=b"123456789", digest="crc32c:0x00000000")), deep=True
    )
    assert (report.digests, report.unverified, report.ok) == (1, 0, False)
