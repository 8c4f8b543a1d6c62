"""Files that a byte codec compressed whole: recognized by their first frame, and opened as their content."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import squish_zstd
import toys
import zstandard

import squish_core as squish
from squish_core.errors import FormatError, UnknownFormatError
from squish_core.plugins.registry import Registry

BOX = toys.box({"w": np.ones((2, 3), np.float32)})
FRAME = zstandard.ZstdCompressor().compress(BOX)


def skippable(content: bytes, number: int = 0) -> bytes:
    return struct.pack("<II", 0x184D2A50 + number, len(content)) + content


@pytest.fixture
def registry() -> Registry:
    return toys.registry(squish_zstd)


@pytest.mark.parametrize(
    "data",
    [
        FRAME,
        skippable(struct.pack("<I", len(FRAME))) + FRAME,  # as pzstd writes it
        skippable(b"", 15) + skippable(bytes(99), 3) + FRAME,
    ],
    ids=["frame first", "as pzstd", "two skippable frames"],
)
def test_a_compressed_file_is_opened_as_its_content(data: bytes, registry: Registry) -> None:
    with squish.open(data, registry=registry) as file:
        assert (file.format, list(file)) == ("toy.box", ["w"])


@pytest.mark.parametrize("behind", [b"", b"\x04\x22\x4d\x18" + bytes(40), b"\x28\xb5\x2f"])
def test_skippable_frames_alone_are_not_taken_for_a_codec(behind: bytes, registry: Registry) -> None:
    with pytest.raises(UnknownFormatError):
        squish.open(skippable(bytes(20), 1) + behind, registry=registry)


def test_a_file_of_small_skippable_frames_is_refused_quickly(registry: Registry) -> None:
    with pytest.raises(UnknownFormatError):
        squish.open(skippable(b"") * 1_000_000, registry=registry)


@pytest.mark.parametrize("inner", [FRAME, skippable(b"1234") + FRAME])
def test_a_file_that_is_compressed_twice_says_so(inner: bytes, registry: Registry, tmp_path: Path) -> None:
    path = tmp_path / "a.box.zst.zst"
    path.write_bytes(zstandard.ZstdCompressor().compress(inner))
    with pytest.raises(FormatError) as caught:
        squish.open(path, registry=registry)
    assert (caught.value.code, caught.value.file) == ("nested", str(path))
    assert "install" not in (caught.value.hint or "").lower()


def test_without_its_codec_a_file_of_pzstd_says_what_to_install() -> None:
    with pytest.raises(UnknownFormatError) as caught:
        squish.open(skippable(struct.pack("<I", len(FRAME))) + FRAME, registry=toys.registry())
    assert caught.value.code == "lookalike"
    assert "squish-zstd" in (caught.value.hint or "")
