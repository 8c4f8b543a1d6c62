"""The `model_type` of models that mlx-lm 0.32 has and Squish does not know; names are as in Hugging Face's folders."""

from __future__ import annotations

MLX_TYPES = (
    "Klear", "afm7", "baichuan_m1", "bailing_hybrid", "bailing_moe_linear", "bailing_moe_v3", "bitnet", "dbrx",
    "deepseek", "deepseek_v41", "deepseek_v41_text", "gear", "glm", "gptj", "helium", "hunyuan", "iquestcoder",
    "iquestloopcoder", "joyai_llm_flash", "kimi_k3", "kimi_vl", "lfm2-vl", "lille-130m", "llava",
    "longcat_flash", "longcat_flash_ngram", "mimo", "minicpm3", "minimax", "minimax_m3_vl",
    "muse_glimmer", "muse_spark", "nanbeige", "nanochat", "nemotron-nas", "olmo_hybrid", "openelm", "phi-msft",
    "phi3small", "phimoe", "phixtral", "pixtral", "plamo", "plamo2", "plamo3", "prism_hadamard_qwen35", "qwen",
    "recurrent_gemma", "rwkv7", "spark2_5", "talkie", "telechat3", "youtu_llm",
)  # fmt: skip

STACKING_CODES = frozenset((
    "bailing_hybrid", "bailing_moe_linear", "deepseek", "hunyuan", "joyai_llm_flash", "kimi_k3", "kimi_vl",
    "longcat_flash", "minimax_m3_vl", "muse_spark", "phi-msft", "phimoe", "phixtral",
))  # fmt: skip
"""Those whose experts it also stacks where they are codes with scales; of the others, only floats."""

UNCOMPARED = frozenset((
    "afm7", "baichuan_m1", "bailing_hybrid", "bailing_moe_linear", "bailing_moe_v3", "bitnet", "deepseek",
    "deepseek_v41", "deepseek_v41_text", "gear", "hunyuan", "iquestloopcoder", "joyai_llm_flash",
    "kimi_k3", "kimi_vl", "Klear", "lfm2-vl", "lille-130m", "longcat_flash_ngram", "mimo", "minimax", "muse_glimmer",
    "muse_spark", "nanbeige", "nanochat", "nemotron-nas", "olmo_hybrid", "openelm", "phi-msft", "phi3small",
    "phixtral", "pixtral", "plamo", "plamo2", "plamo3", "prism_hadamard_qwen35", "qwen", "rwkv7", "spark2_5",
    "talkie", "telechat3", "youtu_llm",
))  # fmt: skip
"""Those of which no small model was compared: Transformers does not have them, or saves what mlx-lm does not read."""
