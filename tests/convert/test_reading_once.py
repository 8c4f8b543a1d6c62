"""What a conversion, a listing of values or an opening reads, repeats counted: no byte twice."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from squish_convert.verified_reader import VerifiedReader
from squish_testing.sources import CountingSource, fetched_part

import squish_core as squish
from squish_core.api import Typed
from squish_core.checking.check import SourceReader
from squish_core.errors import FormatError, TensorError
from squish_core.io.local import open_source
from squish_core.io.wrapped import CachedSource
from squish_core.text import format_bytes

SHAPE = (1024, 4096)
"""16 MiB of f32: four panels."""
RANDOM = np.random.default_rng(0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of one tensor of several panels, as stored by several formats."""
    folder = tmp_path_factory.mktemp("reading")
    values = RANDOM.normal(size=SHAPE).astype("f4")
    squish.save(folder / "f32.safetensors", {"w": values})
    squish.convert(folder / "f32.safetensors", folder / "f16.safetensors", encode="f16")
    for name in ("q4_k", "q8_0", "q4_0"):
        squish.convert(folder / "f32.safetensors", folder / f"{name}.gguf", encode=name)
    squish.convert(folder / "f16.safetensors", folder / "digests.zt", "ztensor:digest=sha256")
    squish.convert(folder / "q4_0.gguf", folder / "int4.zt", "ztensor:digest=sha256")
    squish.save(folder / "layer.gguf", {"layer.weight": values}, encode="q4_0")
    squish.convert(folder / "f16.safetensors", folder / "packed.zt", "ztensor:encoding=zstd,digest=sha256")
    squish.convert(folder / "f16.safetensors", folder / "packed2.zt", "ztensor:wire=2,encoding=zstd")
    return folder


def ratio(source: CountingSource, file: squish.File) -> float:
    """Bytes read of the parts, repeats counted, by bytes stored."""
    parts = [part for spec in file.index.tensors.values() for part in spec.encodings[0].parts.values()]
    return sum(fetched_part(source.log, file.index, part) for part in parts) / sum(part.stored for part in parts)


@pytest.mark.parametrize(
    ("name", "target", "encode"),
    [
        ("q4_k.gguf", "safetensors", "f16"),
        ("q8_0.gguf", "safetensors", "f16"),
        ("f16.safetensors", "gguf", "q8_0"),
        ("f16.safetensors", "gguf", "q4_1"),
        ("f16.safetensors", "gguf", None),
        ("q8_0.gguf", "gguf", None),
        ("digests.zt", "safetensors", None),
        ("digests.zt", "gguf", "q8_0"),
        ("int4.zt", "ztensor", None),
        ("packed.zt", "safetensors", None),
        ("packed2.zt", "safetensors", None),
        ("packed2.zt", "gguf", "q8_0"),
        ("f16.safetensors", "gguf", "nvfp4"),
    ],
)
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "numpy"])
def test_a_conversion_reads_each_stored_byte_once(
    folder: Path, tmp_path: Path, name: str, target: str, encode: str | None, compiled: bool
) -> None:
    registry = squish.registry() if compiled else squish.Registry("-squish-cpu")
    source = CountingSource(open_source(folder / name))
    with squish.open(source, registry=registry) as file:
        source.log.clear()
        options: dict[str, Any] = {"registry": registry, "requantize": True}
        squish.convert(file, tmp_path / "out", target, encode=encode, **options)
        assert ratio(source, file) == 1.0
    squish.convert(folder / name, tmp_path / "local", target, encode=encode, **options)
    assert (tmp_path / "out").read_bytes() == (tmp_path / "local").read_bytes()


def test_a_deep_check_reads_plain_values_and_hashes_them_in_one_pass(folder: Path) -> None:
    source = CountingSource(open_source(folder / "digests.zt"))
    with squish.open(source) as file:
        source.log.clear()
        report = squish.verify(file, deep=True)
        assert (report.clean, report.decoded, report.digests, report.unverified) == (True, 1, 1, 0)
        assert ratio(source, file) == 1.0


def test_a_repack_is_decided_on_the_first_panel_and_checked_on_the_others(folder: Path, tmp_path: Path) -> None:
    source = CountingSource(open_source(folder / "layer.gguf"))
    with squish.open(source) as file:
        source.log.clear()
        report = squish.convert(file, tmp_path / "mlx", "mlx")
        assert (report.steps[0].action, ratio(source, file)) == ("repack", 1.0)
        source.log.clear()
        assert squish.convert(file, tmp_path / "dry", "mlx", dry_run=True).steps == report.steps
        assert ratio(source, file) == 1.0
        source.log.clear()
        squish.convert(file, tmp_path / "planned", "mlx", plan=tmp_path / "plan.json")
        assert ratio(source, file) == 1.0  # all codes are read before, and kept


def test_a_dry_run_of_a_remote_file_says_what_it_leaves_unread(folder: Path, tmp_path: Path) -> None:
    source = CountingSource(open_source(folder / "layer.gguf"))
    source.is_remote = True
    with squish.open(source) as file:
        source.log.clear()
        report = squish.convert(file, tmp_path / "dry", "mlx", dry_run=True)
        assert report.steps[0].action == "repack"
        assert ratio(source, file) < 0.5
        assert any(f"would read {format_bytes(report.steps[0].stored)}" in note for note in report.notes)


@pytest.mark.parametrize("mmap", [True, False])
def test_codes_of_a_late_panel_that_do_not_fit_have_the_message_of_planning(
    folder: Path, tmp_path: Path, mmap: bool
) -> None:
    data = bytearray((folder / "layer.gguf").read_bytes())
    data[-18:-16] = np.float16(30000).tobytes()  # the last scale: its offset is beyond f16
    (tmp_path / "wide.gguf").write_bytes(data)
    with squish.open(tmp_path / "wide.gguf", mmap=mmap) as file:
        with pytest.raises(TensorError) as planned:
            squish.convert(file, tmp_path / "mlx", "mlx", dry_run=True)
        with pytest.raises(TensorError) as caught:
            squish.convert(file, tmp_path / "mlx", "mlx")
    assert (caught.value.code, caught.value.tensor) == ("refused", "layer.weight")
    assert str(caught.value) == str(planned.value)
    assert [path.name for path in tmp_path.iterdir()] == ["wide.gguf"]


def test_what_planning_cannot_keep_is_read_again_and_noted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("squish_core.checking.check.MEMORY_LIMIT", 1 << 20)
    source = CountingSource(open_source(folder / "layer.gguf"))
    with squish.open(source) as file:
        source.log.clear()
        report = squish.convert(file, tmp_path / "mlx", "mlx", plan=tmp_path / "plan.json")
        assert ratio(source, file) == 2.0
    (note,) = [note for note in report.notes if "again" in note]
    assert f"{report.steps[0].stored:,} bytes" in note


def test_planning_and_writing_read_through_one_source(folder: Path) -> None:
    source = CountingSource(open_source(folder / "digests.zt"))
    with squish.open(source) as file:
        planning = SourceReader(file)
        bytes(planning.file.source.view(100, 50))
        reader = VerifiedReader(planning.file)
        assert isinstance(reader.file.source, CachedSource)
        assert (reader.file.source.inner, reader.cache) == (source, planning.cache)
        source.log.clear()
        assert reader.file.source.read(110, 10) == open_source(folder / "digests.zt").read(110, 10)
        assert source.log == []
    with squish.open(folder / "digests.zt") as file:  # a mapping costs nothing to read again
        assert VerifiedReader(SourceReader(file).file).file is file


@pytest.mark.parametrize(("target", "encode"), [("safetensors", None), ("gguf", "q8_0")])
def test_damage_that_shows_on_the_way_leaves_no_target(
    folder: Path, tmp_path: Path, target: str, encode: str | None
) -> None:
    data = bytearray((folder / "digests.zt").read_bytes())
    with squish.open(bytes(data)) as file:
        segment = file.index.tensors["w"].encodings[0].parts["data"].segments[0]
    data[segment.offset + segment.length - 2] ^= 1
    (tmp_path / "damaged.zt").write_bytes(data)
    source = CountingSource(open_source(tmp_path / "damaged.zt"))
    with squish.open(source) as file, pytest.raises(FormatError) as caught:
        squish.convert(file, tmp_path / "out", target, encode=encode)
    error = caught.value
    assert (error.code, error.tensor, error.part, error.offset) == ("digest", "w", "data", segment.offset)
    stored = data[segment.offset : segment.offset + segment.length]
    assert error.found == hashlib.sha256(stored).hexdigest()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged.zt"]


def test_all_tensors_are_read_by_their_ranges_and_once(folder: Path) -> None:
    """No view of the whole file, where a view fetches it."""
    source = CountingSource(open_source(folder / "f16.safetensors"))
    with squish.open(source) as file:
        source.log.clear()
        arrays = file.numpy()
        assert source.log == [("f16.safetensors", source.size - 2 * np.prod(SHAPE), 2 * np.prod(SHAPE))]
        np.testing.assert_array_equal(arrays["w"], squish.open(folder / "f16.safetensors")["w"].numpy())


def test_the_head_of_a_gguf_is_read_in_few_requests(tmp_path: Path) -> None:
    """Vocabulary, types and merges of 16 MB: at most five requests beyond what detection reads, 1.3 times the head."""
    random = np.random.default_rng(0)
    words = [f"token-{number}-{'x' * int(length)}" for number, length in enumerate(random.integers(0, 40, 200_000))]
    merges = [f"{first} {second}" for first, second in zip(words[::2], words[1::2])]
    metadata = {
        "tokenizer.ggml.tokens": Typed("array:str", words),
        "tokenizer.ggml.token_type": Typed("array:i32", [1] * 200_000),
        "tokenizer.ggml.merges": Typed("array:str", merges + merges),
    }  # fmt: skip
    tensors = {f"blk.{number}.ffn_norm.weight": np.zeros(1024, "f4") for number in range(300)}
    squish.save(tmp_path / "model.gguf", tensors, metadata=metadata)
    source = CountingSource(open_source(tmp_path / "model.gguf"))
    with squish.open(source) as file:
        data = min(spec.encodings[0].parts["data"].segments[0].offset for spec in file.index.tensors.values())
    assert data > 12 << 20
    assert sum(length for _, _, length in source.log) <= 1.3 * data
    beyond = [(offset, length) for _, offset, length in source.log if offset + length > 64 << 10]
    assert len(beyond) <= 5, beyond
