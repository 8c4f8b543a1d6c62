"""`squish refs`: tensors as zarr arrays over byte ranges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from squish_cli.app import run
from squish_remote.references import manifest

import squish_core as squish
from squish_core.api import UsageError

ARRAYS = {"layers/0.weight": np.arange(12, dtype=np.float32).reshape(3, 4), "scalar": np.array(2.5)}


def test_a_dense_tensor_is_an_array_over_its_bytes(tmp_path: Path) -> None:
    squish.save(tmp_path / "m.safetensors", ARRAYS)
    assert run(["refs", str(tmp_path / "m.safetensors"), str(tmp_path / "refs.json")]) == 0
    document = json.loads((tmp_path / "refs.json").read_text())
    array = json.loads(document["refs"]["layers/0.weight/zarr.json"])
    assert (document["version"], array["data_type"], array["shape"]) == (1, "float32", [3, 4])
    url, offset, length = document["refs"]["layers/0.weight/c/0/0"]
    assert url == str(tmp_path / "m.safetensors")
    stored = Path(url).read_bytes()[offset : offset + length]
    np.testing.assert_array_equal(np.frombuffer(stored, np.float32).reshape(3, 4), ARRAYS["layers/0.weight"])
    assert document["refs"]["scalar/c"][2] == 8


def test_parts_of_a_quantized_tensor_are_bytes_with_their_encoding(tmp_path: Path) -> None:
    squish.save(tmp_path / "m.gguf", {"w": np.ones((2, 64), np.float32)}, encode="q8_0")
    with squish.open(tmp_path / "m.gguf") as file:
        references = manifest(file, "https://example.org/m.gguf")["refs"]
    array = json.loads(references["w/data/zarr.json"])
    assert (array["data_type"], array["shape"], references["w/data/c/0"][2]) == ("uint8", [136], 136)
    assert array["attributes"]["squish"]["codec"] == "ggml.q8_0"


def test_shards_lie_under_the_folders_address(tmp_path: Path) -> None:
    squish.save(tmp_path / "m", ARRAYS, format="safetensors:max_shard_size=40")
    with squish.open(tmp_path / "m") as file:
        references = manifest(file, "https://example.org/m/")["refs"]
    assert references["layers/0.weight/c/0/0"][0].startswith("https://example.org/m/model-0000")


@pytest.mark.parametrize(
    "address", ["https://user:password@example.org/m.safetensors", "https://example.org/m?signature=x"]
)
def test_an_address_with_secrets_is_refused(tmp_path: Path, address: str) -> None:
    squish.save(tmp_path / "m.safetensors", ARRAYS)
    with squish.open(tmp_path / "m.safetensors") as file, pytest.raises(UsageError) as caught:
        manifest(file, address)
    assert caught.value.code == "reference"
    assert "password@" not in str(caught.value)
    assert caught.value.hint


def test_a_compressed_part_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("squish_ztensor", reason="squish-ztensor, which writes compressed parts, is not installed")
    squish.save(tmp_path / "m.zt", ARRAYS, format="ztensor:encoding=zstd")
    with squish.open(tmp_path / "m.zt") as file, pytest.raises(UsageError) as caught:
        manifest(file, "m.zt")
    assert caught.value.code == "reference"


def read_by_zarr(document: Any, names: list[str]) -> dict[str, Any]:  # runs in the peer
    """Arrays of a manifest, by zarr over fsspec's references."""
    import fsspec
    import zarr

    store = zarr.storage.FsspecStore(fsspec.filesystem("reference", fo=document, asynchronous=True), path="")
    group = zarr.open_group(store, mode="r", zarr_format=3)
    return {name: group[name][...] for name in names}


@pytest.mark.peers
@pytest.mark.oracle
def test_zarr_reads_the_tensors_without_our_code(tmp_path: Path) -> None:
    import oracles

    values = np.random.default_rng(5).standard_normal((3, 5))
    arrays = {
        "f32": values.astype("f4"), "f16": values.astype("f2"), "f64": values, "i64": values.astype("i8"),
        "bool": values > 0, "layers/0.up": values.astype("f4"),
    }  # fmt: skip
    squish.save(tmp_path / "m.safetensors", {**arrays, "scalar": np.array(2.5)})
    with squish.open(tmp_path / "m.safetensors") as file:
        document = manifest(file, str(tmp_path / "m.safetensors"))
    peer = oracles.peer("zarr").run(read_by_zarr, document=document, names=[*arrays, "scalar"])
    for name, array in arrays.items():
        np.testing.assert_array_equal(peer[name], array)
    assert peer["scalar"] == 2.5


def test_copied_parts_of_a_virtual_file_are_ranges_of_its_source(tmp_path: Path) -> None:
    squish.save(tmp_path / "m.gguf", {"w": np.ones((2, 64), np.float32)}, encode="q8_0")
    with squish.open(tmp_path / "m.gguf") as file:
        stored = manifest(file, "https://example.org/m.gguf")
        with squish.open(squish.as_format(file, "ztensor:digest=none")) as virtual:
            document = manifest(virtual, "https://example.org/m.gguf")
    assert document["refs"]["w/data/c/0"] == stored["refs"]["w/data/c/0"]
    assert json.loads(document["refs"]["zarr.json"])["attributes"]["squish"]["files"][0]["name"] == "m.gguf"


def test_computed_parts_of_a_virtual_file_have_no_range(tmp_path: Path) -> None:
    squish.save(tmp_path / "m.safetensors", {"w": np.ones((2, 64), np.float32)})
    virtual = squish.as_format(squish.open(tmp_path / "m.safetensors"), "gguf", encode="q8_0")
    with squish.open(virtual) as file, pytest.raises(UsageError) as caught:
        manifest(file, "https://example.org/m.safetensors")
    assert (caught.value.code, caught.value.tensor) == ("reference", "w")
