"""Other schemes by fsspec, behind the same checks; schemes and options that make no sense."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import squish_core as squish
from squish_core.errors import MissingPluginError, SquishError, UsageError

VALUES = np.arange(100_000, dtype="f4").reshape(100, 1000)


@pytest.fixture
def memory(tmp_path: Path) -> Any:
    """A file system in memory that has `m.safetensors` and a config."""
    files = pytest.importorskip("fsspec").filesystem("memory")
    squish.save(tmp_path / "m.safetensors", {"w": VALUES})
    files.pipe("/models/model.safetensors", (tmp_path / "m.safetensors").read_bytes())
    files.pipe("/models/config.json", b"{}")
    yield files
    files.rm("/models", recursive=True)


@pytest.mark.parametrize("address", ["memory://models/model.safetensors", "memory://models/"])
def test_a_file_and_a_folder_of_fsspec_open(memory: Any, address: str) -> None:
    with squish.open(address) as file:
        np.testing.assert_array_equal(file["w"].numpy(), VALUES)
        assert sorted(file.assets) == ["config.json"]


def test_a_subfolder_that_does_not_exist_has_no_files(memory: Any) -> None:
    memory.pipe("/models/chat_template.jinja", b"{{ x }}")
    assert "chat_template.jinja" in squish.open("memory://models/").assets
    memory.pipe("/models/additional_chat_templates/rag.jinja", b"r")
    with squish.open("memory://models/") as file:
        assert bytes(file.assets["additional_chat_templates/rag.jinja"].raw) == b"r"


def test_a_file_that_is_replaced_is_an_error(memory: Any) -> None:
    with squish.open("memory://models/model.safetensors") as file:
        memory.pipe("/models/model.safetensors", memory.cat("/models/model.safetensors"))
        with pytest.raises(SquishError) as caught:
            file["w"].numpy()
        assert caught.value.code == "changed"


@pytest.mark.parametrize(
    ("address", "code"),
    [("memory://models/no.gguf", "missing"), ("nosuch://x/y", "usage"), ("reference://x", "usage")],
)
def test_what_fsspec_cannot_open_is_a_typed_error(memory: Any, address: str, code: str) -> None:
    with pytest.raises(SquishError) as caught:
        squish.open(address)
    assert caught.value.code == code


def test_without_fsspec_or_the_hub_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, address, extra in (
        ("fsspec.core", "memory://m/x.gguf", "[fsspec]"),
        ("huggingface_hub", "hf://acme/tiny", "[hf]"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingPluginError) as caught:
            squish.open(address)
        assert caught.value.code == "not-installed"
        assert extra in (caught.value.hint or "")


@pytest.mark.parametrize("address", ["http://", "https://user@/x", "s3://", "http://host:port/x", "hf://acme"])
def test_an_address_that_is_none_is_a_usage_error(address: str) -> None:
    with pytest.raises((UsageError, MissingPluginError)):
        squish.open(address)


@pytest.mark.parametrize("address", ["gs://bucket/model.gguf", "az://container/model.gguf"])
def test_other_clouds_parse_addresses_and_fail_typed(
    address: str, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading from them is not tested here: there is no such store."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5c2VjcmV0")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"http://127.0.0.1:{closed_port}")
    monkeypatch.setenv("AZURE_ALLOW_HTTP", "true")
    monkeypatch.setenv("GOOGLE_BASE_URL", f"http://127.0.0.1:{closed_port}")
    with pytest.raises(SquishError) as caught:
        squish.open(address, source_options={"deadline": 0.5})
    assert caught.value.code in ("unreachable", "denied", "rejected")
    assert caught.value.file == address
    assert "a2V5c2VjcmV0" not in str(caught.value)
