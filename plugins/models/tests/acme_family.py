"""A family in one file, as a third party brings it."""

from __future__ import annotations

from squish_models.api import COMMON, TextModel, attention, embeddings, gated_mlp, norm


class AcmeLM(TextModel):
    """Like Llama, with norms that GGUF holds plus 1."""

    model_type, architecture, class_name = "acme", "acme", "AcmeForCausalLM"
    rows = (
        *embeddings(add=1.0),
        norm("input_layernorm", "attn_norm", add=1.0),
        *attention(permute=True),
        norm("post_attention_layernorm", "ffn_norm", add=1.0),
        *gated_mlp(),
    )
    keys = COMMON
