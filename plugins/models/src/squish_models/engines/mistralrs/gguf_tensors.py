"""Tensors of a GGUF under the names by which mistral.rs reads them, and the shapes that it computes with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

from squish_core.api import ErrorCode, Problem, TensorSpec

from ..requirements import MISTRAL_GGML
from ..types import matches
from .numbers import COUNTS
from .tensors import EMBEDDINGS, FACTORS, FLOATS, LAYERS, NORMS, Need, Settings, head_size, needs

MXFP4 = "ggml.mxfp4"
ROOT = {
    "token_embd.weight": EMBEDDINGS, "rope_freqs.weight": FACTORS, "output.weight": "lm_head.weight",
    "output.bias": "lm_head.bias", "rope_factors_long.weight": "model.rope_factors_long.weight",
    "rope_factors_short.weight": "model.rope_factors_short.weight", "output_norm.weight": "model.norm.weight",
    "output_norm.bias": "model.norm.bias",
}  # fmt: skip
ATTENTION = {f"attn_{each}": f"self_attn.{each}_proj" for each in "qkv"}
GATED = {f"ffn_{each}": f"mlp.{each}_proj" for each in ("gate", "up", "down")}
ROLES = {
    **ATTENTION, **GATED, "attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "post_attention_layernorm", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "attn_sinks": "self_attn.sinks",
    "ffn_gate_inp": "mlp.gate", **{f"{role}_exps": f"mlp.experts.{name[4:]}" for role, name in GATED.items()},
}  # fmt: skip
"""Tensor of a layer -> its name in a folder."""
MERGED = {"ffn_gate": "", "ffn_up": "mlp.gate_up_proj"}
OWN_ROLES: dict[str, dict[str, str]] = {
    "MixtralForCausalLM": {
        "ffn_gate_inp": "block_sparse_moe.gate",
        **{f"{role}_exps": f"block_sparse_moe.experts.{name[4:]}" for role, name in GATED.items()},
    },
    "Gemma2ForCausalLM": {"ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm"},
    "Glm4ForCausalLM": {
        **MERGED, "post_attention_norm": "post_self_attn_layernorm", "post_ffw_norm": "post_mlp_layernorm"
    },
    "Phi3ForCausalLM": {**MERGED, **dict.fromkeys(ATTENTION, ""), "attn_qkv": "self_attn.qkv_proj"},
    "GptOssForCausalLM": {"ffn_gate_inp": "mlp.router"},
    "Glm4MoeForCausalLM": {
        **{f"{role}_shexp": f"mlp.shared_experts.{name[4:]}" for role, name in GATED.items()},
        "exp_probs_b": "mlp.gate.e_score_correction_bias",
    },
    "HunYuanDenseV1ForCausalLM": {
        "attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"
    },
    "Starcoder2ForCausalLM": {"ffn_gate": "", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
    "Lfm2ForCausalLM": {
        "attn_norm": "operator_norm", "ffn_norm": "ffn_norm", "attn_output": "self_attn.out_proj",
        "attn_q_norm": "self_attn.q_layernorm", "attn_k_norm": "self_attn.k_layernorm",
        **{f"ffn_{role}": f"feed_forward.{name}" for role, name in (("gate", "w1"), ("up", "w3"), ("down", "w2"))},
        **{f"shortconv.{each}": f"conv.{each}" for each in ("in_proj", "out_proj", "conv")},
    },
}  # fmt: skip
OWN_ROLES["Gemma3ForCausalLM"] = OWN_ROLES["Gemma2ForCausalLM"]
OWN_ROLES["Lfm2MoeForCausalLM"] = OWN_ROLES["Lfm2ForCausalLM"] | {
    "ffn_gate_inp": "feed_forward.gate", "exp_probs_b": "feed_forward.expert_bias",
    **{f"{role}_exps": f"feed_forward.experts.{name[4:]}" for role, name in GATED.items()},
    "ffn_gate_up_exps": "feed_forward.experts.gate_up_proj",
}  # fmt: skip
WHOLE = ("attn_sinks", "exp_probs_b")
"""Tensors of a layer whose name in a folder has no suffix."""
INNER = {
    "mlp.up_proj": ("intermediate_size", 1), "mlp.gate_up_proj": ("intermediate_size", 2),
    "mlp.c_fc": ("intermediate_size", 1), "feed_forward.w3": ("block_ff_dim", 1),
    "block_sparse_moe.experts.0.up_proj": ("intermediate_size", 1),
    "feed_forward.experts.0.up_proj": ("moe_intermediate_size", 1),
    "mlp.experts.0.up_proj": ("moe_intermediate_size", 1), "mlp.experts.up_proj": ("intermediate_size", 1),
}  # fmt: skip
"""Matrix of a layer whose rows, not the settings, determine the inner size -> the setting, and number of matrices."""
MOST = 1000
"""Number of missing tensors after which the search stops."""
MOST_EXPERTS = 1 << 14
"""Number of experts that are checked one by one; no model has a tenth of them."""
FREE_ROWS = (EMBEDDINGS, "lm_head.weight")
LAYER = re.compile(r"blk\.(\d+)\.(.+)\.(weight|bias)")
PLACE = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
EXPERT = re.compile(r"\.experts\.\d+\.")


@frozen
class Bound:
    """A tensor under its name in a folder: the tensor of the file, and its shape."""

    source: str
    shape: tuple[int, ...]


class Binding:
    """The tensors that mistral.rs reads from a file for a class."""

    def __init__(self, name: str, settings: Settings, tensors: Mapping[str, TensorSpec]) -> None:
        self.name, self.settings, self.tensors = name, settings, tensors
        self.roles = {**ROLES, **OWN_ROLES.get(name, {})}
        self.bound: dict[str, Bound] = {}
        self.problems: list[Problem] = []
        self.coded: set[str] = set()
        self.unread: dict[str, list[str]] = {}
        for stored in tensors:
            for target in self._targets(stored):
                self._bind(target, stored)
        for layer in range(settings["num_hidden_layers"]):
            self._merge(f"blk.{layer}.", f"model.layers.{layer}.")

    def _targets(self, stored: str) -> Iterator[str]:
        if stored in ROOT and not (self.name in NORMS and stored.startswith("output_norm")):
            yield ROOT[stored]
        elif stored == "token_embd_norm.weight" and self.name in NORMS:
            yield "model.embedding_norm.weight"
        match = LAYER.fullmatch(stored)
        role = self.roles.get(match[2]) if match else None
        if match and role and int(match[1]) < self.settings["num_hidden_layers"]:
            yield f"model.layers.{match[1]}.{role}" + ("" if match[2] in WHOLE else f".{match[3]}")

    def _bind(self, target: str, stored: str) -> None:
        """Bind a tensor, which must have a type that mistral.rs reads even if no layer uses it."""
        spec = self.tensors[stored]
        codec = spec.encodings[0].codec.id if spec.encodings else ""
        if codec == MXFP4 and ".experts." in target and self.name == "GptOssForCausalLM":
            self.coded.add(target)
            self.bound[target] = Bound(stored, spec.shape)
            return
        is_read = spec.dtype in FLOATS if codec == "dense" else matches(codec, MISTRAL_GGML)
        if not is_read:
            kind = spec.dtype if codec in ("", "dense") else codec
            self.unread.setdefault(kind, []).append(stored)
        shape = spec.shape
        if target.endswith(".conv.conv.weight") and len(shape) == 2:
            shape = (shape[0], 1, shape[1])
        if ".experts." in target and target.endswith(".weight") and self.name != "GptOssForCausalLM":
            self._bind_experts(target, stored, shape)
        else:
            self.bound[target] = Bound(stored, shape)

    def _bind_experts(self, target: str, stored: str, shape: tuple[int, ...]) -> None:
        """Bind a tensor of all experts as one tensor per expert."""
        count = next((self.settings[name] for name in COUNTS if name in self.settings), 0)
        if len(shape) != 3 or shape[0] < count or count > MOST_EXPERTS:
            message = f"has the shape {list(shape)}, and mistral.rs expects one of three sizes with {count} experts"
            self.problems.append(_contradiction(stored, message))
            count = 0
        for number in range(count):
            place = target.replace(".experts.", f".experts.{number}.")
            if ".gate_up_proj." in place:
                half = Bound(stored, (shape[1] // 2, *shape[2:]))
                self.bound |= {place.replace("gate_up", each): half for each in ("gate", "up")}
            else:
                self.bound[place] = Bound(stored, shape[1:])

    def _merge(self, source: str, target: str) -> None:
        """Concatenate and split the matrices of a layer as mistral.rs does."""
        for suffix in ("weight", "bias"):
            if self.name == "Phi3ForCausalLM" and f"{source}attn_qkv.{suffix}" not in self.tensors:
                parts = [f"{source}{each}.{suffix}" for each in ATTENTION]
                self._join(parts, f"{target}self_attn.qkv_proj.{suffix}")
            if self.name == "Glm4ForCausalLM":
                self._split(f"{source}attn_qkv.{suffix}", target, suffix)
            if self.name in ("Phi3ForCausalLM", "Glm4ForCausalLM"):
                self._join([f"{source}{each}.{suffix}" for each in MERGED], f"{target}mlp.gate_up_proj.{suffix}")

    def _join(self, parts: list[str], target: str) -> None:
        if not all(part in self.tensors for part in parts):
            return
        for part in parts:
            self._bind(target, part)
        specs = [self.tensors[part] for part in parts]
        codecs = {spec.encodings[0].codec.id for spec in specs if spec.encodings}
        if len({(spec.shape[1:], len(spec.shape)) for spec in specs}) > 1 or (
            "dense" not in codecs and len(codecs) > 1
        ):
            self.problems.append(_contradiction(parts[0], f"does not fit {parts[1]}, which mistral.rs puts below it"))
        first = specs[0].shape
        self.bound[target] = Bound(parts[-1], (sum(spec.shape[0] for spec in specs if spec.shape), *first[1:]))

    def _split(self, stored: str, target: str, suffix: str) -> None:
        if stored not in self.tensors:
            return
        head = head_size(self.settings)
        heads, groups = self.settings["num_attention_heads"], self.settings["num_key_value_heads"]
        self._bind(f"{target}self_attn.qkv.{suffix}", stored)
        shape = self.tensors[stored].shape
        for name, rows in (("q", heads), ("k", groups), ("v", groups)):
            self.bound[f"{target}self_attn.{name}_proj.{suffix}"] = Bound(stored, (rows * head, *shape[1:]))
        if not shape or shape[0] != (heads + 2 * groups) * head:
            message = f"has the shape {list(shape)}, and mistral.rs expects {(heads + 2 * groups) * head} rows"
            self.problems.append(_contradiction(stored, message))

    def needs(self) -> Iterator[Need]:
        """Yield every tensor that is read; the inner sizes of a layer are those of its tensors."""
        shapes = {name: each.shape for name, each in self.bound.items()}
        yield from needs(self.name, {**self.settings, "num_hidden_layers": 0}, shapes)
        for layer in range(self.settings["num_hidden_layers"]):
            prefix = f"model.layers.{layer}."
            layer_settings: dict[str, Any] = dict(self.settings)
            for matrix, (setting, count) in INNER.items():
                shape = shapes.get(f"{prefix}{matrix}.weight", ())
                if len(shape) == (3 if matrix == "mlp.experts.up_proj" else 2):
                    layer_settings[setting] = shape[-2] // count
            yield from LAYERS[self.name](layer_settings, prefix, layer, shapes)

    def source(self, target: str) -> str:
        """Return the name of the file's tensor for a name in a folder."""
        root = next((stored for stored, name in ROOT.items() if name == target), None)
        match = PLACE.fullmatch(EXPERT.sub(".experts.", target))
        if root or not match:
            return root or target.replace("model.embedding_norm", "token_embd_norm")
        role = next((stored for stored, name in reversed(self.roles.items()) if name == match[2]), match[2])
        return f"blk.{match[1]}.{role}.{match[3]}"


def tensor_problems(binding: Binding) -> Iterator[Problem]:
    """Yield tensors that are missing, or have another type or shape."""
    for kind, names in binding.unread.items():
        more = f"; so are {len(names) - 1} more" if len(names) > 1 else ""
        message = f"is stored as {kind}, which mistral.rs does not run{more}"
        yield Problem(code="engine-type", severity="error", where=names[0], message=message)
    yield from binding.problems
    if binding.name == "GptOssForCausalLM":
        yield from _expert_problems(binding)
    read: set[str] = set()
    missing = 0
    for need in binding.needs():
        read.add(need.name)
        missing += need.name not in binding.bound
        if missing > MOST:
            break
        bound = binding.bound.get(need.name)
        if bound is None:
            where = binding.source(need.name)
            if not need.may_miss:
                yield _missing(where, "is missing, and mistral.rs does not load without it", "error")
            elif where.endswith(".bias"):
                yield _missing(where, "is missing, and mistral.rs computes without it", "warning")
        elif not _fits(need, bound.shape):
            message = f"has the shape {list(bound.shape)}, and mistral.rs expects {list(need.shape)}"
            yield _contradiction(bound.source, message)
        bias = f"{need.name.removesuffix('.weight')}.bias"
        if need.is_coded and bias in binding.bound and bias not in read:
            read.add(bias)
            rows = bound.shape[0] if bound is not None and bound.shape else need.shape[0]
            if not _fits(Need(bias, (rows,), may_miss=True), binding.bound[bias].shape):
                message = f"has the shape {list(binding.bound[bias].shape)}, and mistral.rs expects {rows} values"
                yield _contradiction(binding.bound[bias].source, message)
    if binding.name == "Phi3ForCausalLM":
        yield from _factor_problems(binding)


def _expert_problems(binding: Binding) -> Iterator[Problem]:
    """Yield problems of gpt-oss experts: MXFP4 codes of two matrices are read together, and require biases."""
    for target, bound in binding.bound.items():
        if ".mlp.experts." not in target or not target.endswith(".weight"):
            continue
        other = re.sub("(gate|up)_proj", lambda match: "up_proj" if match[1] == "gate" else "gate_proj", target)
        is_coded, bias = target in binding.coded, binding.bound.get(target.removesuffix(".weight") + ".bias")
        if is_coded and other not in binding.coded:
            yield _contradiction(bound.source, f"is of MXFP4 codes, and {binding.source(other)} is not")
        if bias is None and is_coded:
            name = bound.source.removesuffix(".weight") + ".bias"
            yield _missing(name, "is missing, and mistral.rs does not load without it", "error")
        elif bias is not None and bias.shape != bound.shape[:-1]:
            message = f"has the shape {list(bias.shape)}, and mistral.rs expects {list(bound.shape[:-1])}"
            yield _contradiction(bias.source, message)


def _fits(need: Need, shape: tuple[int, ...]) -> bool:
    if need.name == FACTORS:
        return _count(shape) == need.shape[0]
    if need.may_miss and need.name.endswith(".bias"):
        return bool(shape) and shape[-1] == need.shape[-1] and _count(shape) == shape[-1]
    if need.name in FREE_ROWS and len(shape) == 2:
        return shape[1] == need.shape[1]
    if need.name.endswith(".qkv_proj.weight") and len(shape) == 2:
        return shape[0] >= need.shape[0] and shape[1] == need.shape[1]
    return shape == need.shape


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _factor_problems(binding: Binding) -> Iterator[Problem]:
    """Yield LongRoPE factors that do not have one value for each pair of rotated rows."""
    share = binding.settings["partial_rotary_factor"]
    count = int(head_size(binding.settings) * (1.0 if share is None else share)) // 2
    for kind in ("long", "short"):
        bound = binding.bound.get(f"model.rope_factors_{kind}.weight")
        if bound is not None and _count(bound.shape) != count:
            yield _contradiction(
                bound.source, f"has the shape {list(bound.shape)}, and mistral.rs expects {count} factors"
            )


def embedding_rows(binding: Binding) -> int | None:
    """Return how many tokens have an embedding."""
    bound = binding.bound.get(EMBEDDINGS)
    return bound.shape[0] if bound is not None and bound.shape else None


def spare(binding: Binding) -> Iterator[Problem]:
    """Yield biases and norms of layers that mistral.rs ignores."""
    read = {binding.bound[need.name].source for need in binding.needs() if need.name in binding.bound}
    read |= {binding.bound[name].source for name in binding.bound if name.endswith(".bias")}
    for name in sorted(set(binding.tensors) - read):
        match = LAYER.fullmatch(name)
        if match and int(match[1]) < binding.settings["num_hidden_layers"]:
            yield _missing(name, "is not a parameter of the model in mistral.rs", "warning")


def _missing(name: str, message: str, severity: str) -> Problem:
    return Problem(code="engine-tensor", severity=severity, where=name, message=message)


def _contradiction(name: str, message: str) -> Problem:
    return Problem(code=ErrorCode.CONTRADICTION, severity="error", where=name, message=message)
