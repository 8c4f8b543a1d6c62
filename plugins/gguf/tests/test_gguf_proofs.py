"""`prove` names the encoders of llama-quantize: of files whose blocks have the digests of its own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import preset_models
import pytest
from squish_convert.api import prove

import squish_core as squish

DATA = Path(__file__).parent / "data"
MODEL = preset_models.WEIGHED[0]
DIGESTS = json.loads((DATA / "preset_digests.json").read_text())[MODEL]


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model in f16, and activation statistics."""
    folder, count = tmp_path_factory.mktemp("proofs"), np.float32(8)
    preset_models.write_f16(folder / "f16.gguf", MODEL)
    sums = {f"{name}.in_sum2": means * count for name, means in preset_models.statistics(MODEL).items()}
    counts = {f"{name.removesuffix('in_sum2')}counts": np.full((len(each), 1), count) for name, each in sums.items()}
    squish.save(folder / "imatrix.gguf", {**sums, **counts})
    return folder


@pytest.mark.parametrize("label", [label for label in DIGESTS if label.partition(" ")[0] in ("q4_0", "q4_k_m", "q8_0")])
def test_blocks_of_llama_quantize_are_exact(label: str, place: Path) -> None:
    preset, _, weighed = label.partition(" ")
    has_statistics = bool(weighed) and preset not in ("q8_0",)
    statistics = place / "imatrix.gguf" if has_statistics else None
    target = place / f"{preset}{len(label)}.gguf"
    squish.convert(place / "f16.gguf", target, encode=f"llama-quantize:type={preset}", activations=statistics)
    assert preset_models.digest(target) == DIGESTS[label]
    proof = prove(target, place / "f16.gguf", activations=statistics)
    assert proof.proven, str(proof)
    searches = {tensor.encoder for tensor in proof.tensors if "search=activations" in tensor.encoder}
    assert bool(searches) is has_statistics


def test_other_base_is_near_or_differs(place: Path, tmp_path: Path) -> None:
    squish.convert(place / "f16.gguf", tmp_path / "q.gguf", encode="q4_k")
    with squish.open(place / "f16.gguf") as file:
        arrays = {name: array.copy() for name, array in file.numpy().items()}
    name = next(name for name, array in arrays.items() if array.ndim == 2)
    arrays[name] = arrays[name][::-1]
    near = next(each for each, array in arrays.items() if array.ndim == 2 and each != name)
    arrays[near] = arrays[near] * np.float16(1.0005)
    squish.save(tmp_path / "base.gguf", arrays)
    states = {tensor.name: tensor.state for tensor in prove(tmp_path / "q.gguf", tmp_path / "base.gguf").tensors}
    assert states.pop(name) == "differs"
    assert states.pop(near) in ("near", "exact")
    assert set(states.values()) == {"exact"}


def test_files_without_a_common_tensor_are_refused(place: Path, tmp_path: Path) -> None:
    squish.save(tmp_path / "other.gguf", {"other": np.zeros(3, "f4")})
    with pytest.raises(squish.UsageError) as caught:
        prove(place / "f16.gguf", tmp_path / "other.gguf")
    assert caught.value.code == "usage"
