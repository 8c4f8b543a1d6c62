"""The `model_type` of models that mlx-lm 0.32 has and Squish does not know; names are as in Hugging Face's folders."""

from __future__ import annotations

MLX_TYPES = (
    "Klear", "afm7", "afmoe", "apertus", "baichuan_m1", "bailing_hybrid", "bailing_moe", "bailing_moe_linear",
    "bailing_moe_v3", "bitnet", "dbrx", "deepseek", "deepseek_v32", "deepseek_v41", "deepseek_v41_text", "dots1",
    "ernie4_5_moe", "exaone", "exaone_moe", "falcon_h1", "falcon_mamba", "gear", "glm",
    "glm_moe_dsa", "gpt_bigcode", "gpt_neox", "gptj", "granitemoehybrid", "helium", "hunyuan",
    "internlm2", "internlm3", "iquestcoder", "iquestloopcoder", "jamba", "joyai_llm_flash", "kimi_k2", "kimi_k25",
    "kimi_k3", "kimi_linear", "kimi_vl", "laguna", "lfm2-vl", "lille-130m", "llama4", "llama4_text", "llava",
    "longcat_flash", "longcat_flash_ngram", "mamba", "mamba2", "mellum", "mimo", "mimo_v2_flash", "minicpm", "minicpm3",
    "minimax", "minimax_m3_vl", "mistral4", "muse_glimmer", "muse_spark", "nanbeige", "nanochat", "nemotron",
    "nemotron-nas", "nemotron_h", "olmo_hybrid", "openelm", "phi", "phi-msft", "phi3small", "phimoe", "phixtral",
    "pixtral", "plamo", "plamo2", "plamo3", "prism_hadamard_qwen35", "qwen", "qwen3_vl_moe",
    "recurrent_gemma", "rwkv7", "solar_open", "spark2_5", "stablelm", "step3p5", "talkie", "telechat3",
    "xverse", "youtu_llm",
)  # fmt: skip

STACKING_CODES = frozenset((
    "afmoe", "bailing_hybrid", "bailing_moe", "bailing_moe_linear", "deepseek", "deepseek_v32", "dots1", "exaone_moe",
    "glm_moe_dsa", "hunyuan", "jamba", "joyai_llm_flash", "kimi_k2", "kimi_k25", "kimi_k3", "kimi_vl", "laguna",
    "longcat_flash", "mimo_v2_flash", "minimax_m3_vl", "mistral4", "muse_spark", "phi-msft", "phimoe", "phixtral",
    "solar_open",
))  # fmt: skip
"""Those whose experts it also stacks where they are codes with scales; of the others, only floats."""
