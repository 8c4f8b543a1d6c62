"""Follow mistral.rs through a GGUF: the file, the settings derived from its keys, its tensors, its tokenizer."""

from __future__ import annotations

from collections.abc import Iterator

from squish_core.api import File, Problem, Typed

from ..verdict import Verdict
from .gguf_config import CLASSES, OTHER_ARCHITECTURES, class_of, config_of
from .gguf_keys import WHOLE, Keys, UnreadError
from .gguf_tensors import Binding, embedding_rows, spare, tensor_problems
from .gguf_tokenizer import tokenizer_problems
from .loader import first_of_kinds, layer_problems
from .numbers import MEMORY, division_problems, number_problems, unsure
from .settings import CLASSES as STRUCTS
from .tensors import Settings

ARCHITECTURE, ALIGNMENT = "general.architecture", "general.alignment"
SPLIT = ("split.no", "split.count")
WITH_VISION = ("gemma3n", "gemma4", "llama4", "muse-glimmer", "qwen2vl", "qwen3vl", "qwen3vlmoe")
GRANITES = ("granite", "granitemoe", "granitehybrid")
SETTINGS = {
    "vocab_size": "vocab_size", "hidden_size": "embedding_length", "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length", "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv", "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon", "norm_epsilon": "attention.layer_norm_epsilon",
    "norm_eps": "attention.layer_norm_rms_epsilon", "rope_theta": "rope.freq_base",
    "rope_local_base_freq": "rope.freq_base_swa", "sliding_window": "attention.sliding_window",
    "sliding_window_pattern": "attention.sliding_window_pattern", "layer_types": "attention.sliding_window_pattern",
    "head_dim": "attention.key_length", "query_pre_attn_scalar": "attention.key_length",
    "partial_rotary_factor": "rope.dimension_count", "num_local_experts": "expert_count",
    "num_experts": "expert_count", "n_routed_experts": "expert_count", "n_shared_experts": "expert_shared_count",
    "n_group": "expert_group_count", "topk_group": "expert_group_used_count",
    "num_dense_layers": "leading_dense_block_count", "first_k_dense_replace": "leading_dense_block_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length", "conv_L_cache": "shortconv.l_cache",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
}  # fmt: skip
"""Setting -> key that it is derived from; others have the same name."""
WIDE = ("vocab_size", "intermediate_size", "moe_intermediate_size", "block_ff_dim")
"""Sizes that are not checked against the tensors, but against the memory of the machine."""


def load(file: File) -> Verdict:
    """Compare a GGUF with what mistral.rs reads; return every problem of the stage at which it stops."""
    problems = [*_file_problems(file)]
    if problems:
        return Verdict(tuple(problems))
    meta = file.index.meta
    architecture = str(meta[ARCHITECTURE].value).strip().lower()
    keys = Keys(architecture, meta, tuple(file.index.tensors))
    try:
        name = class_of(keys)
        settings = config_of(name, keys) if name else {}
        is_stateless = architecture in GRANITES and _is_stateless(keys)
    except UnreadError as error:
        return Verdict((_key(error.where, error.message), *tokenizer_problems(meta)))
    problems = [*tokenizer_problems(meta)]
    if is_stateless:
        problems.append(_key(ARCHITECTURE, "is a Granite without state layers, which mistral.rs does not run"))
    if name not in STRUCTS:
        return Verdict(tuple(problems), f"{ARCHITECTURE} is {architecture}, which is not in squish-models' tables")
    wrong = [*STRUCTS[name].problems(settings, "")]
    settings = STRUCTS[name].read(settings)
    if not wrong:
        wrong = [*division_problems(settings), *layer_problems(name, settings), *_wide_problems(settings)]
    if not wrong and settings["num_hidden_layers"] > len(keys.tensors):
        wrong = [("num_hidden_layers", f"is {settings['num_hidden_layers']}, more than there are tensors")]
    problems += (_key(_name(keys, where), message) for where, message in wrong)
    if wrong:
        return Verdict(tuple(problems))
    binding = Binding(name, settings, file.index.tensors)
    wrong_tensors = [*_head_problems(keys, binding)] or [*first_of_kinds(tensor_problems(binding))]
    problems += wrong_tensors
    if any(each.severity == "error" for each in wrong_tensors):
        return Verdict(tuple(dict.fromkeys(problems)))
    problems += (_key(_name(keys, where), message) for where, message in number_problems(name, settings))
    if not any(each.severity == "error" for each in problems):
        problems += (*first_of_kinds(spare(binding)), *_token_problems(file, binding))
    return Verdict(tuple(dict.fromkeys(problems)), unsure(settings))


def reads_alignment(stated: str | None) -> bool:
    """Return whether mistral.rs accepts an alignment that Squish refuses: a power of two of any integer type.

    Examples
    --------
    >>> reads_alignment("u64 32"), reads_alignment("u32 48")
    (True, False)
    """
    kind, _, number = (stated or "").partition(" ")
    return kind in WHOLE and number.isdecimal() and int(number).bit_count() == 1


def _is_stateless(keys: Keys) -> bool:
    """Return whether a Granite has attention in each layer."""
    return not keys.has(".ssm_") and all(keys.sizes("attention.head_count_kv"))


def _file_problems(file: File) -> Iterator[Problem]:
    """Yield what stops mistral.rs before it chooses a class."""
    meta = file.index.meta
    for spec in file.index.tensors.values():
        if any(part.byteorder == ">" for encoding in spec.encodings for part in encoding.parts.values()):
            message = "is big-endian, which mistral.rs does not load"
            yield Problem(code="engine-format", severity="error", where=file.name, message=message)
            return
        break
    alignment = meta.get(ALIGNMENT)
    if isinstance(alignment, Typed) and alignment.type not in WHOLE:
        yield _key(ALIGNMENT, "is not a whole number, as mistral.rs expects")
    for name, other in (SPLIT, SPLIT[::-1]):
        if name in meta and other not in meta:
            yield _key(other, f"is missing beside {name}")
    yield from _split_problems(file)
    yield from _offset_problems(file)
    stored = meta.get(ARCHITECTURE)
    architecture = stored.value if isinstance(stored, Typed) and stored.type == "str" else None
    if stored is None:
        yield _key(ARCHITECTURE, "is missing, and mistral.rs does not load without it")
    elif not isinstance(architecture, str):
        yield _key(ARCHITECTURE, "is not a text, as mistral.rs expects")
    elif architecture in WITH_VISION:
        yield _key(ARCHITECTURE, f"is {architecture}, which mistral.rs loads only with its vision part (--mmproj)")
    elif architecture.strip().lower() not in {"llama", "deepseek2", *CLASSES, *OTHER_ARCHITECTURES}:
        message = f"is {architecture[:40]!r}, which mistral.rs does not have as a text model"
        yield Problem(code="engine-family", severity="error", where=ARCHITECTURE, message=message)


def _split_problems(file: File) -> Iterator[Problem]:
    meta = file.index.meta
    parts, numbers = len(file.index.files), {}
    for name, found in (("split.no", None), ("split.count", parts), ("split.tensors.count", len(file.index.tensors))):
        value = meta.get(name)
        if isinstance(value, Typed) and (value.type not in WHOLE or value.value < 0):
            yield _key(name, "is not a whole number from 0, as mistral.rs expects")
        elif isinstance(value, Typed):
            numbers[name] = value.value
            if found is not None and value.value != found:
                yield _key(name, f"is {value.value}, and there are {found}")
    if parts == 1 and numbers.get("split.no"):
        yield _key("split.no", f"is {numbers['split.no']}, and the file is the only part")


def _offset_problems(file: File) -> Iterator[Problem]:
    """Yield the first tensor that does not follow the one before it, and files whose end is not padded."""
    alignment = file.metadata.get(ALIGNMENT, 32)
    ends: dict[int, int] = {}
    for name, spec in file.index.tensors.items():
        parts = [part for encoding in spec.encodings for part in encoding.parts.values() if part.segments]
        if len(parts) != 1 or len(parts[0].segments) != 1 or not isinstance(alignment, int) or alignment < 1:
            return
        segment = parts[0].segments[0]
        if segment.offset != ends.get(segment.file, segment.offset) or not segment.length:
            message = "does not begin where the tensor before it ends, and mistral.rs does not read the file"
            yield Problem(code="overlap", severity="error", where=name, message=message)
            return
        ends[segment.file] = segment.offset + -(-segment.length // alignment) * alignment
    for number, end in ends.items():
        size = file.index.files[number].size
        if size is not None and end > size:
            message = f"ends at byte {size}, and mistral.rs expects its tensors padded to {end}"
            yield Problem(code="bounds", severity="error", where=file.index.files[number].name, message=message)


def _wide_problems(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield sizes for which mistral.rs allocates more memory than a machine has, whatever the tensors' shapes."""
    for name in WIDE:
        size = settings.get(name)
        if size is not None and 4 * size * max(settings["hidden_size"], 1) > MEMORY:
            yield name, f"is {size}, for which mistral.rs looks for room"


def _head_problems(keys: Keys, binding: Binding) -> Iterator[Problem]:
    """Yield a head size that the keys state and the class does not read."""
    stored, heads = keys.stored(keys.name("attention.key_length")), binding.settings["num_attention_heads"]
    key_length = stored.value if stored is not None and stored.type in WHOLE else None
    query = binding.bound.get("model.layers.0.self_attn.q_proj.weight")
    if "head_dim" in binding.settings or key_length is None or query is None or not query.shape:
        return
    if query.shape[0] == heads * key_length != binding.settings["hidden_size"]:
        message = "states heads of another size than the hidden size by their number, which mistral.rs refuses for "
        where = keys.name("attention.key_length")
        yield Problem(code="engine-setting", severity="error", where=where, message=message + keys.architecture)


def _token_problems(file: File, binding: Binding) -> Iterator[Problem]:
    tokens, rows = file.index.meta["tokenizer.ggml.tokens"].value, embedding_rows(binding)
    if rows is not None and rows < len(tokens):
        message = f"are {len(tokens)}, and token_embd.weight has {rows} rows: mistral.rs ends at one of the others"
        yield Problem(code="tokenizer", severity="warning", where="tokenizer.ggml.tokens", message=message)


def _name(keys: Keys, setting: str) -> str:
    """Return the key of a setting."""
    first, _, rest = setting.partition(".")
    if first in ("rope_scaling", "rope_parameters") and rest and rest != "rope_theta":
        return keys.name(f"rope.scaling.{rest}")
    return keys.name(SETTINGS.get(rest or first, first))


def _key(name: str, message: str) -> Problem:
    code = "engine-setting" if name == ARCHITECTURE else "engine-key"
    code = "tokenizer" if name.startswith("tokenizer.") else code
    return Problem(code=code, severity="error", where=name, message=message)
