"""The files of a checkpoint whose names stay: inside the GGUF, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zstandard
from squish_convert.arrays import in_memory
from squish_gguf import kept_files

import squish_core as squish
from squish_core.api import Part, Typed

FILES = {
    "config.json": b'{"model_type": "acme"}\r\n',
    "tokenizer.json": b'{ "model":  ["%s"]}' % (9000 * "\u4e00 ").encode(),
    "additional_chat_templates/rag.jinja": b"{{ x }}",
    "empty.txt": b"",
}
ARRAYS = {"layers.0.w": np.arange(64, dtype=np.float32).reshape(2, 32)}
MODEL = {"general.architecture": Typed("str", "acme")}


def written(path: Path, meta: Mapping[str, Any] = {}, to: str = "gguf", files: dict[str, bytes] = FILES) -> Any:
    """No map knows the family: the names stay."""
    with in_memory(ARRAYS, dict(meta), files) as file:
        return squish.convert(file, path, to, rename="keep")


def dropped(report: Any) -> set[str]:
    return {entry.name for entry in report.dropped if entry.kind == "asset"}


def test_a_checkpoint_of_an_unknown_family_comes_back_with_all_its_files(tmp_path: Path) -> None:
    report = written(tmp_path / "m.gguf")
    assert not report.dropped
    assert report.size == (tmp_path / "m.gguf").stat().st_size
    with squish.open(tmp_path / "m.gguf") as file:
        assert {name: bytes(buffer.raw) for name, buffer in file.assets.items()} == FILES
        assert not file.meta
    files = {name: data for name, data in FILES.items() if name in ("config.json", "tokenizer.json")}
    squish.convert(tmp_path / "m.gguf", tmp_path / "out", "safetensors:max_shard_size=1GB")
    for name, data in files.items():
        assert (tmp_path / "out" / name).read_bytes() == data


def test_a_copy_has_the_same_bytes(tmp_path: Path) -> None:
    written(tmp_path / "m.gguf")
    squish.convert(tmp_path / "m.gguf", tmp_path / "copy.gguf")
    assert (tmp_path / "copy.gguf").read_bytes() == (tmp_path / "m.gguf").read_bytes()


def test_the_files_are_arrays_of_bytes_that_zstd_unpacks(tmp_path: Path) -> None:
    """As other software sees them."""
    written(tmp_path / "m.gguf", files={"config.json": FILES["config.json"]})
    raw = (tmp_path / "m.gguf").read_bytes()
    at = raw.index(b"squish.hf.config.json") + len("squish.hf.config.json")
    kind, element, count = (
        int.from_bytes(raw[at + start : at + stop], "little") for start, stop in ((0, 4), (4, 8), (8, 16))
    )
    assert (kind, element) == (9, 0)
    assert zstandard.decompress(raw[at + 16 : at + 16 + count]) == FILES["config.json"]


@pytest.mark.parametrize(("meta", "to"), [(MODEL, "gguf"), ({}, "gguf:keep=no")])
def test_files_are_left_out_on_request_and_of_a_model_that_keys_describe(
    meta: Mapping[str, Any], to: str, tmp_path: Path
) -> None:
    assert dropped(written(tmp_path / "m.gguf", meta, to)) == FILES.keys()
    with squish.open(tmp_path / "m.gguf") as file:
        assert not file.assets


def test_a_file_that_no_plan_can_inspect_is_left_out() -> None:
    assets = {"small.json": Part(dtype="u8", shape=(2,), data=b"{}"), "large.json": Part(dtype="u8", shape=(1 << 25,))}
    plan = squish.registry().container("gguf").plan_file([], {}, assets, {})
    assert list(map(str, plan.dropped)) == ["asset large.json (more than 16 MiB)"]


def test_files_of_a_model_stay_keys(tmp_path: Path) -> None:
    """A map of the model's family reads them."""
    written(tmp_path / "m.gguf", {**MODEL, **kept_files.pack_files(FILES)}, files={})
    with squish.open(tmp_path / "m.gguf") as file:
        assert not file.assets
        assert kept_files.unpack_files(file.index.meta) == FILES


@pytest.mark.parametrize(
    "damaged",
    [lambda raw: b"", lambda raw: raw[:-9], lambda raw: b"x" + raw, lambda raw: zstandard.compress(bytes(1 << 29))],
)
def test_a_damaged_file_is_named_when_it_is_read(
    damaged: Callable[[bytes], bytes], tmp_path: Path, raw: SimpleNamespace
) -> None:
    packed = damaged(zstandard.compress(b"{}" * 40))
    (tmp_path / "m.gguf").write_bytes(raw.file((raw.array("squish.hf.a.json", 0, len(packed), packed),)))
    with squish.open(tmp_path / "m.gguf") as file:
        assert list(file.assets) == ["a.json"]
        with pytest.raises(squish.FormatError) as caught:
            bytes(file.assets["a.json"].raw)
    assert (caught.value.code, caught.value.part) == ("kept", "squish.hf.a.json")


def test_kept_files_have_one_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_files, "MOST", 1000)
    assert dict(kept_files.unpack_files(kept_files.pack_files({"a": bytes(600), "b": bytes(400)})))
    with pytest.raises(squish.FormatError) as caught:
        dict(kept_files.unpack_files(kept_files.pack_files({"a": bytes(600), "b": bytes(401)})))
    assert (caught.value.code, caught.value.part) == ("kept", "squish.hf.b")


def test_another_value_under_such_a_key_is_metadata(tmp_path: Path, raw: SimpleNamespace) -> None:
    (tmp_path / "m.gguf").write_bytes(raw.file((raw.text("squish.hf.a.json", "text"),)))
    with squish.open(tmp_path / "m.gguf") as file:
        assert not file.assets
        assert file.meta["squish.hf.a.json"] == "text"
