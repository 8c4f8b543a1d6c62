"""`general.file_type` describes the tensors in the file, not those of its source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from squish_gguf.file_type import KEY, VERSION_KEY, most_common_type, with_file_type
from squish_testing.sources import memory_file

import squish_core as squish
from squish_core.api import DENSE, CodecSpec, Encoding, Part, TensorSpec, Typed


def model(path: Path, stated: int | None) -> Path:
    """A GGUF with two matrices, five vectors and a file type."""
    arrays: dict[str, Any] = {f"blk.{n}.ffn_up.weight": np.ones((4, 64), np.float16) for n in range(2)}
    arrays |= {f"blk.{n}.attn_norm.weight": np.ones(64, np.float32) for n in range(5)}
    tensors = {}
    for name, array in arrays.items():
        kind = squish.api.dtypes.from_numpy(array.dtype)
        tensors[name] = (TensorSpec(name=name, shape=array.shape, dtype=kind), DENSE, {"data": array})
    file, _ = memory_file(squish.registry(), tensors)
    if stated is not None:
        file.index.meta[KEY] = Typed("u32", stated)
    file.index.meta["general.name"] = Typed("str", "m")
    squish.convert(file, path, "gguf")
    return path


@pytest.mark.parametrize(
    ("encode", "number", "version"),
    [("q8_0", 7, 2), ("q4_0", 2, 2), ("f32", 0, None), ("bf16", 32, None), ("mxfp4", 38, None), (None, 1, None)],
)
def test_the_most_common_matrix_type_is_written(
    encode: str | None, number: int, version: int | None, tmp_path: Path
) -> None:
    source = model(tmp_path / "m.gguf", 1)
    done = squish.convert(source, tmp_path / "o.gguf", encode=None if encode is None else {"*ffn*": encode})
    assert not done.dropped
    with squish.open(tmp_path / "o.gguf") as file:
        stated = {} if version is None else {VERSION_KEY: Typed("u32", version)}
        assert file.index.meta == {KEY: Typed("u32", number), "general.name": Typed("str", "m"), **stated}
        assert list(file.index.meta) == [KEY, "general.name", *stated]


def test_a_file_without_the_key_gets_none(tmp_path: Path) -> None:
    squish.convert(model(tmp_path / "m.gguf", None), tmp_path / "o.gguf", encode={"*ffn*": "q8_0"})
    with squish.open(tmp_path / "o.gguf") as file:
        assert KEY not in file.meta


def test_a_type_without_a_number_drops_and_reports_the_key(tmp_path: Path) -> None:
    done = squish.convert(model(tmp_path / "m.gguf", 1), tmp_path / "o.gguf", encode={"*ffn*": "f64"})
    assert [(item.kind, item.name) for item in done.dropped] == [("metadata", KEY)]
    with squish.open(tmp_path / "o.gguf") as file:
        assert list(file.meta) == ["general.name"]


def blocks(name: str, shape: tuple[int, ...] = (2, 256)) -> TensorSpec:
    codec = DENSE if name == "f32" else CodecSpec(f"ggml.{name}")
    part = Part(dtype="f32" if name == "f32" else "u8", shape=shape)
    return TensorSpec(name=name, shape=shape, dtype="f32", encodings=(Encoding(codec=codec, parts={"data": part}),))


@pytest.mark.parametrize(
    ("stated", "types", "number"),
    [
        (14, ["q4_k", "q4_k", "q6_k"], 14),  # Q4_K_S is as correct as Q4_K_M
        (15, ["q4_k", "q4_k", "q6_k"], 15),
        (13, ["q5_k", "q5_k", "q3_k"], 13),
        (7, ["q4_k", "q4_k", "q6_k"], 15),
        (7, ["q3_k"], 12),
        (7, ["iq3_s"], 26),
        (999, ["q6_k"], 18),
        ("Q8_0", ["q8_0"], 7),
    ],
)
def test_a_correct_mix_is_not_changed(stated: Any, types: list[str], number: int) -> None:
    meta = with_file_type({KEY: stated}, [blocks(name) for name in types])
    assert getattr(meta[KEY], "value", meta[KEY]) == number


def test_vectors_count_without_matrices() -> None:
    assert most_common_type([blocks("f32", (3,))]) == "F32"
    assert most_common_type([blocks("f32", (3,)), blocks("f32", (4,)), blocks("q8_0")]) == "Q8_0"


def test_a_vocabulary_without_tensors_keeps_its_file_type() -> None:
    assert with_file_type({KEY: 1}, []) == {KEY: 1}


@pytest.mark.parametrize(
    ("encode", "architecture", "version"),
    [("q4_k_m", "llama", 2), ("q8_0", "llama", 2), ("f16", "llama", None), (None, "llama", None), ("q8_0", None, None)],
)
def test_a_preset_of_a_gguf_of_floats_states_the_quantization_version(
    encode: str | None, architecture: str | None, version: int | None, tmp_path: Path
) -> None:
    if encode == "q4_k_m":
        pytest.importorskip("squish_cpu", reason="squish-cpu encodes the K types")
    arrays = {"token_embd.weight": np.ones((4, 256), np.float32), "blk.0.ffn_up.weight": np.ones((4, 256), np.float32)}
    stated = {} if architecture is None else {"general.architecture": Typed("str", architecture)}
    squish.save(tmp_path / "m.gguf", arrays, metadata={**stated, "llama.block_count": Typed("u32", 1)})
    squish.convert(tmp_path / "m.gguf", tmp_path / "o.gguf", encode=encode, rename="keep")
    with squish.open(tmp_path / "o.gguf") as file:
        assert file.meta.get("general.quantization_version") == version
    assert squish.verify(tmp_path / "o.gguf").ok


def test_adapter_alpha_is_kept_or_reported(tmp_path: Path) -> None:
    alpha = "adapter.lora.alpha"
    spec = TensorSpec(name="blk.0.ffn_up.weight.lora_a", shape=(4, 8), dtype="f32")
    file, _ = memory_file(squish.registry(), {spec.name: (spec, DENSE, {"data": np.ones((4, 8), np.float32)})})
    file.index.meta[alpha] = Typed("f32", 16.0)
    squish.convert(file, tmp_path / "a.gguf", "gguf")
    with squish.open(tmp_path / "a.gguf") as adapter:
        assert adapter.index.meta == {alpha: Typed("f32", 16.0)}
    done = squish.convert(tmp_path / "a.gguf", tmp_path / "a.safetensors")
    assert [(item.kind, item.name) for item in done.dropped] == [("metadata", alpha)]
