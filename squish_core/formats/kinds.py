"""The role of a tensor, from its name in Hugging Face, GGUF, MLX or UQFF.

For plugins: the core itself does not depend on what tensors are called.
"""

from __future__ import annotations

import re

NORM, HEAD, ROUTER, EMBEDDING, CONVOLUTION, BIAS = "norm", "head", "router", "embedding", "convolution", "bias"

_KINDS = (
    # input_layernorm, q_norm, ln_f; attn_norm, output_norm, token_embd_norm
    (NORM, re.compile(r".*norm.*|ln(_\w+|\d*)")),
    # lm_head, embed_out (GPT-NeoX), score (classifiers)
    (HEAD, re.compile(r"(\w*_)?heads?|embed_out|score|classifier")),
    # mlp.gate, block_sparse_moe.gate, router, shared_expert_gate; ffn_gate_inp, ffn_gate_inp_shexp
    (ROUTER, re.compile(r"gate|\w*router|shared_expert_gate|ffn_gate_inp(_\w+)?")),
    # embed_tokens, word_embeddings, wte; token_embd, position_embd, token_types
    (EMBEDDING, re.compile(r".*(embed|embd).*|wte|wpe|token_types")),
    # conv1d of state-space models; ssm_conv1d
    (CONVOLUTION, re.compile(r".*conv1d.*")),
    (BIAS, re.compile(r".*bias.*")),
)
"""Kind -> pattern of a dot-separated part of the name; the first match decides."""
_TOP_LEVEL = {"output": HEAD, "shared": EMBEDDING}
"""Modules that have a kind only outside layers: GGUF's and Meta's head, T5's embedding."""
_ROLE = re.compile(r"\.(weight|bias)$")


def kind_of(name: str) -> str | None:
    """Return the kind of a tensor, from its name in Hugging Face's or GGUF's spelling.

    Parameters
    ----------
    name
        The tensor's name.

    Returns
    -------
    str or None
        NORM, HEAD, ROUTER, EMBEDDING, CONVOLUTION or BIAS; None for others (projections, experts).

    Examples
    --------
    >>> kind_of("model.layers.0.mlp.gate.weight"), kind_of("blk.0.ffn_gate_inp.weight")
    ('router', 'router')
    >>> kind_of("model.layers.0.mlp.gate_proj.weight")
    """
    parts = name.split(".")
    for kind, pattern in _KINDS:
        if any(map(pattern.fullmatch, parts)):
            return kind
    layered = any(part.isdecimal() for part in parts)
    return None if layered else _TOP_LEVEL.get(_ROLE.sub("", name).rpartition(".")[2])
