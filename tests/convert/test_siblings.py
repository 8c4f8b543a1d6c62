"""A file with others beside it appears as a whole, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from squish_convert.destination import atomic_siblings

from squish_core.errors import WriteError


def write(target: Path, *, weights: bytes = b"weights", config: bytes = b"{}") -> tuple[Path, ...]:
    with atomic_siblings(target) as sink:
        with sink.member(f"{sink.name}.data") as data:
            data.write(weights)
        with sink.member("config.json") as file:
            file.write(config)
        sink.write(b"model")
    return sink.siblings


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_all_files_appear_beside_the_target(tmp_path):
    siblings = write(tmp_path / "m.onnx")
    assert contents(tmp_path) == {"m.onnx": b"model", "m.onnx.data": b"weights", "config.json": b"{}"}
    assert sorted(path.name for path in siblings) == ["config.json", "m.onnx.data"]


def test_nothing_appears_if_writing_fails(tmp_path):
    with pytest.raises(TypeError):
        write(tmp_path / "m.onnx", config=None)  # type: ignore[arg-type]
    assert contents(tmp_path) == {}


def test_the_files_of_the_target_are_replaced(tmp_path):
    write(tmp_path / "m.onnx", weights=b"old")
    write(tmp_path / "m.onnx", weights=b"new")
    assert contents(tmp_path)["m.onnx.data"] == b"new"


def test_another_file_that_differs_is_kept_and_nothing_is_written(tmp_path):
    (tmp_path / "config.json").write_bytes(b"of another model")
    with pytest.raises(WriteError) as caught:
        write(tmp_path / "m.onnx")
    assert caught.value.code == "exists"
    assert contents(tmp_path) == {"config.json": b"of another model"}


def test_a_file_that_differs_is_found_when_it_is_written(tmp_path):
    (tmp_path / "config.json").write_bytes(b"of another model")
    reached = []

    def write_config_first() -> None:
        with atomic_siblings(tmp_path / "m.onnx") as sink:
            with sink.member("config.json") as file:
                file.write(b"{}")
            reached.append("weights")

    with pytest.raises(WriteError) as caught:
        write_config_first()
    assert (caught.value.code, reached) == ("exists", [])
    assert contents(tmp_path) == {"config.json": b"of another model"}
