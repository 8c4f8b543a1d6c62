"""What a tensor is for, from its name, whoever named it."""

from __future__ import annotations

import pytest

from squish_core.formats.kinds import BIAS, CONVOLUTION, EMBEDDING, HEAD, NORM, ROUTER, kind_of

NAMES = {
    EMBEDDING: (
        "model.embed_tokens.weight", "token_embd.weight", "language_model.model.embed_tokens.weight", "wte.weight",
        "transformer.wpe.weight", "gpt_neox.embed_in.weight", "word_embeddings.weight", "position_embd.weight",
        "per_layer_token_embd.weight", "tok_embeddings.weight", "token_types.weight", "shared.weight",
        "model.embed_tokens",
    ),
    HEAD: (
        "lm_head.weight", "output.weight", "embed_out.weight", "language_model.lm_head.weight", "lm_head", "output",
        "score.weight", "medusa_head.0.1.linear.weight", "head.weight",
    ),
    ROUTER: (
        "model.layers.0.mlp.gate.weight", "model.layers.3.block_sparse_moe.gate.weight", "blk.0.ffn_gate_inp.weight",
        "blk.0.ffn_gate_inp_shexp.weight", "model.layers.0.mlp.router.weight", "model.layers.0.mlp.gate",
        "model.layers.0.mlp.shared_expert_gate.weight", "model.layers.1.feed_forward.router.weight",
        "transformer.blocks.0.ffn.router.layer.weight",
    ),
    NORM: (
        "model.norm.weight", "model.layers.0.input_layernorm.weight", "blk.0.attn_norm.weight", "output_norm.weight",
        "transformer.ln_f.weight", "blk.0.attn_q_norm.weight", "token_embd_norm.weight", "h.0.ln_1.weight",
        "word_embeddings_layernorm.weight",
    ),
    CONVOLUTION: ("backbone.layers.0.mixer.conv1d.weight", "blk.0.ssm_conv1d.weight"),
    BIAS: ("model.layers.0.self_attn.q_proj.bias", "blk.0.attn_q.bias", "relative_attention_bias.weight"),
    None: (
        "model.layers.0.mlp.gate_proj.weight", "blk.0.ffn_gate.weight", "blk.0.ffn_gate_exps.weight",
        "blk.0.attn_output.weight", "model.layers.0.self_attn.o_proj.weight", "w", "",
        "bert.encoder.layer.0.attention.output.dense.weight", "model.layers.0.mlp.shared_experts.up_proj.weight",
        "model.layers.0.mlp.switch_mlp.gate_proj.weight", "blk.0.ffn_gate_shexp.weight",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in NAMES.items() for name in names])
def test_the_kind_of_a_tensor_follows_from_its_name(kind: str | None, name: str) -> None:
    assert kind_of(name) == kind
