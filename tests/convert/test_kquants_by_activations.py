"""K-quants by what activations make of errors: through `convert`, into the formats that hold the blocks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from squish_testing import expect_error

import squish_core as squish
from squish_core.api import CodecSpec, TensorError

for needed in ("squish_cpu", "squish_ggml", "squish_gguf", "squish_safetensors", "squish_ztensor"):
    pytest.importorskip(needed)

CHANCE = np.random.default_rng(3)
WEIGHT = CHANCE.standard_normal((64, 512), np.float32)
SEEN = CHANCE.random(512, np.float32) ** 4


def source(path: Path, name: str, values: np.ndarray) -> Path:
    """One f32 tensor in a safetensors file."""
    header = {"dtype": "F32", "shape": values.shape, "data_offsets": (0, values.nbytes)}
    head = json.dumps({name: header}).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + values.tobytes())
    return path


@pytest.mark.parametrize(
    ("name", "suffix"),
    [("q4_k", "gguf"), ("q4_k", "zt"), ("q2_k", "gguf"), ("q3_k", "gguf"), ("iq4_nl", "gguf"), ("iq4_xs", "gguf")],
)
def test_blocks_in_a_file_are_those_of_the_encoder(tmp_path: Path, name: str, suffix: str) -> None:
    model, out = source(tmp_path / "m.safetensors", "up.weight", WEIGHT), tmp_path / f"out.{suffix}"
    activations = source(tmp_path / "stats.safetensors", "up", SEEN)
    report = squish.convert(model, out, encode=f"ggml.{name}:search=activations", activations=activations)
    assert [step.action for step in report.steps] == ["encode"]
    encoder = squish.registry().encoder(CodecSpec(f"ggml.{name}"))
    expected = encoder.from_params({"search": "activations"}).encode(WEIGHT, activations=SEEN)["data"]
    with squish.open(out) as file:
        np.testing.assert_array_equal(np.asarray(file["up.weight"].parts()["data"].numpy()), expected)
        assert file["up.weight"].spec.encodings[0].codec.id == f"ggml.{name}"
    assert squish.verify(out, deep=True).clean
    squish.convert(out, tmp_path / "again.gguf")
    assert squish.diff(out, tmp_path / "again.gguf").same


def test_missing_statistics_are_requested(tmp_path: Path) -> None:
    model = source(tmp_path / "m.safetensors", "up.weight", WEIGHT)
    with expect_error(TensorError, code="encode", found="ggml.q4_k:search=activations", hint="activations=FILE"):
        squish.convert(model, tmp_path / "out.gguf", encode="q4_k:search=activations")


def imatrix(path: Path, sums: np.ndarray, counts: list[list[float]]) -> Path:
    """llama.cpp's activation statistics of up.weight."""
    squish.save(path, {"up.weight.in_sum2": sums, "up.weight.counts": np.array(counts, np.float32)})
    return path


@pytest.mark.parametrize("experts", [1, 2])
def test_llama_cpps_sums_are_read_as_roots_of_mean_squares(tmp_path: Path, experts: int) -> None:
    model = source(tmp_path / "m.safetensors", "up.weight", WEIGHT)
    sums = np.repeat((SEEN**2 * 16)[None], experts, axis=0)
    vectors = source(tmp_path / "stats.safetensors", "up", np.sqrt(SEEN**2))
    for number, stats in enumerate((vectors, imatrix(tmp_path / "imatrix.gguf", sums, [[16.0]] * experts))):
        squish.convert(model, tmp_path / f"{number}.gguf", encode="q4_k:search=activations", activations=stats)
    difference = squish.diff(tmp_path / "0.gguf", tmp_path / "1.gguf")
    assert {item.state for item in difference.tensors} == {"bytes"}


def test_counts_of_other_rows_than_the_sums_are_an_error(tmp_path: Path) -> None:
    model = source(tmp_path / "m.safetensors", "up.weight", WEIGHT)
    stats = imatrix(tmp_path / "imatrix.gguf", np.repeat(SEEN[None], 3, axis=0), [[16.0]] * 2)
    with expect_error(squish.TensorError, code="imatrix", found="shape [3, 512]"):
        squish.convert(model, tmp_path / "out.gguf", encode="q4_k:search=activations", activations=stats)


def test_a_dataset_that_is_no_text_is_not_recorded(tmp_path: Path) -> None:
    model = source(tmp_path / "m.safetensors", "up.weight", WEIGHT)
    squish.save(tmp_path / "stats.gguf", {"up": SEEN}, metadata={"imatrix.datasets": 5})
    encode = "q4_k:search=activations"
    squish.convert(model, tmp_path / "out.gguf", encode=encode, activations=tmp_path / "stats.gguf")
    with squish.open(tmp_path / "out.gguf") as file:
        assert "quantize.imatrix.dataset" not in file.metadata
        assert file.metadata["quantize.imatrix.file"] == "stats.gguf"


def test_sums_of_no_rows_are_an_error(tmp_path: Path) -> None:
    model = source(tmp_path / "m.safetensors", "up.weight", WEIGHT)
    stats = imatrix(tmp_path / "imatrix.gguf", SEEN[None], [[0.0]])
    with expect_error(squish.TensorError, code="imatrix", found="512 infinite of 512 values"):
        squish.convert(model, tmp_path / "out.gguf", encode="q4_k:search=activations", activations=stats)
    assert not (tmp_path / "out.gguf").exists()
