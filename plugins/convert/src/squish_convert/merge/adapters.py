"""LoRA adapters as PEFT and llama.cpp store them: pairs of matrices with what they adapt, and their scales."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import evolve, frozen

from squish_core import dtypes
from squish_core.codes import ErrorCode
from squish_core.errors import FormatError, TensorError
from squish_core.file import File
from squish_core.formats.metadata import untyped
from squish_core.model import DENSE, TensorSpec

from ..adapter_config import check_adapter_config
from ..families import GGUF, HF, Model
from ..mapping.mapped import ADAPTER_FILE as CONFIG
from ..mapping.tensors import dense

PEFT, WEIGHT = "base_model.model.", ".weight"
ALPHA, TYPE, INVOCATION = "adapter.lora.alpha", "adapter.type", "adapter.alora.invocation_tokens"
SUFFIXES = {
    HF: re.compile(r"(?P<module>.+)\.lora_(?P<table>embedding_)?(?P<half>[AB])(?:\.[^.]+)?(?(table)|\.weight)"),
    GGUF: re.compile(r"(?P<module>.+)\.lora_(?P<table>(?!))?(?P<half>[ab])"),
}
"""Layout -> name of a matrix: A has the columns of the weight, B its rows, and in an embedding the reverse. PEFT may
put the name of the adapter behind the half."""
BASE_WEIGHT = re.compile(r"\.(?:base_layer|original_module)\.(?!.*lora_)")
"""The base model's own weights, which PEFT saves beside the matrices of an embedding or head."""
GGUF_TABLES = ("token_embd.weight",)
"""Tensors whose halves llama.cpp stores as those of a table: A is [rows, rank], B [columns, rank]."""
APPLIED = frozenset(
    {"peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "fan_in_fan_out"}
)  # fmt: skip
"""Settings of PEFT that merging applies."""
SPOKEN = "is added only after certain tokens, which a merged model cannot do"
REFUSED = {
    "modules_to_save": "holds whole modules, and only pairs of matrices are merged",
    "trainable_token_indices": "holds rows of the embeddings, and only pairs of matrices are merged",
    "target_parameters": "adapts parameters of fused experts, and only matrices of their own are merged",
    "layer_replication": "repeats layers of the base model",
    "use_dora": "is a DoRA adapter, which scales the columns of the weights",
    "bias": "has biases, and only pairs of matrices are merged",
    "lora_bias": "has biases, and only pairs of matrices are merged",
    "alora_invocation_tokens": SPOKEN,
    "invocation_string": SPOKEN,
}
"""Setting of PEFT -> why an adapter that has it is not merged."""
OTHERS = {
    r"\.lora_magnitude_vector": REFUSED["use_dora"],
    r"\.lora_B\..*bias$|\.bias$": REFUSED["bias"],
    "": REFUSED["modules_to_save"],
}
"""Pattern of the name of a tensor that is not one of a pair -> what an adapter with it does."""
PATTERN = re.compile(r"[\w.\\^$|*+-]{1,256}")
"""A pattern of PEFT that takes no exponential time: one without groups."""
BY_PEFT = "PEFT merges it: load the model and the adapter there, call merge_and_unload(), and convert what it saves."


@frozen(kw_only=True)
class Pair:
    """The product of two matrices, [rows, rank] and [rank, columns], that an adapter adds to a tensor.

    Attributes
    ----------
    target
        The tensor, in the layout of the adapter.
    left, right
        The matrices, as dense tensors.
    left_turned, right_turned
        Whether they are stored transposed.
    scale
        The number by which the product is multiplied.
    first
        The row of the tensor to which the first row is added; None if the product has all rows of the tensor.
    member
        The number of the matrix in a stack; None for a single matrix.
    """

    target: str
    left: TensorSpec
    right: TensorSpec
    left_turned: bool = False
    right_turned: bool = False
    scale: float = 1.0
    first: int | None = None
    member: int | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the product."""
        return self.left.shape[-1 if self.left_turned else -2], self.right.shape[-2 if self.right_turned else -1]

    @property
    def rank(self) -> int:
        """Columns of the first matrix."""
        return self.left.shape[-2 if self.left_turned else -1]

    @property
    def transposed(self) -> Pair:
        """The transposed product."""
        return evolve(
            self,
            left=self.right,
            left_turned=not self.right_turned,
            right=self.left,
            right_turned=not self.left_turned,
        )


@frozen(kw_only=True)
class Scaling:
    """How an adapter's scale follows from its ranks.

    `alpha` is None if the products are added as they are, `alphas` has those of modules by pattern. `ranks`: the ranks
    that the settings state, if they do. `fan_in_fan_out`: the model stores matrices as [in, out]. `ties_heads`: what is
    added to the embeddings is added to a head that is tied to them, too.
    """

    alpha: float | None
    alphas: Mapping[str, float]
    by_root: bool = False
    ranks: frozenset[int] = frozenset()
    fan_in_fan_out: bool = False
    ties_heads: bool = False

    def of(self, module: str, rank: int) -> float:
        """Return the scale of the pair of a module."""
        alpha = next((value for key, value in self.alphas.items() if is_named(module, key)), self.alpha)
        return 1.0 if alpha is None else alpha / (math.sqrt(rank) if self.by_root else rank)


def is_named(module: str, pattern: str) -> bool:
    """Return whether a key of PEFT's patterns matches a module's name, or the end of it.

    >>> is_named("model.layers.0.self_attn.q_proj", "q_proj"), is_named("model.q_proj", "^q_proj")
    (True, False)
    """
    if not PATTERN.fullmatch(pattern):
        raise _invalid(f"{CONFIG} alpha_pattern", pattern, "a pattern of a name without groups")
    return re.fullmatch(rf"(?:.*\.)?(?:{pattern})", module) is not None


def adapter_layout(file: File) -> str:
    """Return the layout of an adapter's names; FormatError if the file is not an adapter."""
    for layout, is_adapter in ((HF, CONFIG in file.assets), (GGUF, file.index.kind == "adapter")):
        if is_adapter:
            return layout
    raise FormatError(
        "is not a LoRA adapter",
        file=file.name,
        code="adapter",
        expected=f"a folder with {CONFIG}, or a GGUF of the type adapter",
        found=f"a {file.index.kind} ({file.format})",
        hint="Name the adapter behind the model: `squish merge BASE ADAPTER -o OUT`.",
    )


def pairs_of(file: File, layout: str, scaling: Scaling, scale: float = 1.0) -> Iterator[Pair]:
    """Yield the pairs of an adapter, multiplied by a number; TensorError for other tensors and single halves."""
    halves: dict[tuple[str, bool], dict[str, TensorSpec]] = {}
    for name, spec in file.without_caches().index.tensors.items():
        match = SUFFIXES[layout].fullmatch(name)
        if match is None:
            if layout == HF and BASE_WEIGHT.search(name):
                continue
            raise _other(name, layout)
        module = match["module"].removeprefix(PEFT)
        is_table = bool(match["table"]) or (layout == GGUF and module in GGUF_TABLES)
        pair = halves.setdefault((module, is_table), {})
        if match["half"].upper() in pair:
            raise TensorError(
                "is a second matrix of one module: the file has several adapters", tensor=name, code="adapter"
            )
        pair[match["half"].upper()] = spec
    for (module, is_table), pair in halves.items():
        target = module if layout == GGUF else f"{module}{WEIGHT}"
        yield _pair(file, target, module, pair, scaling, scale, is_table=is_table, is_gguf=layout == GGUF)


def _other(name: str, layout: str) -> TensorError:
    """Return the error for a tensor that is not one of a pair."""
    reason = next((why for pattern, why in OTHERS.items() if re.search(pattern, name)), "")
    what = f"the adapter {reason}" if layout == HF else "is not one of a pair of matrices"
    return TensorError(what, tensor=name, code="adapter", hint=BY_PEFT if layout == HF else None)


def _pair(
    file: File,
    target: str,
    module: str,
    halves: Mapping[str, TensorSpec],
    scaling: Scaling,
    scale: float,
    *,
    is_table: bool,
    is_gguf: bool,
) -> Pair:
    """Return the pair of a module; TensorError unless it has two matrices of one rank."""
    shapes = {half: spec.shape for half, spec in halves.items()}
    axes = {len(shape) for shape in shapes.values()}
    if set(halves) != {"A", "B"} or (axes != {2} and not (is_gguf and axes == {3})):
        raise _unpaired(module, shapes)
    a, b = (_dense_matrix(file, halves[half]) for half in "AB")
    pair = Pair(target=target, left=b, right=a)
    if is_table and is_gguf:
        pair = Pair(target=target, left=a, right=b, right_turned=True)
    elif is_table:
        pair = pair.transposed
    own_rank = pair.right.shape[-1 if pair.right_turned else -2]
    if pair.rank != own_rank or pair.rank < 1 or pair.left.shape[:-2] != pair.right.shape[:-2]:
        raise _unpaired(module, shapes)
    if scaling.ranks and pair.rank not in scaling.ranks:
        raise FormatError(
            "does not match the rank of the tensors",
            part=f"{CONFIG} r",
            expected=f"{pair.rank}, as in {module}",
            found=", ".join(map(str, sorted(scaling.ranks))),
            code=ErrorCode.CONTRADICTION,
        )
    return evolve(pair, scale=scale * scaling.of(module, pair.rank))


def _unpaired(module: str, shapes: Mapping[str, tuple[int, ...]]) -> TensorError:
    return TensorError(
        "needs two matrices of the same rank",
        tensor=module,
        code="adapter",
        expected="A [rank, in] and B [out, rank]",
        found=", ".join(f"{half} {list(shape)}" for half, shape in sorted(shapes.items())),
    )


def _dense_matrix(file: File, spec: TensorSpec) -> TensorSpec:
    """Return a matrix of an adapter as it is stored, or its values in memory if it is encoded."""
    if not spec.encodings:
        raise TensorError(spec.problem or "has no readable encoding", tensor=spec.name, code=ErrorCode.UNREADABLE)
    if spec.encodings[0].codec == DENSE and spec.dtype in dtypes.FLOATS and dtypes.bits(spec.dtype) >= 8:
        return evolve(spec, encodings=spec.encodings[:1])
    return dense(spec.name, file[spec.name].numpy())


def scaling_of(file: File, layout: str) -> Scaling:
    """Return the scaling that an adapter states; FormatError for one that merging cannot apply."""
    if layout == GGUF:
        return _gguf_scaling({key: untyped(value) for key, value in file.index.meta.items()})
    assets = {CONFIG: bytes(file.assets[CONFIG].raw)}
    config = Model(name=file.name, layout=HF, meta={}, assets=assets, tensors={}, vectors={}).config(CONFIG)
    check_adapter_config(config, APPLIED, REFUSED, {}, BY_PEFT)
    patterns = {key: config.get(key) or {} for key in ("alpha_pattern", "rank_pattern")}
    if invalid := next((key for key, value in patterns.items() if not isinstance(value, dict)), None):
        raise _invalid(f"{CONFIG} {invalid}", patterns[invalid], "numbers by pattern of a module's name")
    alphas = {key: _positive(f"{CONFIG} alpha_pattern", value) for key, value in patterns["alpha_pattern"].items()}
    ranks = [config.get("r"), *patterns["rank_pattern"].values()]
    return Scaling(
        alpha=_positive(f"{CONFIG} lora_alpha", config.get("lora_alpha")),
        alphas=alphas,
        by_root=bool(config.get("use_rslora")),
        fan_in_fan_out=bool(config.get("fan_in_fan_out")),
        ties_heads=bool(config.get("ensure_weight_tying")),
        ranks=frozenset(int(_positive(f"{CONFIG} r", rank)) for rank in ranks),
    )


def _gguf_scaling(meta: Mapping[str, Any]) -> Scaling:
    if meta.get(TYPE) != "lora":
        raise _invalid(TYPE, meta.get(TYPE), "lora")
    if INVOCATION in meta:
        raise FormatError(SPOKEN, part=INVOCATION, code="adapter")
    alpha = meta.get(ALPHA, 0.0)
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 <= alpha < math.inf:
        raise _invalid(ALPHA, alpha, "a number")
    return Scaling(alpha=float(alpha) or None, alphas={})  # llama.cpp scales by 1 without an alpha


def _positive(part: str, value: Any) -> float:
    """Return a number of a config; FormatError unless it is positive."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise _invalid(part, value, "a positive number")
    return float(value)


def _invalid(part: str, value: Any, expected: str) -> FormatError:
    return FormatError("has an invalid value", part=part, expected=expected, found=repr(value)[:60], code="adapter")
