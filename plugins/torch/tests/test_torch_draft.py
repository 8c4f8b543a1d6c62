"""The draft head of a SQUIZD file as modules."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import squish_torch
import torch

import squish_core as squish

HIDDEN, VOCABULARY, DRAFT = 64, 512, 128


def matrix(rows: int, columns: int) -> np.ndarray:
    """Seeded values."""
    return np.random.default_rng(rows + columns).standard_normal((rows, columns)).astype(np.float32)


def eagle_head() -> dict[str, np.ndarray]:
    """Some of the tensors of an EAGLE-3 head; its attention reads embeddings beside hidden states."""
    return {
        "fc.weight": matrix(HIDDEN, 3 * HIDDEN),
        "midlayer.self_attn.q_proj.weight": matrix(HIDDEN, 2 * HIDDEN),
        "midlayer.self_attn.k_proj.weight": matrix(HIDDEN // 2, 2 * HIDDEN),
        "midlayer.hidden_norm.weight": np.linspace(0.5, 1.5, HIDDEN, dtype=np.float32),
        "norm.weight": np.ones(HIDDEN, np.float32),
        "lm_head.weight": matrix(DRAFT, HIDDEN),
        "d2t": np.arange(DRAFT),
        "t2d": np.arange(VOCABULARY) < DRAFT,
    }


@pytest.fixture(params=["", "int4"], ids=["dense", "int4"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A model with a draft head, as SQUIZD stores it."""
    tensors = eagle_head()
    if request.param:  # SQUIZD itself has no integers
        tensors |= {name: tensors[name].astype(np.float32) for name in ("d2t", "t2d")}
    squish.save(tmp_path / "head.safetensors", tensors)
    head = tmp_path / "head.safetensors"
    if request.param:
        squish.convert(head, tmp_path / "head.squizd", encode=["keep", "*.weight=int4", "*norm.weight=keep"])
        head = tmp_path / "head.squizd"
    squish.save(tmp_path / "model.safetensors", {"model.layers.0.mlp.up_proj.weight": matrix(64, 128)})
    squish.convert(tmp_path / "model.safetensors", tmp_path / "out.squizd", f"squizd:draft={head}")
    return tmp_path / "out.squizd"


def test_a_draft_head_has_a_module_for_each_matrix(path: Path) -> None:
    head = squish_torch.load_draft(path)
    with squish.open(path) as file:
        draft = file.draft()
        values = {name: torch.from_numpy(np.array(draft[name].numpy())) for name in draft}
    attention = head.midlayer.self_attn
    for name, module in (("fc", head.fc), ("midlayer.self_attn.q_proj", attention.q_proj), ("lm_head", head.lm_head)):
        x = torch.ones(2, module.in_features)
        assert torch.allclose(module(x), x @ values[f"{name}.weight"].T, atol=1e-3), name
    assert torch.equal(head.midlayer.hidden_norm.weight, values["midlayer.hidden_norm.weight"])
    assert torch.equal(head.d2t, torch.arange(DRAFT))
    assert head.t2d.dtype == torch.bool
    assert int(head.t2d.sum()) == DRAFT
    again = squish_torch.load_draft(path, dtype=torch.bfloat16)
    assert again.fc(torch.ones(1, 3 * HIDDEN, dtype=torch.bfloat16)).dtype == torch.bfloat16
    head.load_state_dict(head.state_dict(), strict=True)


def test_int4_matrices_stay_compressed(path: Path) -> None:
    head = squish_torch.load_draft(path)
    with squish.open(path) as file:
        is_compressed = file.draft()["fc.weight"].codec != "dense"
    assert isinstance(head.fc, squish_torch.CompressedLinear) == is_compressed


def test_a_file_without_a_draft_head_is_an_error(tmp_path: Path) -> None:
    squish.save(tmp_path / "m.gguf", {"w": matrix(4, 32)})
    with pytest.raises(squish.FormatError) as caught:
        squish_torch.load_draft(tmp_path / "m.gguf")
    assert caught.value.code == "draft"
