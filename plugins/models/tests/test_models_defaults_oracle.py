"""A GGUF without some keys, and with those of 2023: its folder computes in Transformers what llama.cpp computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from oracles import engines, families

import squish_core as squish
from squish_core.model import Typed

pytestmark = pytest.mark.oracle
BOUNDS = {"gemma2": 0.02, "gemma3_text": 0.02}
"""llama.cpp reads GELU from a table of f16."""

CASES: dict[str, tuple[str, dict[str, Typed | None]]] = {
    "a scale of 2023": ("mistral", {"rope.scale_linear": Typed("f32", 4.0)}),
    "a factor without a type": ("mistral", {"rope.scaling.factor": Typed("f32", 4.0)}),
    "a factor and no scaling": (
        "mistral", {"rope.scaling.factor": Typed("f32", 4.0), "rope.scaling.type": Typed("str", "none")},
    ),
    "yarn without a factor": ("llama-yarn", {"rope.scaling.factor": None}),
    "yarn without its length": ("llama-yarn", {"rope.scaling.original_context_length": None}),
    "yarn without a type": ("llama-yarn", {"rope.scaling.type": None}),
    "longrope without a factor of attention": ("phi3-longrope", {"rope.scaling.attn_factor": None}),
    "longrope without a type": ("phi3-longrope", {"rope.scaling.type": None}),
    "granite without scales": (
        "granite", dict.fromkeys(("residual_scale", "embedding_scale", "attention.scale")),
    ),
    "experts without the size of dense layers": ("qwen3_moe", {"feed_forward_length": None}),
    "gemma 2 without caps and window": (
        "gemma2-wide", dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "attention.sliding_window")),
    ),
    "gemma 3 without a window": ("gemma3_text", {"attention.sliding_window": None}),
    "no sizes of heads": ("llama", dict.fromkeys(("attention.key_length", "attention.value_length"))),
    "deepseek without settings of experts": (
        "deepseek_v3",
        dict.fromkeys((
            "expert_weights_scale", "expert_weights_norm", "expert_group_count", "expert_group_used_count",
        )),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_folder_computes_what_llama_cpp_takes_for_absent_keys(case: str, tmp_path: Path) -> None:
    family, changes = CASES[case]
    squish.convert(families.make(family, tmp_path / "hf"), tmp_path / "own.gguf", "gguf:keep=no")
    with squish.open(tmp_path / "own.gguf") as file:
        architecture = file.meta["general.architecture"]
        changed: dict[str, Any] = {f"{architecture}.{name}": value for name, value in changes.items()}
        meta = {key: value for key, value in {**file.index.meta, **changed}.items() if value is not None}
        squish.save(tmp_path / "m.gguf", {name: file[name].numpy() for name in file}, metadata=meta)
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", "hf")
    ours = engines.ask("llama.cpp", tmp_path / "m.gguf", tokens=1)
    theirs = engines.ask("transformers", tmp_path / "back", ours.ids, tokens=1)
    bound = BOUNDS.get(family.partition("-")[0], 0.01)
    assert engines.difference(ours, theirs, bound, exact=False) == ""
