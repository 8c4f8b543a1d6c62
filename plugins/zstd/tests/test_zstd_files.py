"""Compressed files: random access decodes few frames, whoever wrote them."""

from __future__ import annotations

import random
import struct
import tracemalloc
from contextlib import suppress
from itertools import chain

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from squish_testing import expect_error
from squish_testing.mutations import mutants
from squish_zstd import files
from squish_zstd.api import Zstd
from squish_zstd.files import FRAME, Unpacked

from squish_core.api import CodecError, FormatError, LimitError, Limits, SquishError, open_source

CONTENT = random.Random(1).randbytes(2000) * 1200  # 2.4 MB: two and a half frames
SMALL = random.Random(2).randbytes(3000)


def packed(content: bytes, step: int = 1 << 16) -> bytes:
    frames: list[bytes] = []
    with Zstd().packing(frames.append) as write:
        for start in range(0, len(content), step):
            write(content[start : start + step])
    return b"".join(frames)


def opened(data: bytes, limits: Limits | None = None) -> Unpacked:
    source = Zstd().unpacked(open_source(data), limits or Limits())
    assert isinstance(source, Unpacked)
    return source


def seek_table(sizes: list[tuple[int, int]], checksums: bool = False) -> bytes:
    rows = b"".join(struct.pack("<II", *row) + bytes(4 * checksums) for row in sizes)
    return (
        struct.pack("<II", 0x184D2A5E, len(rows) + 9)
        + rows
        + struct.pack("<IBI", len(sizes), checksums << 7, 0x8F92EAB1)
    )


def frames_of(*contents: bytes) -> list[bytes]:
    return [zstandard.ZstdCompressor().compress(content) for content in contents]


def test_any_zstd_decompresses_the_file():
    whole = zstandard.ZstdDecompressor().stream_reader(packed(CONTENT), read_across_frames=True).read()
    assert whole == CONTENT
    out = bytearray(len(CONTENT))
    Zstd().decode(memoryview(packed(CONTENT)), {}, out=memoryview(out), ratio=4096)
    assert out == CONTENT


def test_the_bytes_do_not_depend_on_write_sizes():
    assert packed(CONTENT, 999) == packed(CONTENT, len(CONTENT))
    assert len(opened(packed(CONTENT))._ends) == -(-len(CONTENT) // FRAME)


@given(data=st.data())
def test_any_range_equals_the_content(data: st.DataObject):
    source = opened(PACKED)
    for _ in range(4):
        start = data.draw(st.integers(0, len(CONTENT)))
        length = data.draw(st.integers(0, len(CONTENT) - start))
        assert bytes(source.view(start, length)) == CONTENT[start : start + length]
        out = bytearray(length)
        source.read_into(start, memoryview(out))
        assert out == CONTENT[start : start + length]


PACKED = packed(CONTENT)


@pytest.mark.parametrize("content", [CONTENT, SMALL, b""])
def test_an_empty_range_can_be_read_anywhere(content: bytes):
    source = opened(packed(content))
    for offset in (0, len(content) // 2, len(content)):
        assert source.read(offset, 0) == bytes(source.view(offset, 0)) == b""


def test_a_small_read_decodes_one_frame_and_sequential_reads_decode_ahead(monkeypatch):
    decoded = []
    monkeypatch.setattr(files, "WORKERS", 2)
    monkeypatch.setattr(files, "decode", lambda data, out: decoded.append(len(out)))
    source = opened(packed(CONTENT * 3))
    source.view(3 * FRAME + 5, 10)
    assert decoded == [FRAME]
    source.view(3 * FRAME + 50, 10)
    assert decoded == [FRAME]
    source.view(4 * FRAME, 10)  # sequential: two at a time from here on
    assert decoded == [FRAME] * 3


def test_the_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(files, "CACHE_SIZE", 2 * FRAME)
    source = opened(PACKED)
    for start in range(0, len(CONTENT), 1000):
        source.view(start, min(1000, len(CONTENT) - start))
    assert sum(map(len, source._frames.values())) <= 2 * FRAME


@pytest.mark.parametrize("checksums", [False, True])
def test_seek_tables_of_other_writers_are_read(checksums: bool):
    data = frames_of(b"a" * 100, b"", b"b" * 7)
    table = seek_table([(len(frame), size) for frame, size in zip(data, (100, 0, 7))], checksums)
    assert bytes(opened(b"".join(data) + table).view(98, 9)) == b"aa" + b"b" * 7


@pytest.mark.parametrize("between", [b"", struct.pack("<I", 0x184D2A50) + struct.pack("<I", 3) + b"xyz"])
def test_without_a_seek_table_frames_are_located_by_their_headers(between: bytes):
    data = between.join(frames_of(b"a" * 100, SMALL)) + between
    assert bytes(opened(data).view(99, 3001)) == b"a" + SMALL


def test_unseekable_files_are_refused_with_a_hint(monkeypatch):
    compressor = zstandard.ZstdCompressor().compressobj()  # like from a pipe: without content size
    unknown = compressor.compress(SMALL) + compressor.flush()
    with expect_error(FormatError, code="frames", hint="zstd -d"):
        opened(unknown)
    monkeypatch.setattr(files, "LARGEST", 2999)
    with expect_error(FormatError, code="frames", hint="zstd -d"):
        opened(frames_of(SMALL)[0])


@pytest.mark.parametrize(
    ("table", "found"),
    [
        (seek_table([(1 << 20, 3000)]), "1048576 bytes"),
        (seek_table([])[:-9] + struct.pack("<IBI", 1 << 31, 0, 0x8F92EAB1), "2147483648 frames"),
        (seek_table([(9, 3000)])[:-5] + struct.pack("<BI", 4, 0x8F92EAB1), "1 frames"),
    ],
)
def test_corrupt_seek_tables_are_refused(table: bytes, found: str):
    with expect_error(FormatError, code="zstd", found=found):
        opened(frames_of(SMALL)[0] + table)


def test_a_huge_seek_table_is_refused_at_no_cost(monkeypatch):
    frame = frames_of(SMALL)[0]
    rows = [(len(frame), 128 << 20)] + [(0, 128 << 20)] * 9
    with expect_error(LimitError, code="ratio", expected="at most 268435456 bytes", found="1342177280 bytes"):
        opened(frame + seek_table(rows))
    source = opened(frame + seek_table([(len(frame), 3001)]))
    with expect_error(CodecError, code="size", offset=0, expected="3001 bytes", found="3000 bytes"):
        source.view(0, 10)
    with expect_error(LimitError, code="header", expected="at most 7 bytes", found="8 bytes"):
        opened(frame + seek_table([(len(frame), 3000)]), Limits(header=7))
    monkeypatch.setattr(files, "_MAX_SCANNED", 1)
    with expect_error(LimitError, code="count", expected="at most 1"):
        opened(frame + frame)


def test_corruption_is_reported_with_its_file_offset():
    data = bytearray(PACKED)
    second = int(opened(PACKED)._frame_ends[0])
    data[second + 40] ^= 0xFF
    source = opened(bytes(data))
    assert bytes(source.view(0, 100)) == CONTENT[:100]
    with pytest.raises(CodecError) as caught:
        source.view(FRAME, 100)
    assert caught.value.offset == second


def test_damaged_files_give_typed_errors_in_bounded_memory():
    data = b"".join(frames_of(SMALL, SMALL)) + seek_table([(len(frame), 3000) for frame in frames_of(SMALL, SMALL)])
    tracemalloc.start()
    for damaged in chain(mutants(data, 1500), (data[:length] for length in range(0, len(data), 7))):
        with suppress(SquishError):
            source = opened(damaged)
            source.view(0, min(source.size, 10_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000_000


def test_members_are_found_compressed_or_not(tmp_path):
    (tmp_path / "a.gguf.zst").write_bytes(packed(b"first"))
    (tmp_path / "b.gguf.zst").write_bytes(packed(b"second"))
    (tmp_path / "config.json").write_bytes(b"{}")
    source = Zstd().unpacked(open_source(tmp_path / "a.gguf.zst"), Limits())
    assert (source.filename, source.members()) == ("a.gguf", ("a.gguf", "b.gguf", "config.json"))
    assert source.member("b.gguf").read(0, 6) == b"second"
    assert source.member("config.json").read(0, 2) == b"{}"
    source.close()
    with expect_error(SquishError, code="closed"):
        source.read(0, 1)
