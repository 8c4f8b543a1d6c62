"""Declares the families of models; imports no implementation."""

from __future__ import annotations

import os
from typing import Any

from squish_core.api import FamilyInfo, hookimpl

from .mlx_types import MLX_TYPES

# id -> (title, module and class, model types, GGUF's architecture); a class in `declared` is that of NAME.toml
FAMILIES = {
    "llama": ("Llama 1 to 3, SmolLM2, Mistral", "llama:Llama", ("llama", "mistral"), "llama"),
    "mixtral": ("Mixtral", "llama:Mixtral", ("mixtral",), "llama"),
    "granite": ("Granite 3", "llama:Granite", ("granite",), "granite"),
    "qwen2": ("Qwen 2 and 2.5", "qwen:Qwen2", ("qwen2",), "qwen2"),
    "qwen2vl": (
        "Qwen 2 and 2.5 VL, their text part", "qwen:Qwen2VL", ("qwen2_vl", "qwen2_5_vl"), "qwen2vl",
    ),
    "qwen3": ("Qwen 3", "qwen:Qwen3", ("qwen3",), "qwen3"),
    "qwen3moe": ("Qwen 3 with experts", "qwen:Qwen3Moe", ("qwen3_moe",), "qwen3moe"),
    "gemma2": ("Gemma 2", "gemma:Gemma2", ("gemma2",), "gemma2"),
    "embeddinggemma": ("EmbeddingGemma", "gemma:EmbeddingGemma", ("gemma3_text",), "gemma-embedding"),
    "gemma3": ("Gemma 3, its text part", "gemma:Gemma3", ("gemma3_text", "gemma3"), "gemma3"),
    "phi3": ("Phi 3 and 4", "others:Phi3", ("phi3",), "phi3"),
    "olmo2": ("OLMo 2", "others:Olmo2", ("olmo2",), "olmo2"),
    "glm4": ("GLM 4", "others:Glm4", ("glm4",), "glm4"),
    "starcoder2": ("StarCoder 2", "others:Starcoder2", ("starcoder2",), "starcoder2"),
    "deepseek2": (
        "DeepSeek 2 and 3", "deepseek:Deepseek", ("deepseek_v2", "deepseek_v3"), "deepseek2",
    ),
    "gpt2": ("GPT-2", "gpt2:Gpt2", ("gpt2",), "gpt2"),
    "gpt-oss": ("gpt-oss", "gpt_oss:GptOss", ("gpt_oss",), "gpt-oss"),
    "lfm2": ("LFM 2, and the text part of LFM2-VL", "lfm:Lfm2", ("lfm2", "lfm2_vl"), "lfm2"),
    "qwen3vl": ("Qwen 3 VL, its text part", "qwen:Qwen3VL", ("qwen3_vl", "qwen3_vl_text"), "qwen3vl"),
    "qwen35": ("Qwen 3.5 and 3.6, their text part", "delta:Qwen35", ("qwen3_5", "qwen3_5_text"), "qwen35"),
    "qwen35moe": (
        "Qwen 3.5 and 3.6 with experts, their text part", "delta:Qwen35Moe", ("qwen3_5_moe", "qwen3_5_moe_text"),
        "qwen35moe",
    ),
    "qwen3next": ("Qwen3-Next", "delta:Qwen3Next", ("qwen3_next",), "qwen3next"),
    "hunyuan-dense": (
        "HunYuan 1, its dense models", "qwen:HunyuanDense", ("hunyuan_v1_dense",), "hunyuan-dense",
    ),
    "exaone4": ("EXAONE 4", "others:Exaone4", ("exaone4",), "exaone4"),
    "granitemoe": ("Granite 3 with experts", "llama:GraniteMoe", ("granitemoe",), "granitemoe"),
    "mistral3": (
        "Ministral 3, Devstral 2, and the text part of Mistral Small 3", "llama:Mistral3", ("ministral3", "mistral3"),
        "mistral3",
    ),
    "qwen2_moe": ("Qwen 1.5 and 2 with experts", "declared:qwen2_moe", ("qwen2_moe",), "qwen2moe"),
    "glm4_moe": ("GLM 4.5 to 4.7", "declared:glm4_moe", ("glm4_moe",), "glm4moe"),
    "glm4_moe_lite": ("GLM 4.7 Flash", "declared:glm4_moe_lite", ("glm4_moe_lite",), ""),
    "minimax_m2": ("MiniMax M2", "declared:minimax_m2", ("minimax_m2",), "minimax-m2"),
    "lfm2_moe": ("LFM 2 with experts", "declared:lfm2_moe", ("lfm2_moe",), "lfm2moe"),
    "olmo3": ("OLMo 3", "declared:olmo3", ("olmo3",), "olmo2"),
    "smollm3": ("SmolLM3", "declared:smollm3", ("smollm3",), "smollm3"),
    "cohere": ("Command R", "declared:cohere", ("cohere",), "command-r"),
    "cohere2": ("Command A", "declared:cohere2", ("cohere2",), "cohere2"),
    "gemma4": (
        "Gemma 4, its text part", "gemma4:Gemma4",
        ("gemma4_text", "gemma4", "gemma4_unified_text", "gemma4_unified"), "gemma4",
    ),
    "gemma3n": ("Gemma 3n, its text part", "gemma3n:Gemma3n", ("gemma3n_text", "gemma3n"), "gemma3n"),
    "gemma": ("Gemma 1", "declared:gemma", ("gemma",), "gemma"),
    "seed_oss": ("Seed-OSS", "declared:seed_oss", ("seed_oss",), "seed_oss"),
    "ernie4_5": ("ERNIE 4.5", "declared:ernie4_5", ("ernie4_5",), "ernie4_5"),
    "olmoe": ("OLMoE", "declared:olmoe", ("olmoe",), "olmoe"),
    "granitehybrid": ("Granite 4", "hybrid:GraniteHybrid", ("granitemoehybrid",), "granitehybrid"),
    "granitehybrid_moe": (
        "Granite 4 with experts", "hybrid:GraniteHybridMoe", ("granitemoehybrid",), "granitehybrid",
    ),
    "granite4": ("Granite 4 with attention alone", "hybrid:GraniteAttention", ("granitemoehybrid",), "granite"),
    "nemotron_h": ("Nemotron-H, Nemotron Nano 2", "nemotron:NemotronH", ("nemotron_h",), "nemotron_h"),
    "nemotron_h_moe": ("Nemotron 3", "nemotron:NemotronHMoe", ("nemotron_h",), "nemotron_h_moe"),
    "falcon_h1": ("Falcon-H1", "falcon_h1:FalconH1", ("falcon_h1",), "falcon-h1"),
    "mamba2": ("Mamba 2", "mamba:Mamba2", ("mamba2",), "mamba2"),
    "mamba": ("Mamba", "mamba:Mamba", ("mamba",), "mamba"),
    "falcon_mamba": ("Falcon-Mamba", "mamba:FalconMamba", ("falcon_mamba",), "mamba"),
    "jamba": ("Jamba", "jamba:Jamba", ("jamba",), "jamba"),
    "llama4": ("Llama 4, its text part", "llama4:Llama4", ("llama4", "llama4_text"), "llama4"),
    "qwen3vlmoe": (
        "Qwen 3 VL with experts and Qwen 3 Omni, their text part", "qwen:Qwen3VLMoe",
        ("qwen3_vl_moe", "qwen3_vl_moe_text", "qwen3_omni_moe"),
        "qwen3vlmoe",
    ),
    "arcee": ("Arcee AFM", "declared:arcee", ("arcee",), "arcee"),
    "apertus": ("Apertus", "apertus:Apertus", ("apertus",), "apertus"),
    "dots1": ("dots.llm1", "declared:dots1", ("dots1",), "dots1"),
    "solar_open": ("Solar Open", "declared:solar_open", ("solar_open",), "glm4moe"),
    "ernie4_5_moe": ("ERNIE 4.5 with experts", "declared:ernie4_5_moe", ("ernie4_5_moe",), "ernie4_5-moe"),
    "hunyuan-moe": ("HunYuan 1 with experts", "qwen:HunyuanMoe", ("hunyuan_v1_moe",), "hunyuan-moe"),
    "exaone_moe": ("K-EXAONE", "declared:exaone_moe", ("exaone_moe",), "exaone-moe"),
    "bailing_moe": ("Ling 2 and Ring 2", "declared:bailing_moe", ("bailing_moe", "bailing_moe_v2"), "bailingmoe2"),
    "afmoe": ("Arcee Trinity", "declared:afmoe", ("afmoe",), "afmoe"),
    "step35": (
        "Step 3.5 Flash, and the text part of Step 3.7", "step:Step35", ("step3p5", "step3p7"), "step35",
    ),
    "laguna": ("Laguna", "laguna:Laguna", ("laguna",), "laguna"),
    "mimo_v2_flash": ("MiMo V2 Flash", "mimo:MimoV2", ("mimo_v2_flash",), "mimo2"),
    "mellum": ("Mellum 2", "declared:mellum", ("mellum",), "mellum"),
    "falcon": ("Falcon", "old:Falcon", ("falcon",), "falcon"),
    "minicpm": ("MiniCPM 1 and 2", "old:MiniCpm", ("minicpm",), "minicpm"),
    "gpt_neox": ("GPT-NeoX, Pythia", "declared:gpt_neox", ("gpt_neox",), "gptneox"),
    "phi": ("Phi 1 to 2", "declared:phi", ("phi",), "phi2"),
    "phi4_multimodal": (
        "Phi 4 multimodal, its text part", "declared:phi4_multimodal", ("phi4mm", "phi4_multimodal"), "",
    ),
    "stablelm": ("StableLM", "declared:stablelm", ("stablelm",), "stablelm"),
    "internlm2": ("InternLM 2 and 2.5", "declared:internlm2", ("internlm2",), "internlm2"),
    "internlm3": ("InternLM 3", "declared:internlm3", ("internlm3",), ""),
    "bloom": ("BLOOM", "declared:bloom", ("bloom",), "bloom"),
    "mpt": ("MPT", "declared:mpt", ("mpt",), "mpt"),
    "nemotron": ("Nemotron 3 and 4, Minitron", "declared:nemotron", ("nemotron",), "nemotron"),
    "olmo": ("OLMo 1", "declared:olmo", ("olmo",), "olmo"),
    "gpt_bigcode": ("StarCoder 1, SantaCoder", "declared:gpt_bigcode", ("gpt_bigcode",), "starcoder"),
    "codeshell": ("CodeShell", "declared:codeshell", ("codeshell",), "codeshell"),
    "exaone": ("EXAONE 3 and 3.5", "declared:exaone", ("exaone",), "exaone"),
    "orion": ("Orion", "declared:orion", ("orion",), "orion"),
    "xverse": ("XVERSE", "declared:xverse", ("xverse",), "xverse"),
    "kimi": (
        "Kimi K2 to K2.6 and Kimi-VL, their text part", "declared:kimi", ("kimi_k2", "kimi_k25", "kimi_vl"), "",
    ),
    "kimi_linear": ("Kimi Linear", "kimi_linear:KimiLinear", ("kimi_linear",), "kimi-linear"),
    "deepseek32": ("DeepSeek 3.2", "latent:DeepseekV32", ("deepseek_v32",), "deepseek32"),
    "glm-dsa": ("GLM 5 to 5.2", "latent:GlmMoeDsa", ("glm_moe_dsa",), "glm-dsa"),
    "deepseek4": ("DeepSeek 4", "deepseek4:Deepseek4", ("deepseek_v4",), "deepseek4"),
    "modernbert": ("ModernBERT", "modern_encoders:ModernBert", ("modernbert",), "modern-bert"),
    "modernbert_classifier": (
        "Classifiers and rerankers of ModernBERT", "modern_encoders:ModernBertClassifier", ("modernbert",),
        "modern-bert",
    ),
    "eurobert": (
        "EuroBERT, Jina Embeddings 5 nano", "modern_encoders:EuroBert", ("eurobert", "jina_embeddings_v5"), "eurobert",
    ),
    "t5_encoder": ("Encoders of T5", "t5:T5Encoder", ("t5",), "t5encoder"),
    "t5_gated_encoder": ("Encoders of T5 1.1 and Flan-T5", "t5:GatedT5Encoder", ("t5",), "t5encoder"),
    "umt5_encoder": ("Encoders of UMT5", "t5:Umt5Encoder", ("umt5",), "t5encoder"),
    "mistral4": ("Mistral 4, its text part", "latent:Mistral4", ("mistral4", "mistral3"), "mistral4"),
    "mistral_large_3": ("Mistral Large 3", "latent:MistralLarge3", (), "deepseek2"),
    "smolvlm": ("SmolVLM and Idefics 3, their text part", "declared:smolvlm", ("smolvlm", "idefics3"), ""),
    "bert": ("BERT, bge, E5, MiniLM", "bert:Bert", ("bert",), "bert"),
    "bert_classifier": ("BERT that classifies or reranks", "bert:BertClassifier", ("bert",), "bert"),
    "roberta": ("RoBERTa", "bert:Roberta", ("roberta",), "bert"),
    "roberta_classifier": ("RoBERTa that classifies or reranks", "bert:RobertaClassifier", ("roberta",), "bert"),
    "xlm_roberta": ("XLM-RoBERTa, bge-m3, multilingual E5", "bert:XlmRoberta", ("xlm-roberta",), "bert"),
    "xlm_roberta_classifier": (
        "XLM-RoBERTa that classifies or reranks", "bert:XlmRobertaClassifier", ("xlm-roberta",), "bert",
    ),
    "jina_bert_v2": ("Jina Embeddings 2", "bert:JinaBert", ("bert",), "jina-bert-v2"),
    "jina_bert_v3": ("Jina Embeddings 3", "jina3:JinaBert3", ("xlm-roberta",), "jina-bert-v3"),
    "nomic_bert": ("Nomic Embed 1 and 1.5", "nomic:NomicBert", ("nomic_bert",), "nomic-bert"),
    "nomic_bert_moe": ("Nomic Embed 2, with experts", "nomic:NomicBertMoe", ("nomic_bert",), "nomic-bert-moe"),
}  # fmt: skip
# id -> (title, module and class, model types of the text models, GGUF's type of the projector)
TOWERS = {
    "gemma3.vision": ("Gemma 3's vision tower", "siglip:Gemma3Vision", ("gemma3",), "gemma3"),
    "smolvlm.vision": (
        "The vision tower of SmolVLM and Idefics 3",
        "siglip:Idefics3Vision",
        ("smolvlm", "idefics3"),
        "idefics3",
    ),
    "pixtral.vision": (
        "The vision tower of Pixtral and Mistral 3", "pixtral:PixtralVision", ("mistral3", "llava"), "pixtral",
    ),
    "qwen2vl.vision": ("The vision tower of Qwen 2 VL", "qwen:Qwen2Vision", ("qwen2_vl",), "qwen2vl_merger"),
    "qwen25vl.vision": (
        "The vision tower of Qwen 2.5 VL", "qwen:Qwen25Vision", ("qwen2_5_vl",), "qwen2.5vl_merger",
    ),
    "qwen3vl.vision": (
        "The vision tower of Qwen 3 VL, 3.5 and 3.6", "qwen:Qwen3Vision",
        ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), "qwen3vl_merger",
    ),
    "glm4v.vision": (
        "The vision tower of GLM 4.1V, 4.5V and 4.6V", "glm:Glm4Vision", ("glm4v", "glm4v_moe"), "glm4v",
    ),
    "internvl.vision": (
        "InternVL's vision tower", "internvl:InternVLVision", ("internvl", "internvl_chat"), "internvl",
    ),
    "gemma4.vision": ("Gemma 4's vision tower", "gemma4:Gemma4Vision", ("gemma4",), "gemma4v"),
    "kimi_vl.vision": ("Kimi-VL's vision tower", "moonvit:KimiVision", ("kimi_vl",), "kimivl"),
    "kimi_k25.vision": ("The vision tower of Kimi K2.5 and K2.6", "moonvit:KimiK25Vision", ("kimi_k25",), "kimik25"),
    "lfm2_vl.vision": ("LFM2-VL's vision tower", "siglip2:Lfm2Vision", ("lfm2_vl", "lfm2-vl"), "lfm2"),
}  # fmt: skip
SCORER, MERGES, SCORES = "cls.output.weight", "tokenizer.ggml.merges", "tokenizer.ggml.scores"
WHOLE, CUT = "squish.rows.whole", "squish.rows.position_embd.weight"
"""The key of a BERT with RoBERTa's kind of tokenizer, such as multilingual-e5-small, and that with the positions that
GGUF lacks of a RoBERTa."""
GATE = "enc.blk.0.ffn_gate.weight"
PRESENT = {
    "mixtral": ("expert_count",), "olmo3": ("attention.sliding_window",), "granitehybrid_moe": ("expert_count",),
    "mistral_large_3": ("attention.temperature_scale",),
    "granite4": ("ssm.conv_kernel",), "falcon_mamba": ("ssm.dt_b_c_rms",),
    "bert_classifier": (SCORER,), "modernbert_classifier": (SCORER,), "t5_gated_encoder": (GATE,),
    "umt5_encoder": (GATE, "enc.blk.1.attn_rel_b.weight"), "roberta": (f"{MERGES}|{CUT}",),
    "roberta_classifier": (f"{MERGES}|{CUT}", SCORER),
    "xlm_roberta": (SCORES,), "xlm_roberta_classifier": (SCORES, SCORER),
}  # fmt: skip
ABSENT = {
    "solar_open": ("leading_dense_block_count",),
    **dict.fromkeys(("roberta", "roberta_classifier"), (SCORES, WHOLE)),
    **dict.fromkeys(("xlm_roberta", "xlm_roberta_classifier"), (MERGES, WHOLE)),
}  # fmt: skip
"""Keys and tensors that tell families of one architecture apart."""
BY_CONFIG = (
    "granitehybrid", "granitehybrid_moe", "granite4", "nemotron_h", "nemotron_h_moe", "mistral3", "mistral4",
    "bert", "bert_classifier", "roberta", "roberta_classifier", "xlm_roberta", "xlm_roberta_classifier",
    "gemma3", "embeddinggemma", "modernbert", "modernbert_classifier", "t5_encoder", "t5_gated_encoder",
    "nomic_bert", "nomic_bert_moe", "jina_bert_v2", "jina_bert_v3",
)  # fmt: skip
"""Families that share a model type with others."""
VARIABLE = "SQUISH_FAMILIES"
"""The variable that names the TOML files of other families."""


def of_variable() -> list[FamilyInfo]:
    """The families of files that the variable names."""
    if not os.environ.get(VARIABLE):
        return []
    from .declarations import infos_of

    return infos_of(os.environ[VARIABLE])


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
    towers = [
        FamilyInfo(
            id=name,
            title=title,
            factory=f"squish_models.towers.{implementation}",
            model_types=types,
            architecture=projector,
            part="vision",
        )
        for name, (title, implementation, types, projector) in TOWERS.items()
    ]
    return [
        FamilyInfo(
            id=name,
            title=title,
            factory=f"squish_models.families.{implementation}",
            model_types=types,
            architecture=architecture,
            present=PRESENT.get(name, ()),
            by_config=name in BY_CONFIG,
            absent=ABSENT.get(name, ()),
        )
        for name, (title, implementation, types, architecture) in FAMILIES.items()
    ] + [carried, *towers, *of_variable()]


@hookimpl
def squish_commands(app: Any) -> None:
    """`squish check-model`, `squish families` and `squish fit`."""
    from . import overview
    from .engines.command import EXAMPLES, check
    from .memory import command

    documents = "squish_models.documents"
    app.command("check-model", examples=EXAMPLES, document=f"{documents}:CheckModel")(check)
    app.command("families", examples=overview.EXAMPLES, document=f"{documents}:Families")(overview.families)
    app.command("fit", examples=command.EXAMPLES, document=f"{documents}:FitModel")(command.fit_model)
