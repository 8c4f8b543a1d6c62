"""`model.gguf.zst`: written in frames by several threads, opened without unpacking; split sets too."""

from __future__ import annotations

from pathlib import Path

import pytest
import zstandard
from squish_testing import expect_error
from squish_testing.hostile import probe
from squish_testing.mutations import mutants
from squish_testing.suite import typed_errors_only

import squish_core as squish
from squish_core.errors import FormatError

DATA = Path(__file__).parent / "data"


@pytest.fixture
def packed(tmp_path):
    report = squish.convert(DATA / "types.gguf", tmp_path / "types.gguf.zst")
    assert (report.format, report.size) == ("gguf", (tmp_path / "types.gguf.zst").stat().st_size)
    return tmp_path / "types.gguf.zst"


def test_the_frames_decompress_to_the_file(packed):
    unpacked = (DATA / "types.gguf").read_bytes()
    assert zstandard.ZstdDecompressor().stream_reader(packed.read_bytes(), read_across_frames=True).read() == unpacked


def test_a_compressed_file_opens_without_unpacking(packed):
    with squish.open(packed) as file:
        assert (file.name, file.index.files[0].name) == (str(packed), "types.gguf")
    assert squish.diff(packed, DATA / "types.gguf").same
    assert squish.verify(packed).ok
    assert squish.open(packed.read_bytes()).format == "gguf"


def test_convert_decompresses(packed, tmp_path):
    squish.convert(packed, tmp_path / "back.gguf")
    assert (tmp_path / "back.gguf").read_bytes() == (DATA / "types.gguf").read_bytes()


def test_a_dry_run_predicts_no_compressed_size(tmp_path):
    report = squish.convert(DATA / "types.gguf", tmp_path / "types.gguf.zst", dry_run=True)
    assert (report.format, report.size) == ("gguf", None)


def test_a_split_set_of_compressed_parts_opens(tmp_path):
    for path in DATA.glob("split-*.gguf"):
        (tmp_path / f"{path.name}.zst").write_bytes(zstandard.ZstdCompressor().compress(path.read_bytes()))
    assert squish.diff(tmp_path / "split-00002-of-00002.gguf.zst", DATA / "split-00001-of-00002.gguf").same


def test_damaged_files_raise_typed_errors(packed):
    for damaged in mutants(packed.read_bytes(), 300):
        with typed_errors_only("a mutant"), squish.open(damaged, "gguf") as file:
            probe(file)


def test_a_format_that_patches_its_header_cannot_be_compressed(tmp_path, monkeypatch):
    from squish_gguf import container

    def write(self, sink, tensors, meta, assets, options):
        sink.write(b"GGUF")
        sink.patch(0, b"FUGG")

    monkeypatch.setattr(container.Gguf, "write", write)
    with expect_error(FormatError, code="compressed"):
        squish.convert(DATA / "types.gguf", tmp_path / "out.gguf.zst")
    assert not list(tmp_path.iterdir())
