"""LoRA adapters of a family, in PEFT's and GGUF's names and files; built from the rows of the family's models."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from typing import Any

import numpy as np
from attrs import evolve
from squish_convert.api import (
    ANY,
    Carried,
    Expression,
    Family,
    FamilyTensor,
    Interleave,
    Join,
    Model,
    Permute,
    Rule,
    Stack,
    Tile,
    Transpose,
    source_names,
)

from squish_core.api import Dropped, ErrorCode, FormatError, Options, TensorError, Typed

from .adapter_config import CONFIG, MERGE, MERGE_HERE, ONLY_MATRICES, check_config, invocation_tokens
from .config.keys import MAX_F32
from .keep import kept_files, restored_files
from .settings import TextSettings

PEFT, BASE = "base_model.model.", "config.json"
WEIGHT, HEAD = ".weight", "lm_head"
EMBEDDINGS = ("token_embd", "position_embd", "per_layer_token_embd")
SUFFIXES = {"lora_a": ".lora_A.weight", "lora_b": ".lora_B.weight"}
"""GGUF's suffix -> PEFT's. B has the rows of the weight, A its columns."""
ALPHA = "adapter.lora.alpha"
INVOCATION = "adapter.alora.invocation_tokens"
READ = ("general.architecture", "general.type", "adapter.type", ALPHA, INVOCATION)
"""GGUF's keys that PEFT's config also states."""
STORAGE = ("general.file_type", "general.quantization_version", "general.alignment")
"""GGUF's keys about the file."""
TRANSPOSED = "fan_in_fan_out"
"""PEFT's setting for matrices that are stored as [in, out]."""
_BASE_WEIGHT = re.compile(r"\.(?:base_layer|original_module)\.(?!.*lora_)")
"""The base model's weight, which PEFT saves next to the matrices of an embedding or head."""
_OF_ADAPTER = re.compile(r"(?<=\.lora_[AB])\.[^.]+(?=\.weight$)")
"""The name of the adapter in the names of a model's state."""
_EXPERTS = re.compile(r"\bexperts\.")
_MODULE = f"is a whole module (modules_to_save), {ONLY_MATRICES}"
UNADAPTABLE = {
    r"\.modules_to_save\.": _MODULE,
    r"lora_embedding_[AB]|\b(?:embed_token\w*|wte|word_embeddings)\b": "belongs to the embeddings (embed_tokens), and "
                                                                     "Squish maps adapters of other matrices only",
    r"\.lora_magnitude_vector": "is DoRA's scale of columns (use_dora), and llama.cpp only adds",
    r"\.lora_B\..*bias$": f"is a bias (lora_bias), {ONLY_MATRICES}",
    r"\bexperts\.(?:base_layer\.)?(?:gate_up_proj\.|down_proj\.)?lora_": "adapts fused experts (target_parameters), "
                                                                       "whose matrices GGUF stores differently",
    r"(?:norm[^.]*|\.ln_\w+)\.weight$": "is a norm, which llama.cpp ignores in an adapter",
    r"\b(?:lm_head|score|classifier)\.weight$": _MODULE,
}  # fmt: skip
"""Pattern of PEFT's names -> what the tensor is, and why an adapter in GGUF cannot have it."""
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


class Adapter(Family):
    """Adapters of a family: two optional matrices for each matrix of the model.

    Parameters
    ----------
    base
        The family of the models.
    """

    remainder = "not part of the text model's adapter"

    def __init__(self, base: TextSettings) -> None:
        self.id, self.base = base.id, base
        self.architecture = base.architecture

    @cached_property
    def tensors(self) -> Sequence[FamilyTensor]:  # type: ignore[override]
        shapes = {
            tensor.name: tensor.shape[::-1] if tensor.name in self._transposed else tensor.shape
            for tensor in self.base.tensors
            if tensor.name in self._linear
        }
        pairs = {name: {"lora_a": (ANY, columns), "lora_b": (rows, ANY)} for name, (rows, columns) in shapes.items()}
        return tuple(
            FamilyTensor(_peft(name, suffix), shape, required=False)
            for name, pair in pairs.items()
            for suffix, shape in pair.items()
        )

    def own_name(self, name: str) -> str:
        """Return PEFT's name in a text-only model, without the name of the adapter."""
        if not name.startswith(PEFT):
            return name
        return f"{PEFT}{self.base.own_name(_OF_ADAPTER.sub('', name.removeprefix(PEFT)))}"

    @property
    def other_modalities(self) -> Sequence[str]:  # type: ignore[override]
        return [f"{PEFT}{pattern}" for pattern in self.base.other_modalities]

    @cached_property
    def _linear(self) -> AbstractSet[str]:
        """The matrices that GGUF stores alone or in a stack of experts, without the embeddings."""
        matrices = {tensor.name for tensor in self.base.tensors if len(tensor.shape) == 2}
        rules = [
            rule
            for rule in self.base.names["gguf"]
            if not rule.reading and not rule.name.startswith(EMBEDDINGS) and not _is_fused(rule.of)
        ]
        return {name for rule in rules for name in source_names(rule.of) if name in matrices and name.endswith(WEIGHT)}

    @cached_property
    def _transposed(self) -> AbstractSet[str]:
        """The matrices that Hugging Face stores as [in, out]; A and B belong to the transpose."""
        return {
            rule.of.of
            for rule in self.base.names["gguf"]
            if isinstance(rule.of, Transpose) and isinstance(rule.of.of, str) and rule.of.of in self._linear
        }

    @cached_property
    def names(self) -> Mapping[str, Sequence[Rule]]:  # type: ignore[override]
        written = [
            rule for rule in self.base.names["gguf"] if not rule.reading and set(source_names(rule.of)) <= self._linear
        ]
        rules = [Rule(f"{rule.name}.{suffix}", _half(rule.of, suffix)) for rule in written for suffix in SUFFIXES]
        return {"gguf": tuple(rules)}

    def settings(self, model: Model) -> Mapping[str, Any]:
        stated = model.value("general.architecture")
        if model.layout == "gguf" and stated != self.architecture:
            raise FormatError(
                "is the config of another model",
                part=BASE,
                code=ErrorCode.CONTRADICTION,
                expected=stated,
                found=self.architecture,
            )
        if model.layout != "gguf":
            check_config(model.config(CONFIG))
            _check_names(model.tensors)
        return self.base.settings(evolve(model, layout="hf", tensors={}))

    def left_out(self, settings: Mapping[str, Any]) -> Sequence[str]:
        """Return patterns for the base model's weights; `carry` lists them."""
        return ("*.original_module.*", "*.base_layer.weight*", "*.base_layer.bias*")

    def sizes(self, settings: Mapping[str, Any]) -> Mapping[str, int]:
        return self.base.sizes(settings)

    def carry(self, model: Model, settings: Mapping[str, Any], layout: str, options: Options) -> Carried:
        ranks = _ranks(self, model)
        if any(HEAD in name or name.startswith("output.") for name in ranks) and settings["tie_word_embeddings"]:
            raise FormatError(
                "adapts the head of a model whose head is tied to its embeddings",
                part=CONFIG,
                code="adapter",
                hint="llama.cpp has no such tensor.",
            )
        if layout != "gguf":
            modules = {self._module(name): rank for name, rank in ranks.items()}
            return _to_peft(model, modules, bool(self._transposed))
        if ignored := [name for name in ranks if name.rpartition(".")[2] in self.base.unadapted]:
            raise TensorError(
                f"adapts a projection to which llama.cpp applies no adapter of {self.id}",
                tensor=ignored[0],
                code="adapter",
                found=f"{len(ignored)} such of {len(ranks)}",
                hint=MERGE_HERE,
            )
        config = model.config(CONFIG)
        alpha = _alpha(config, ranks, bool(self._transposed))
        keys: dict[str, Any] = {
            "general.architecture": Typed("str", self.architecture), "general.type": Typed("str", "adapter"),
            "adapter.type": Typed("str", "lora"), ALPHA: Typed("f32", alpha),
        }  # fmt: skip
        if tokens := invocation_tokens(config):
            keys[INVOCATION] = Typed("array:u32", np.array(tokens, np.uint32))
        if options.get("keep") != "no":
            keys |= kept_files({CONFIG: model.assets[CONFIG]}, [CONFIG])
        return Carried(meta=keys)

    def _module(self, name: str) -> str:
        """Return PEFT's name for the module of a pair of matrices, from either name; for experts, a pattern."""
        template = self._modules.get(_NUMBER.sub("#", name), name)
        numbers = iter(_NUMBER.findall(name))
        return template.replace("{n}", next(numbers, "")).replace("{e}", r"\d+").removeprefix(PEFT)

    @cached_property
    def _modules(self) -> dict[str, str]:
        """GGUF's name of a matrix, `#` for the layer -> PEFT's module."""
        rules = [rule for rule in self.names["gguf"] if rule.name.endswith(".lora_a")]
        return {
            rule.name.removesuffix(".lora_a").replace("{n}", "#"): next(source_names(rule.of)).removesuffix(
                SUFFIXES["lora_a"]
            )
            for rule in rules
        }


def _peft(name: str, suffix: str) -> str:
    return f"{PEFT}{name.removesuffix(WEIGHT)}{SUFFIXES[suffix]}"


def _is_fused(expression: Expression) -> bool:
    """Return whether GGUF has several matrices as one, whose low-rank changes no pair of matrices expresses."""
    while not isinstance(expression, str | Join | Interleave):
        expression = expression.of
    return not isinstance(expression, str)


def _half(expression: Expression, suffix: str) -> Expression:
    """Return A or B for the tensors of an expression: B permutes rows, A columns, and both stack experts."""
    if isinstance(expression, str):
        return _peft(expression, suffix)
    if isinstance(expression, Stack):
        return Stack(_half(expression.of, suffix))
    if isinstance(expression, Transpose):
        return _half(expression.of, suffix)
    if isinstance(expression, Permute):
        inner = _half(expression.of, suffix)
        return Permute(inner, expression.heads) if suffix == "lora_b" else inner
    if isinstance(expression, Tile):
        inner = _half(expression.of, suffix)
        return evolve(expression, of=inner) if suffix == ("lora_a" if expression.columns else "lora_b") else inner
    raise TypeError(f"an adapter cannot express {type(expression).__name__}")


def _check_names(names: Iterable[str]) -> None:
    """Raise TensorError for a tensor that an adapter in GGUF cannot have, with the reason."""
    for name in names:
        if _BASE_WEIGHT.search(name) or (name.endswith(tuple(SUFFIXES.values())) and not _EXPERTS.search(name)):
            continue
        for pattern, reason in UNADAPTABLE.items():
            if re.search(pattern, name):
                raise TensorError(reason, tensor=name, code="adapter", hint=MERGE)


def _ranks(adapter: Adapter, model: Model) -> dict[str, int]:
    """Return module -> rank; TensorError if A and B disagree or one is missing."""
    endings = [f".{suffix}" for suffix in SUFFIXES] if model.layout == "gguf" else list(SUFFIXES.values())
    halves: dict[str, dict[int, int]] = {}
    for stored, spec in model.tensors.items():
        name = adapter.own_name(stored)
        side = next((number for number, ending in enumerate(endings) if name.endswith(ending)), None)
        if side is not None and len(spec.shape) >= 2:
            rank = spec.shape[-1] if side else spec.shape[-2]
            halves.setdefault(name.removesuffix(endings[side]), {})[side] = rank
    for module, pair in halves.items():
        if set(pair) != {0, 1} or pair[0] != pair[1]:
            raise TensorError(
                "needs two matrices of the same rank",
                tensor=module,
                code="adapter",
                expected="A [rank, in] and B [out, rank]",
                found=f"ranks {list(pair.values())}",
            )
    return {module: pair[0] for module, pair in halves.items()}


def _alpha(config: Mapping[str, Any], ranks: Mapping[str, int], transposed: bool) -> float:
    """Return GGUF's alpha, which llama.cpp divides by each pair's rank; FormatError if no alpha matches PEFT's scale.

    `transposed`: the model stores matrices as [in, out], which PEFT assumes even without `fan_in_fan_out`.
    """
    if config.get(TRANSPOSED) and not transposed:
        raise FormatError(
            "declares matrices as [in, out], but this family stores them as [out, in]",
            part=f"{CONFIG} {TRANSPOSED}",
            expected=False,
            found=repr(config[TRANSPOSED])[:60],
            code="adapter",
        )
    alpha, rank = config.get("lora_alpha"), config.get("r")
    for key, value in (("lora_alpha", alpha), ("r", rank)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= MAX_F32:
            raise FormatError(
                "is not a positive number", part=f"{CONFIG} {key}", found=repr(value)[:60], code="adapter"
            )
    assert alpha is not None
    if not config.get("rank_pattern") and (other := next((m for m, r in ranks.items() if r != rank), None)):
        raise FormatError(
            "does not match the rank of the tensors",
            part=f"{CONFIG} r",
            expected=ranks[other],
            found=rank,
            code=ErrorCode.CONTRADICTION,
        )
    if not config.get("use_rslora"):
        return float(alpha)
    if len(set(ranks.values())) > 1:
        raise FormatError(
            "scales by the root of the rank, but the ranks differ", part=f"{CONFIG} use_rslora", code="adapter"
        )
    return float(alpha) * math.sqrt(next(iter(ranks.values()), 1))  # so that llama.cpp computes alpha / sqrt(r)


def _to_peft(model: Model, ranks: Mapping[str, int], transposed: bool) -> Carried:
    """Return PEFT's files: the source's, or those stored in the GGUF, or files built from GGUF's keys."""
    if model.layout != "gguf":
        return Carried(meta=model.meta, assets={CONFIG: model.assets[CONFIG]})
    files, _ = restored_files(model.meta)
    alpha = model.value(ALPHA, 0.0)
    if not isinstance(alpha, (int, float)) or not 0 <= alpha < math.inf or model.value("adapter.type") != "lora":
        raise FormatError("is not a LoRA adapter with an alpha", part=ALPHA, found=repr(alpha)[:60], code="adapter")
    tokens = [int(token) for token in model.value(INVOCATION, ())]
    if CONFIG in files and _config_agrees(files[CONFIG], ranks, alpha, transposed, tokens):
        data = files[CONFIG]
    else:
        config = _peft_config(ranks, float(alpha), transposed)
        data = (
            json.dumps({**config, **({"alora_invocation_tokens": tokens} if tokens else {})}, indent=2) + "\n"
        ).encode()
    dropped = tuple(
        Dropped("metadata", key) for key in model.meta if key not in (*READ, *STORAGE) and not key.startswith("squish.")
    )
    return Carried(meta={"format": "pt"}, assets={CONFIG: data}, dropped=dropped)


def _config_agrees(data: bytes, ranks: Mapping[str, int], alpha: float, transposed: bool, tokens: list[int]) -> bool:
    """Return whether a stored config still matches GGUF's alpha and invocation tokens."""
    try:
        config = json.loads(data)
        return invocation_tokens(config) == tokens and math.isclose(
            _alpha(config, ranks, transposed), alpha, rel_tol=1e-6
        )
    except (FormatError, ValueError):
        return False


def _peft_config(ranks: Mapping[str, int], alpha: float, transposed: bool) -> dict[str, Any]:
    """Return an adapter_config.json for GGUF's keys. Without an alpha llama.cpp scales by 1, as with alpha = rank."""
    sizes = sorted(set(ranks.values())) or [1]
    if not alpha and len(sizes) > 1:
        raise FormatError("is missing, although the ranks differ", part=ALPHA, found=sizes[:8], code="adapter")
    common = max(sizes, key=list(ranks.values()).count)
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "",
        "r": common,
        "lora_alpha": alpha or common,
        "lora_dropout": 0.0,
        "bias": "none",
        TRANSPOSED: transposed,
        "inference_mode": True,
        "target_modules": sorted({module.rpartition(".")[2] for module in ranks}),
        "rank_pattern": {module: rank for module, rank in ranks.items() if rank != common},
    }
