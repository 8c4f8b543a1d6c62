"""Targets at a URL: written whole or not at all, and never over something that is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import acme_source
import numpy as np
import pytest
import toys
from squish_convert.destination import remote_sink

import squish_core as squish
from squish_core.api import RemoteTarget, SourceInfo
from squish_core.errors import FormatError, UsageError, WriteError
from squish_core.io.urls import target_exists

VALUES = {"w": np.arange(64, dtype=np.float32).reshape(2, 32)}


class ShelfTarget(RemoteTarget):
    """Files in a table; `fails_at` names one that cannot be written."""

    fails_at = ""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.files = acme_source.SHELVES.setdefault(url, {})

    def existing(self) -> tuple[str, ...]:
        return tuple(self.files)

    @contextmanager
    def new_file(self, path: str, *, size: int | None, overwrite: bool) -> Iterator[Callable[[memoryview], object]]:
        if path in self.files and not overwrite:
            raise target_exists(self.name)
        data = bytearray()
        yield data.extend
        if path and path == self.fails_at:
            raise WriteError("no room", file=path, code="space")
        self.files[path] = bytes(data)

    def remove(self, path: str) -> None:
        del self.files[path]


class WritableShelves(acme_source.Shelves):
    def create(self, url: str, options: Mapping[str, Any]) -> RemoteTarget:
        return ShelfTarget(url)


@pytest.fixture
def shelf() -> Iterator[dict[str, dict[str, bytes]]]:
    yield acme_source.SHELVES
    acme_source.SHELVES.clear()


def _registry(factory: str = f"{__name__}:WritableShelves") -> Any:
    info = SourceInfo(id="acme", title="Acme's shelves", factory=factory, schemes=("acme",))
    return toys.registry(toys.plugin(squish_sources=[info]))


def test_a_file_at_a_url_has_the_bytes_of_a_local_one(shelf: dict[str, dict[str, bytes]], tmp_path: Path) -> None:
    registry = _registry()
    squish.save(tmp_path / "m.box", VALUES, registry=registry)
    report = squish.convert(tmp_path / "m.box", "acme://one/m.box", registry=registry)
    assert shelf["acme://one/m.box"] == {"": (tmp_path / "m.box").read_bytes()}
    assert (report.target, report.size) == ("acme://one/m.box", len(shelf["acme://one/m.box"][""]))


def test_what_is_at_a_url_is_replaced_only_on_request(shelf: dict[str, dict[str, bytes]]) -> None:
    shelf["acme://one/m.box"] = {"": b"old"}
    with pytest.raises(WriteError) as caught:
        squish.convert(VALUES, "acme://one/m.box", registry=_registry())
    assert (caught.value.code, shelf["acme://one/m.box"]) == ("exists", {"": b"old"})
    squish.convert(VALUES, "acme://one/m.box", overwrite=True, registry=_registry())
    assert shelf["acme://one/m.box"][""] != b"old"


def test_a_dry_run_writes_nothing_at_a_url(shelf: dict[str, dict[str, bytes]]) -> None:
    assert squish.convert(VALUES, "acme://one/m.box", dry_run=True, registry=_registry()).target == "acme://one/m.box"
    assert not shelf["acme://one/m.box"]


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_set_of_shards_is_refused_at_a_url(shelf: dict[str, dict[str, bytes]], dry_run: bool) -> None:
    info = SourceInfo(id="acme", title="Shelves", factory=f"{__name__}:WritableShelves", schemes=("acme",))
    registry = squish.Registry(extra=[toys.plugin(squish_sources=[info])])
    with pytest.raises(UsageError) as caught:
        squish.convert(VALUES, "acme://one/m.gguf", "gguf:max_shard_tensors=1", dry_run=dry_run, registry=registry)
    assert (caught.value.code, shelf["acme://one/m.gguf"]) == ("folder", {})


def test_a_source_that_only_reads_says_so() -> None:
    with pytest.raises(UsageError) as caught:
        squish.convert(VALUES, "acme://one/m.box", registry=_registry("acme_source:Shelves"))
    assert caught.value.code == "read-only"


def test_the_source_stays_where_the_target_is_remote(shelf: dict[str, dict[str, bytes]], tmp_path: Path) -> None:
    squish.save(tmp_path / "m.box", VALUES, registry=_registry())
    with pytest.raises(UsageError) as caught:
        squish.convert(tmp_path / "m.box", "acme://one/m.box", delete_source=True, registry=_registry())
    assert (caught.value.code, (tmp_path / "m.box").exists()) == ("delete", True)


def test_the_json_files_of_a_folder_appear_last() -> None:
    target = ShelfTarget("acme://one/folder")
    with remote_sink(target, is_folder=True) as sink:
        for name in ("model.index.json", "model-1.bin", "model-2.bin"):
            with sink.member(name) as member:
                member.write(name.encode())
    assert list(target.files) == ["model-1.bin", "model-2.bin", "model.index.json"]
    assert target.written == {name: len(name) for name in target.files}
    acme_source.SHELVES.clear()


def test_a_folder_that_fails_leaves_what_was_there_before() -> None:
    target = ShelfTarget("acme://one/folder")
    target.files |= {"model-1.bin": b"old", "other.bin": b"other"}
    target.fails_at = "model-3.bin"
    with pytest.raises(WriteError):
        _write_folder(target)
    assert target.files == {"model-1.bin": b"new", "other.bin": b"other"}
    acme_source.SHELVES.clear()


def _write_folder(target: ShelfTarget) -> None:
    with remote_sink(target, is_folder=True, overwrite=True) as sink:
        for name in ("model-1.bin", "model-2.bin", "model-3.bin"):
            with sink.member(name) as member:
                member.write(b"new")


def _revised(target: ShelfTarget, *, revises: bool) -> bytes:
    with remote_sink(target, revises=revises) as sink:
        sink.write(b"head....")
        sink.patch(0, b"HEAD")
    return target.files[""]


def test_a_format_that_revises_its_file_goes_through_a_temporary(shelf: dict[str, dict[str, bytes]]) -> None:
    assert _revised(ShelfTarget("acme://one/file"), revises=True) == b"HEAD...."
    with pytest.raises(FormatError) as caught:
        _revised(ShelfTarget("acme://one/other"), revises=False)
    assert (caught.value.code, shelf["acme://one/other"]) == ("forward", {})
