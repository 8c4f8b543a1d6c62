"""An EAGLE-3 draft head: its config, and the network that proposes tokens from a model's hidden states."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from attrs import frozen
from torch import nn
from transformers import DynamicCache, LlamaConfig
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding

from squish_core.api import ErrorCode, File, FormatError, SquishError, TensorError

from .draft import load_draft
from .pretrained import CONFIG

SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
"""Required keys of the config: positive integers, which must agree with the tensors."""
OPTIONAL_SIZES = ("num_key_value_heads", "head_dim", "draft_vocab_size", "target_hidden_size")
ONLY: Mapping[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 1, "attention_bias": False, "mlp_bias": False, "fc_norm": False,
    "norm_before_fc": False, "norm_output": False, "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True, "use_last_layernorm": True, "use_mtp_layernorm": False,
}  # fmt: skip
"""Keys that change the network -> the only supported value, which is the default."""
COPIED = (
    "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size", "rms_norm_eps", "hidden_act",
    "max_position_embeddings", "rope_theta", "rope_scaling", "rope_parameters",
)  # fmt: skip
"""Keys that configure the layer of the network."""
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
LAYER, LAYER_OF_VLLM = "midlayer.", "layers.0."
"""Prefix of the head's layer, and its name in vLLM and speculators."""
IGNORED = ("t2d", "verifier_lm_head.weight", "verifier_norm.weight", "midlayer.self_attn.rotary_emb.inv_freq")
"""Tensors for training only, or recomputed on loading."""


@frozen
class HeadConfig:
    """The config of a head, validated against its tensors and the model.

    Attributes
    ----------
    llama
        Sizes of the head's layer.
    layers
        The layers of the model whose outputs the head reads, counted from 1.
    draft_vocabulary
        Number of tokens that the head can propose.
    norm_before_residual
        Whether the layer's residual is the normalized hidden states.
    """

    llama: LlamaConfig
    layers: tuple[int, ...]
    draft_vocabulary: int
    norm_before_residual: bool

    @classmethod
    def of(cls, head: File, model: Any) -> HeadConfig:
        """Read and check the config of a head for a model with this config of transformers.

        FormatError names the key that is missing, not supported or different from the model's; TensorError names the
        tensor that is missing, unknown or of another shape.
        """
        settings = _settings(head)
        for key, only in ONLY.items():
            if settings.get(key) not in (None, only):
                raise _setting_error(head, key, settings[key], f"{json.dumps(only)}, as EAGLE-3 heads have")
        for key in (*SIZES, *OPTIONAL_SIZES):
            value = settings.get(key)
            if (key in SIZES or value is not None) and (type(value) is not int or value < 1):
                raise _setting_error(head, key, value, "a positive integer")
        text = model.get_text_config()
        width = settings.get("target_hidden_size") or settings["hidden_size"]
        width_key = "target_hidden_size" if settings.get("target_hidden_size") else "hidden_size"
        for key, found, expected in (
            (width_key, width, text.hidden_size),
            ("vocab_size", settings["vocab_size"], text.vocab_size),
        ):
            if found != expected:
                raise _setting_error(head, key, found, f"{expected}, as in the model")
        layers = _layers(head, settings, text.num_hidden_layers)
        vocabulary = settings.get("draft_vocab_size") or settings["vocab_size"]
        with _transformers_errors(head):
            llama = _llama(head, settings)
        config = cls(llama, layers, vocabulary, bool(settings.get("norm_before_residual")))
        config._check_tensors(head, width)
        with _transformers_errors(head):
            LlamaRotaryEmbedding(llama)
        return config

    def _check_tensors(self, head: File, width: int) -> None:
        """Raise TensorError for a tensor that is missing, unknown or of another shape."""
        shapes = dict(self._shapes(width))
        found = {name_of(name): tensor for name, tensor in head.index.tensors.items()}
        optional = {"embed_tokens.weight", *(["d2t"] if self.draft_vocabulary == self.llama.vocab_size else [])}
        for name, shape in shapes.items():
            if name not in found and name not in optional:
                raise TensorError(
                    "a tensor of the draft head is missing",
                    file=head.name,
                    tensor=name,
                    code="missing-tensor",
                    expected=str(list(shape)),
                )
            if name in found and found[name].shape != shape:
                raise TensorError(
                    "a tensor has another shape than the draft head's config states",
                    file=head.name,
                    tensor=found[name].name,
                    code="shape",
                    expected=str(list(shape)),
                    found=str(list(found[name].shape)),
                )
        unknown = [tensor.name for name, tensor in found.items() if name not in shapes and name not in IGNORED]
        if unknown:
            raise TensorError("not a tensor of an EAGLE-3 head", file=head.name, tensor=unknown[0], code="draft")

    def _shapes(self, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield name and shape of each tensor."""
        llama, hidden, vocabulary = self.llama, self.llama.hidden_size, self.draft_vocabulary
        queries, keys = (count * llama.head_dim for count in (llama.num_attention_heads, llama.num_key_value_heads))
        yield from (
            ("fc.weight", (hidden, width * len(self.layers))),
            ("norm.weight", (hidden,)),
            ("lm_head.weight", (vocabulary, hidden)),
            ("d2t", (vocabulary,)),
            ("embed_tokens.weight", (llama.vocab_size, hidden)),
        )
        for norm in ("hidden_norm", "input_layernorm", "post_attention_layernorm"):
            yield f"{LAYER}{norm}.weight", (hidden,)
        for name, rows, columns in (
            ("self_attn.q_proj", queries, 2 * hidden),
            ("self_attn.k_proj", keys, 2 * hidden),
            ("self_attn.v_proj", keys, 2 * hidden),
            ("self_attn.o_proj", hidden, queries),
            ("mlp.gate_proj", llama.intermediate_size, hidden),
            ("mlp.up_proj", llama.intermediate_size, hidden),
            ("mlp.down_proj", hidden, llama.intermediate_size),
        ):
            yield f"{LAYER}{name}.weight", (rows, columns)


def name_of(name: str) -> str:
    """Return the name of a head's tensor as EAGLE's own software spells it."""
    return LAYER + name.removeprefix(LAYER_OF_VLLM) if name.startswith(LAYER_OF_VLLM) else name


def _settings(head: File) -> dict[str, Any]:
    """Return the config of a head: EAGLE's and SpecForge's keys, and those that speculators and ModelOpt nest."""
    if CONFIG not in head.assets:
        raise FormatError(
            "the draft head has no config",
            file=head.name,
            part=CONFIG,
            code=ErrorCode.CONFIG,
            expected=f"a config that states {', '.join(SIZES)}",
            hint=f"Put the head's {CONFIG} beside its weights, and name these (--draft HEAD) or store both "
            "(squish convert MODEL OUT.squizd --to squizd:draft=HEAD).",
        )
    try:
        settings = json.loads(bytes(head.assets[CONFIG].raw))
    except (ValueError, RecursionError):
        settings = None
    if not isinstance(settings, dict):
        raise FormatError(
            "the draft head's config is not a JSON object", file=head.name, part=CONFIG, code=ErrorCode.CONFIG
        )
    nested = (settings.get(key) or {} for key in ("eagle_config", "transformer_layer_config"))
    own, layer = (value if isinstance(value, dict) else {} for value in nested)
    own = {key: value for key, value in own.items() if key != LAYER_IDS}
    return {**own, **settings, **layer}


def _layers(head: File, settings: Mapping[str, Any], count: int) -> tuple[int, ...]:
    """Return the layers whose outputs the head reads, counted from 1; three by default.

    SGLang counts the layers in `eagle_config` from 0; vLLM counts the top-level ones from 1, where 0 is the embedding.
    """
    stated, first = settings.get(LAYER_IDS), 1
    if not stated and isinstance(settings.get("eagle_config"), dict):
        stated, first = settings["eagle_config"].get(LAYER_IDS), 0
    if not stated and 2 < count // 2 < count - 3:
        return 2, count // 2, count - 3
    layers = stated if isinstance(stated, list) and all(type(number) is int for number in stated) else []
    if not layers or not all(first <= number < count + first for number in layers):
        expected = f"a list of layers of the model, {first} to {count + first - 1}"
        raise _setting_error(head, LAYER_IDS, stated, expected)
    return tuple(number + 1 - first for number in layers)


def _llama(head: File, settings: Mapping[str, Any]) -> LlamaConfig:
    """Return the sizes of the head's layer as a config of transformers."""
    heads, eps = settings["num_attention_heads"], settings.get("rms_norm_eps")
    keys, size = settings.get("num_key_value_heads") or heads, settings["hidden_size"]
    if not isinstance(eps, float | int):
        raise _setting_error(head, "rms_norm_eps", eps, "a number")
    if heads % keys:
        raise _setting_error(head, "num_key_value_heads", keys, f"a divisor of num_attention_heads, {heads}")
    act = settings.get("hidden_act") or "silu"
    if not isinstance(act, str) or act not in ACT2FN:
        raise _setting_error(head, "hidden_act", act, "a function that transformers has")
    own = {key: settings[key] for key in COPIED if settings.get(key) is not None}
    own |= {"head_dim": settings.get("head_dim") or size // heads, "num_key_value_heads": keys}
    config: LlamaConfig = LlamaConfig.from_dict(own)
    config._attn_implementation = "sdpa"
    return config


@contextmanager
def _transformers_errors(head: File) -> Iterator[None]:
    """Raise FormatError for settings that transformers rejects."""
    try:
        yield
    except SquishError:
        raise
    except Exception as error:  # its validation raises many types of errors
        raise FormatError(
            f"transformers rejects the draft head's config: {type(error).__name__}: {error}",
            file=head.name,
            part=CONFIG,
            code=ErrorCode.CONFIG,
        ) from error


def _setting_error(head: File, key: str, found: Any, expected: str) -> FormatError:
    return FormatError(
        f"the draft head's config states {key} = {json.dumps(found)}",
        file=head.name,
        part=CONFIG,
        code=ErrorCode.CONFIG,
        expected=expected,
        found=found,
    )


class EagleHead(nn.Module):
    """The network: `fc` fuses hidden states of the model, and one layer reads them with the token embeddings.

    Parameters
    ----------
    head
        Open file with only the tensors of the head.
    config
        Its validated config.
    model
        The model of transformers; its embedding serves a head without one.
    """

    def __init__(self, head: File, config: HeadConfig, model: Any) -> None:
        super().__init__()
        tree: Any = load_draft(head, dtype=model.dtype)
        layer = tree.midlayer if "midlayer" in tree._modules else tree.layers.get_submodule("0")
        self.config = config
        with torch.device("meta"):
            self.attention, self.mlp = LlamaAttention(config.llama, 0), LlamaMLP(config.llama)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self.attention, name, getattr(layer.self_attn, name))
        for name in ("gate_proj", "up_proj", "down_proj"):
            setattr(self.mlp, name, getattr(layer.mlp, name))
        self.rotary = LlamaRotaryEmbedding(config.llama)
        self.fc, self.lm_head = tree.fc, tree.lm_head
        self.hidden_norm, self.input_norm = self._norm(layer.hidden_norm), self._norm(layer.input_layernorm)
        self.middle_norm, self.norm = self._norm(layer.post_attention_layernorm), self._norm(tree.norm)
        self.embedding = tree.embed_tokens if "embed_tokens" in tree._modules else None
        offsets = getattr(tree, "d2t", torch.zeros(config.draft_vocabulary, dtype=torch.int64))
        self.register_buffer("target_ids", torch.arange(config.draft_vocabulary) + offsets)
        outside = [value for value in self.target_ids.tolist() if not 0 <= value < config.llama.vocab_size]
        if outside:
            raise TensorError(
                "maps a token of the draft head to an id beyond the model's vocabulary",
                file=head.name,
                tensor="d2t",
                code="draft",
                expected=f"0 to {config.llama.vocab_size - 1}",
                found=outside[0],
            )
        self._shared = [] if self.embedding is not None else [model.get_input_embeddings()]  # not a submodule

    def _norm(self, stored: Any) -> LlamaRMSNorm:
        norm = LlamaRMSNorm(self.config.llama.hidden_size, eps=self.config.llama.rms_norm_eps)
        norm.weight = stored.weight
        return norm

    def _embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Embed tokens, without Gemma's embedding scale: its draft heads are trained without it."""
        if self.embedding is not None:
            return self.embedding(ids)
        shared = self._shared[0]
        scale = getattr(shared, "scale", None) or getattr(shared, "scalar_embed_scale", None) or 1.0
        return shared(ids) / scale

    def forward(self, states: torch.Tensor, ids: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        """Run the layer on hidden states and the tokens that follow them; the cache holds earlier positions."""
        past, count = cache.get_seq_length(), ids.shape[1]
        hidden = self.hidden_norm(states)
        residual = hidden if self.config.norm_before_residual else states
        both = torch.cat((self.input_norm(self._embed(ids).to(hidden.dtype)), hidden), dim=-1)
        positions = torch.arange(past, past + count, device=ids.device)[None]
        mask = None
        if past and count > 1:  # torch's causal mask aligns to the first key
            mask = torch.ones(count, past + count, dtype=torch.bool, device=ids.device).tril(past)[None, None]
        mixed, _ = self.attention(
            both, position_embeddings=self.rotary(both, positions), attention_mask=mask, past_key_values=cache
        )
        output = residual + mixed
        return output + self.mlp(self.middle_norm(output))

    def propose(self, states: torch.Tensor, ids: torch.Tensor, cache: DynamicCache, count: int) -> torch.Tensor:
        """Propose a chain of tokens [1, count].

        Parameters
        ----------
        states
            Hidden states of the model's layers, concatenated, at the positions that the cache lacks.
        ids
            The tokens that follow these positions.
        cache
            Cache of the head; these positions are added.
        count
            Number of tokens to propose.
        """
        states, chain = self.fc(states), ids[:, :0]
        kept = cache.get_seq_length() + ids.shape[1]
        for _ in range(count):
            states = self(states, ids, cache)[:, -1:]
            ids = self.target_ids[self.lm_head(self.norm(states)).argmax(-1)]
            chain = torch.cat((chain, ids), dim=1)
        if (ahead := cache.get_seq_length() - kept) > 0:
            cache.crop(-ahead)
        return chain
