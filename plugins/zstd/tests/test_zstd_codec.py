"""The zstd byte codec: decoding, errors and round trips."""

from __future__ import annotations

import contextlib
import threading

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from squish_testing import expect_error
from squish_zstd.api import Zstd, decode_head
from squish_zstd.codec import WINDOW

from squish_core.api import CodecError

# Hand-built frames by RFC 8878: magic, frame header descriptor, window byte, block header, block.
MAGIC = bytes.fromhex("28b52ffd")
RAW_ABC = MAGIC + bytes.fromhex("0000 190000 616263")  # a window of 1 KiB, one raw block "abc"
RLE_AAAA = MAGIC + bytes.fromhex("2004 230000 61")  # single segment, content size 4, one block "a" * 4
EMPTY = MAGIC + bytes.fromhex("2000 010000")
SKIPPABLE = bytes.fromhex("502a4d18 03000000") + b"xyz"


def decode(data: bytes, size: int) -> bytes:
    out = bytearray(size)
    Zstd().decode(memoryview(data), {}, out=memoryview(out), ratio=4096)
    return bytes(out)


def refuse(data: bytes, size: int) -> CodecError:
    with pytest.raises(CodecError) as caught:
        decode(data, size)
    return caught.value


@pytest.mark.parametrize(
    ("data", "content"),
    [
        (RAW_ABC, b"abc"),
        (RLE_AAAA, b"aaaa"),
        (EMPTY, b""),
        (b"", b""),
        (RAW_ABC + RLE_AAAA, b"abcaaaa"),
        (EMPTY + RAW_ABC + EMPTY, b"abc"),
        (SKIPPABLE + RAW_ABC + SKIPPABLE + RLE_AAAA + SKIPPABLE, b"abcaaaa"),
    ],
    ids=["raw", "rle", "empty frame", "no frame", "two frames", "empty frames between", "skippable frames"],
)
def test_golden_frames_decode(data: bytes, content: bytes) -> None:
    assert decode(data, len(content)) == content


def test_a_short_stream_reports_both_sizes() -> None:
    error = refuse(RAW_ABC, 8)
    assert (error.expected, error.found) == ("8 bytes", "3 bytes")


@pytest.mark.parametrize("data", [RAW_ABC, RLE_AAAA, RAW_ABC + RLE_AAAA])
def test_a_long_stream_stops_at_the_expected_size(data: bytes) -> None:
    error = refuse(data, 2)
    assert (error.expected, error.found) == ("2 bytes", "more than 2 bytes")


def test_a_bomb_costs_no_more_than_the_expected_size() -> None:
    million_blocks = MAGIC + b"\0\x88" + (b"\x02\0\x10\0" * 1_000_000) + b"\x03\0\x10\0"  # 128 GiB of zeros
    error = refuse(million_blocks, 16)
    assert error.found == "more than 16 bytes"


def test_invalid_data_is_reported() -> None:
    error = refuse(b"garbage!", 4)
    assert error.offset == 0
    assert error.found == b"garb".hex()


def test_the_message_about_trailing_bytes_gives_their_offset() -> None:
    error = refuse(RAW_ABC + b"junk", 3)
    assert error.offset == len(RAW_ABC)
    assert "trailing" in error.message


@pytest.mark.parametrize("data", [RAW_ABC, RLE_AAAA, zstandard.ZstdCompressor(write_checksum=True).compress(b"abc")])
def test_every_truncation_is_refused(data: bytes) -> None:
    size = 4 if data == RLE_AAAA else 3
    for cut in range(1, len(data)):
        refuse(data[:cut], size)


def test_a_truncated_skippable_frame_is_refused() -> None:
    assert "truncated" in refuse(RAW_ABC + SKIPPABLE[:-1], 3).message


def test_a_wrong_checksum_is_refused() -> None:
    data = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(b"abc"))
    data[-1] ^= 1
    assert "checksum" in refuse(bytes(data), 3).message


def test_a_dictionary_id_is_refused() -> None:
    error = refuse(MAGIC + bytes.fromhex("0100 07 190000 616263"), 3)
    assert (error.code, error.found) == ("dictionary", "id 7")


@pytest.mark.parametrize(
    "header", [bytes.fromhex("00 90"), bytes.fromhex("e0") + (1 << 60).to_bytes(8, "little")], ids=["window", "content"]
)
def test_a_window_over_128_mib_is_refused(header: bytes) -> None:
    error = refuse(MAGIC + header + bytes.fromhex("190000 616263"), 3)
    assert (error.code, error.expected) == ("window", f"at most {WINDOW} bytes")


def test_a_reserved_block_is_refused() -> None:
    assert refuse(MAGIC + bytes.fromhex("0000 1f0000 616263"), 3).offset == 6


@given(st.lists(st.binary(max_size=300)), st.integers(-7, 6))
def test_any_chunks_round_trip(chunks: list[bytes], level: int) -> None:
    data = b"".join(chunks)
    assert decode(b"".join(Zstd().encode(chunks, {"level": level})), len(data)) == data


@given(st.lists(st.binary(max_size=300), max_size=4))
def test_frames_of_other_writers_decode(pieces: list[bytes]) -> None:
    compress = zstandard.ZstdCompressor(write_checksum=True).compress
    assert decode(b"".join(compress(piece) for piece in pieces), sum(map(len, pieces))) == b"".join(pieces)


@given(st.binary(max_size=200), st.integers(0, 300), st.binary(min_size=1, max_size=3))
def test_a_corrupt_stream_decodes_or_is_refused(content: bytes, at: int, patch: bytes) -> None:
    data = bytearray(b"".join(Zstd().encode([content], {})))
    at %= len(data)
    data[at : at + len(patch)] = patch
    with contextlib.suppress(CodecError):
        decode(bytes(data), len(content))


def test_encoding_is_deterministic_and_empty_input_gives_the_empty_frame() -> None:
    chunks = [b"squish" * 1000, b"", memoryview(b"weights" * 1000)]
    first, second = (b"".join(Zstd().encode(chunks, {})) for _ in range(2))
    assert first == second
    assert b"".join(Zstd().encode([], {})) == EMPTY


@pytest.mark.parametrize("level", ["fast", 23, -8, None])
def test_an_invalid_level_is_refused(level: object) -> None:
    with expect_error(CodecError, code="level", expected="-7 to 22"):
        list(Zstd().encode([b""], {"level": level}))


def test_threads_share_one_codec() -> None:
    codec, failures = Zstd(), []
    data = b"".join(codec.encode([bytes(range(256)) * 4000], {}))

    def work() -> None:
        out = bytearray(256 * 4000)
        codec.decode(memoryview(data), {}, out=memoryview(out), ratio=4096)
        if out != bytes(range(256)) * 4000:
            failures.append("wrong bytes")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("skip", [0, 1, 128, 1 << 20])
def test_skip_drops_the_header_of_a_compressed_file(skip: int) -> None:
    codec, body = Zstd(), bytes(range(256)) * 9
    stored = memoryview(b"".join(codec.encode([b"h" * skip, body], {})))
    out = bytearray(len(body))
    codec.decode(stored, {"skip": skip}, out=memoryview(out), ratio=4096)
    assert out == body
    assert codec.decoded_size(stored, {"skip": skip}, most=len(body)) == len(body)
    assert decode_head(stored, skip + 2) == b"h" * skip + body[:2]
    assert decode_head(stored, 1 << 22) == b"h" * skip + body
    with expect_error(CodecError, code="size", expected="0 bytes", found="0 bytes"):
        codec.decode(stored, {"skip": skip + len(body) + 1}, out=memoryview(b""), ratio=4096)
