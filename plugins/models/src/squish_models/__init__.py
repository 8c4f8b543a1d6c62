"""Declares the families of models; imports no implementation."""

from __future__ import annotations

from typing import Any

from squish_core.api import FamilyInfo, hookimpl

from .mlx_types import MLX_TYPES

# id -> (title, module and class, model types, GGUF's architecture, whether its GGUF states experts)
FAMILIES = {
    "llama": ("Llama 1 to 3, SmolLM2, Mistral", "llama:Llama", ("llama", "mistral"), "llama", False),
    "mixtral": ("Mixtral", "llama:Mixtral", ("mixtral",), "llama", True),
    "granite": ("Granite 3", "llama:Granite", ("granite",), "granite", False),
    "qwen2": ("Qwen 2 and 2.5", "qwen:Qwen2", ("qwen2",), "qwen2", False),
    "qwen2vl": (
        "Qwen 2 and 2.5 VL, their text part", "qwen:Qwen2VL", ("qwen2_vl", "qwen2_5_vl"), "qwen2vl", False,
    ),
    "qwen3": ("Qwen 3", "qwen:Qwen3", ("qwen3",), "qwen3", False),
    "qwen3moe": ("Qwen 3 with experts", "qwen:Qwen3Moe", ("qwen3_moe",), "qwen3moe", True),
    "gemma2": ("Gemma 2", "gemma:Gemma2", ("gemma2",), "gemma2", False),
    "gemma3": ("Gemma 3, its text part", "gemma:Gemma3", ("gemma3_text", "gemma3"), "gemma3", False),
    "phi3": ("Phi 3 and 4", "others:Phi3", ("phi3",), "phi3", False),
    "olmo2": ("OLMo 2", "others:Olmo2", ("olmo2",), "olmo2", False),
    "glm4": ("GLM 4", "others:Glm4", ("glm4",), "glm4", False),
    "starcoder2": ("StarCoder 2", "others:Starcoder2", ("starcoder2",), "starcoder2", False),
    "deepseek2": (
        "DeepSeek 2 and 3", "deepseek:Deepseek", ("deepseek_v2", "deepseek_v3"), "deepseek2", True,
    ),
    "gpt2": ("GPT-2", "gpt2:Gpt2", ("gpt2",), "gpt2", False),
    "gpt-oss": ("gpt-oss", "gpt_oss:GptOss", ("gpt_oss",), "gpt-oss", True),
    "lfm2": ("LFM 2", "lfm:Lfm2", ("lfm2",), "lfm2", False),
}  # fmt: skip


@hookimpl
def squish_families() -> list[FamilyInfo]:
    """The families of this plugin, and the models that only mlx-lm knows."""
    carried = FamilyInfo(
        id="mlx-lm",
        title="other models of mlx-lm, carried over",
        factory="squish_models.families.carried:MlxCarried",
        model_types=MLX_TYPES,
        architecture="",
        layouts=("mlx",),
    )
    return [
        FamilyInfo(
            id=name,
            title=title,
            factory=f"squish_models.families.{implementation}",
            model_types=types,
            architecture=architecture,
            experts=experts,
        )
        for name, (title, implementation, types, architecture, experts) in FAMILIES.items()
    ] + [carried]


@hookimpl
def squish_commands(app: Any) -> None:
    """`squish check-model`."""
    from .engines.command import EXAMPLES, check

    app.command("check-model", examples=EXAMPLES)(check)
