"""Folders that nothing lists: shards and assets are asked for by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from squish_safetensors.folder import MODEL_ASSETS

import squish_core as squish
from squish_core.errors import FormatError, MissingFileError

REQUESTED = {"model.safetensors.index.json", *MODEL_ASSETS}
CONFIG = json.dumps({"model_type": "llama", "hidden_size": 8}).encode()


@pytest.fixture
def shards(server: Any, tmp_path: Path) -> dict[str, np.ndarray]:
    """A model in two shards with its index and config, in the server's folder `llama`."""
    arrays = {f"w{number}": np.full((4, 4), number, "f4") for number in range(4)}
    places: dict[str, str] = {}
    for number in range(2):
        name = f"model-0000{number + 1}-of-00002.safetensors"
        part = {key: arrays[key] for key in list(arrays)[2 * number : 2 * number + 2]}
        squish.save(tmp_path / name, part)
        server.files[f"llama/{name}"] = (tmp_path / name).read_bytes()
        places |= dict.fromkeys(part, name)
    server.files["llama/model.safetensors.index.json"] = json.dumps({"weight_map": places}).encode()
    server.files["llama/config.json"] = CONFIG
    return arrays


@pytest.mark.parametrize("address", ["llama/model.safetensors.index.json", "llama/"])
def test_a_sharded_model_opens_without_a_listing(shards: Any, server: Any, address: str) -> None:
    with squish.open(server.url(address)) as file:
        assert sorted(file) == sorted(shards)
        assert bytes(file.assets["config.json"].raw) == CONFIG
        for name, values in file.numpy().items():
            np.testing.assert_array_equal(values, shards[name])


def test_the_message_about_a_missing_shard_names_it(shards: Any, server: Any) -> None:
    del server.files["llama/model-00002-of-00002.safetensors"]
    with pytest.raises(FormatError) as caught:
        squish.open(server.url("llama/model.safetensors.index.json"))
    assert (caught.value.code, caught.value.tensor) == ("shard-missing", "w2")
    assert "model-00002-of-00002.safetensors" in caught.value.message


@pytest.mark.parametrize("name", ["../x.safetensors", "a/b.safetensors", "http://h/x", "%2e%2e/x", "a\0b"])
def test_an_index_that_names_no_plain_file_makes_no_request(shards: Any, server: Any, name: str) -> None:
    server.files["llama/model.safetensors.index.json"] = json.dumps({"weight_map": {"w0": name}}).encode()
    with pytest.raises(FormatError) as caught:
        squish.open(server.url("llama/model.safetensors.index.json"))
    assert (caught.value.code, caught.value.tensor) == ("path", "w0")
    assert not [request.path for request in server.requests if request.path.rpartition("/")[2] not in REQUESTED]


def test_a_folder_or_file_that_is_not_there_says_so(server: Any) -> None:
    with pytest.raises(MissingFileError) as caught:
        squish.open(server.url("llama"))
    assert caught.value.code == "missing"
    assert "ends in a slash" in (caught.value.hint or "")
    with pytest.raises(squish.SquishError) as unknown:
        squish.open(server.url("llama/"))
    assert unknown.value.code == "unknown"


def test_the_shards_of_a_uqff_model_are_found_by_their_numbers(server: Any, tmp_path: Path) -> None:
    squish.save(tmp_path / "in.safetensors", {"model.layers.0.mlp.up_proj.weight": np.ones((64, 64), "f4")})
    squish.convert(tmp_path / "in.safetensors", tmp_path / "out", "uqff", encode="q8_0")
    for path in (tmp_path / "out").iterdir():
        server.files[f"uqff/{path.name}"] = path.read_bytes()
    name = next(path.name for path in (tmp_path / "out").iterdir() if path.suffix == ".uqff")
    with squish.open(tmp_path / "out" / name) as local, squish.open(server.url(f"uqff/{name}")) as remote:
        assert list(remote) == list(local)
        assert sorted(remote.assets) == sorted(local.assets)
        assert [item.code for item in remote.problems if item.code != "unpinned"] == [i.code for i in local.problems]


def test_a_file_compressed_whole_without_a_table_is_not_downloaded(server: Any, tmp_path: Path) -> None:
    import zstandard

    squish.save(tmp_path / "m.safetensors", {"w": np.random.default_rng(0).normal(size=(256, 256)).astype("f4")})
    data = (tmp_path / "m.safetensors").read_bytes()
    server.files["m.safetensors.zst"] = zstandard.ZstdCompressor().compress(data)
    squish.convert(tmp_path / "m.safetensors", tmp_path / "table.safetensors.zst")
    server.files["table.safetensors.zst"] = (tmp_path / "table.safetensors.zst").read_bytes()
    with pytest.raises(FormatError) as caught:
        squish.open(server.url("m.safetensors.zst"))
    assert caught.value.code == "frames"
    assert str(len(server.files["m.safetensors.zst"])) in str(caught.value.found)
    assert server.sent < 70_000
    with squish.open(server.url("table.safetensors.zst")) as file:
        assert file["w"].shape == (256, 256)
