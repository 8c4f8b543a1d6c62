"""One change at a time in a GGUF: each key, each field of the tokenizer, each kind of tensor, and the file itself."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Any, cast

from attrs import evolve

from .gguf_file import ARRAY, BOOL, F32, F64, I8, I32, I64, STRING, U8, U16, U32, U64, Gguf, Key, Tensor

Mutant = tuple[str, Gguf]
"""What was changed, and the file."""
TOKENS = "tokenizer.ggml."
LATER = 2_000_000_000
ABSENT: tuple[tuple[str, int | str, Any], ...] = (
    ("{arch}.attention.causal", BOOL, True), ("{arch}.pooling_type", U32, 1), ("{arch}.pooling_type", U32, 99),
    ("{arch}.embedding_length_out", U32, 32), ("{arch}.nextn_predict_layers", U32, 0),
    ("{arch}.nextn_predict_layers", U32, 1), ("{arch}.nextn_predict_layers", U32, 1000),
    ("{arch}.expert_count", U32, 0), ("{arch}.expert_count", U32, 4), ("{arch}.expert_count", U32, 5000),
    ("{arch}.expert_used_count", U32, 0), ("{arch}.expert_used_count", U32, 2),
    ("{arch}.expert_group_count", U32, 2), ("{arch}.expert_group_used_count", U32, 1),
    ("{arch}.rope.scaling.type", STRING, "linear"), ("{arch}.rope.scaling.type", STRING, "yarn"),
    ("{arch}.rope.scaling.type", STRING, "longrope"), ("{arch}.rope.scaling.type", STRING, "none"),
    ("{arch}.rope.scaling.type", STRING, "llama3"), ("{arch}.rope.scaling.type", STRING, ""),
    ("{arch}.rope.scaling.factor", F32, 4.0), ("{arch}.rope.scale_linear", F32, 4.0),
    ("{arch}.rope.scaling.factor", F32, 0.0), ("{arch}.rope.scaling.factor", U32, 4),
    ("{arch}.rope.scaling.finetuned", BOOL, False), ("{arch}.rope.scaling.attn_factor", F32, 1.5),
    ("{arch}.rope.scaling.original_context_length", U32, 64), ("{arch}.rope.scaling.original_context_length", F32, 64),
    ("{arch}.rope.dimension_count", U32, 8), ("{arch}.rope.dimension_count", U32, 7),
    ("{arch}.rope.dimension_sections", "array", (I32, [4, 4, 4, 4])),
    ("{arch}.rope.dimension_sections", "array", (I32, [4, 4])),
    ("{arch}.rope.freq_base", F32, 5000.0), ("{arch}.rope.freq_base_swa", F32, 5000.0),
    ("{arch}.attention.key_length", U32, 16), ("{arch}.attention.value_length", U32, 16),
    ("{arch}.attention.key_length", U32, 24), ("{arch}.attention.value_length", U32, 24),
    ("{arch}.attention.key_length_swa", U32, 16), ("{arch}.attention.key_length_swa", U32, 8),
    ("{arch}.attention.sliding_window", U32, 16), ("{arch}.attention.sliding_window", U32, 0),
    ("{arch}.attention.sliding_window_pattern", U32, 2),
    ("{arch}.attention.sliding_window_pattern", "layers", (BOOL, True)),
    ("{arch}.attention.sliding_window_pattern", "layers", (U8, 1)),
    ("{arch}.attention.scale", F32, 0.1), ("{arch}.final_logit_softcapping", F32, 30.0),
    ("{arch}.vocab_size", U32, 640), ("{arch}.vocab_size", U32, 32), ("{arch}.vocab_size", STRING, "640"),
    ("{arch}.feed_forward_length", "layers", (U32, None)), ("{arch}.attention.head_count", "layers", (U32, None)),
    ("{arch}.attention.head_count_kv", "layers", (U32, None)),
    ("{arch}.attention.head_count_kv", "layers", (I32, None)),
    ("{arch}.attention.head_count_kv", "layers", (U64, None)),
    ("{arch}.classifier.output_labels", "array", (STRING, ["no", "yes"])),
    ("{arch}.classifier.output_labels", "array", (U32, [1, 2])), ("{arch}.classifier.output_labels", STRING, "no"),
    ("{arch}.decision.block_count", U32, 1), ("{arch}.expert_shared_feed_forward_length", U32, 32),
    ("{arch}.attention.layer_norm_epsilon", F32, 1e-5), ("{arch}.attention.layer_norm_rms_epsilon", F32, 1e-5),
    ("{arch}.unknown", U32, 7), ("general.alignment", U32, 32), ("general.alignment", U32, 64),
    ("general.alignment", U32, 48), ("general.alignment", U32, 0), ("general.alignment", U64, 32),
    ("general.file_type", U32, 7), ("general.file_type", STRING, "Q8_0"), ("general.name", U32, 7),
    ("general.quantization_version", U32, 99), ("general.type", STRING, "model"),
    ("split.count", U16, 1), ("split.count", U16, 2), ("split.count", U32, 1), ("split.no", U16, 1),
    *((f"{TOKENS}{name}_token_id", U32, 3) for name in ("unknown", "padding", "mask", "eot", "eom", "seperator")),
    (f"{TOKENS}eot_token_id", U32, LATER), (f"{TOKENS}eot_token_id", I32, 3), (f"{TOKENS}eos_token_id", U64, 3),
    (f"{TOKENS}fim_pre_token_id", U32, 3), (f"{TOKENS}prefix_token_id", F32, 3),
    (f"{TOKENS}add_sep_token", BOOL, True), (f"{TOKENS}add_eos_token", U8, 1),
    (f"{TOKENS}add_space_prefix", BOOL, False), (f"{TOKENS}add_space_prefix", U32, 0),
    (f"{TOKENS}remove_extra_whitespaces", BOOL, True), (f"{TOKENS}remove_extra_whitespaces", STRING, "no"),
    (f"{TOKENS}suppress_tokens", "array", (I32, [1, 2, 99999])), (f"{TOKENS}suppress_tokens", "array", (U32, [1])),
    (f"{TOKENS}suppress_tokens", U32, 1), (f"{TOKENS}token_type_count", U32, 2),
    (f"{TOKENS}token_type_count", U64, 2), (f"{TOKENS}normalizer.lowercase", BOOL, True),
    (f"{TOKENS}normalizer.lowercase", STRING, "true"), ("tokenizer.chat_template", U32, 1),
    ("tokenizer.chat_template", STRING, "{{ messages }}"), (f"{TOKENS}scores", "tokens", (F32, 0.0)),
    (f"{TOKENS}scores", "tokens", (I32, 0)), (f"{TOKENS}scores", "tokens", (F64, 0.0)),
    (f"{TOKENS}scores", "array", (F32, [0.0])), (f"{TOKENS}token_type", "tokens", (I32, 1)),
    (f"{TOKENS}token_type", "tokens", (U32, 1)), (f"{TOKENS}token_type", "tokens", (I8, 1)),
    (f"{TOKENS}token_type", "tokens", (I32, 99)), (f"{TOKENS}pre", STRING, "default"),
    (f"{TOKENS}pre", STRING, "llama-bpe"), (f"{TOKENS}pre", STRING, "no-such-one"), (f"{TOKENS}pre", STRING, ""),
    (f"{TOKENS}merges", "array", (STRING, [])), (f"{TOKENS}merges", "array", (U32, [1])),
    *((f"{TOKENS}model", STRING, name) for name in ("gpt2", "llama", "bert", "t5", "rwkv", "none", "no_vocab", "x")),
)  # fmt: skip
"""Keys that are set: name, type or kind of array, value. "layers": one value a layer; "tokens": one a token."""
MORE = (
    ("cls.output.weight", ("embedding", 1)), ("cls.weight", ("embedding", "embedding")), ("cls.bias", ("embedding",)),
    ("output.bias", ("tokens",)), ("output.scale", (1,)), ("output_norm.bias", ("embedding",)),
    ("rope_freqs.weight", (8,)), ("rope_freqs.weight", (16,)), ("rope_factors_long.weight", (8,)),
    ("rope_factors_short.weight", (16,)), ("token_types.weight", ("embedding", 2)), ("unknown.weight", (4, 4)),
    ("dense_2.weight", ("embedding", 4)), ("token_embd_norm.weight", ("embedding",)),
    ("position_embd.weight", ("embedding", 512)), ("mm.0.weight", (4, 4)), ("v.patch_embd.weight", (4, 4)),
    ("blk.0.unknown.weight", (4, 4)), ("blk.0.attn_q.bias", ("q",)), ("blk.0.attn_q.bias", (3,)),
    ("blk.0.attn_k.bias", ("k",)), ("blk.0.attn_output.bias", ("embedding",)), ("blk.0.ffn_up.bias", ("ff",)),
    ("blk.0.ffn_gate.bias", ("ff",)), ("blk.0.ffn_down.bias", ("embedding",)), ("blk.0.attn_q.scale", (1,)),
    ("blk.0.ffn_up.scale", (1,)), ("blk.0.ffn_up.input_scale", (1,)), ("blk.0.ffn_up.scale", (2,)),
    ("blk.0.attn_q_norm.weight", ("head",)), ("blk.0.attn_k_norm.weight", ("head",)),
    ("blk.0.attn_norm.bias", ("embedding",)), ("blk.0.attn_rot_embd.weight", ("head",)),
    ("blk.0.attn_kv_b.weight", (32, 256)), ("blk.0.attn_sinks.weight", (4,)), ("blk.0.exp_probs_b.bias", (4,)),
    ("blk.0.ffn_gate_inp.weight", ("embedding", 4)), ("blk.0.attn_qkv.weight", ("embedding", "qkv")),
    ("blk.0.attn_qkv.bias", ("qkv",)), ("blk.{layers}.attn_norm.weight", ("embedding",)),
    ("blk.0.rope_freqs.weight", (8,)), ("output.weight", ("embedding", "tokens")),
)  # fmt: skip
"""Tensors that are added where they are not: name, sizes."""


def mutants(base: Gguf) -> Iterator[Mutant]:
    """Every mutant; what was changed is unique."""
    seen = set()
    for name, mutant in _all(base):
        if name not in seen:
            seen.add(name)
            yield name, mutant


def _all(base: Gguf) -> Iterator[Mutant]:
    yield "unchanged", base
    for key in base.keys:
        yield from _of_key(base, key)
    yield from _of_tokens(base)
    yield from _set_keys(base)
    for tensor in base.tensors:
        if not re.match(r"blk\.(?!0\.|1\.)", tensor.name):
            yield from _of_tensor(base, tensor)
    yield from _more_tensors(base)
    yield from _of_file(base)


def _with(base: Gguf, key: Key) -> Gguf:
    """The file with a key instead of the one of that name, or with one more."""
    if all(each.name != key.name for each in base.keys):
        return evolve(base, keys=(*base.keys, key))
    return evolve(base, keys=tuple(key if each.name == key.name else each for each in base.keys))


def _of_key(base: Gguf, key: Key) -> Iterator[Mutant]:
    def changed(what: str, *changes: Any) -> Mutant:
        return f"{key.name} {what}", _with(base, Key(key.name, *changes))

    yield f"{key.name} removed", evolve(base, keys=tuple(each for each in base.keys if each is not key))
    yield f"{key.name} twice", evolve(base, keys=(*base.keys, key))
    if key.type == ARRAY:
        yield from _of_array(base, key)
        return
    if key.type == STRING:
        yield changed("empty", STRING, "")
        yield changed("unknown", STRING, "no-such-value")
        yield changed("a number", U32, 1)
        yield changed("an array", ARRAY, [key.value], STRING)
        return
    number = int(key.value)
    for kind, title in (
        (U8, "u8"),
        (I32, "i32"),
        (U64, "u64"),
        (I64, "i64"),
        (F32, "f32"),
        (F64, "f64"),
        (BOOL, "bool"),
    ):
        if kind != key.type:
            value = number % 200 if kind == U8 else bool(number) if kind == BOOL else key.value
            yield changed(title, kind, value if kind in (F32, F64, BOOL) else int(value))
    yield changed("a text", STRING, str(key.value))
    layers = _layers(base)
    for count in (layers, layers + 1, 1):
        yield changed(f"an array of {count}", ARRAY, [key.value] * count, key.type)
    yield changed("an array of floats", ARRAY, [float(key.value)] * layers, F32)
    if layers > 1 and key.type == U32:
        yield changed("an array of other numbers", ARRAY, [number] * (layers - 1) + [max(number // 2, 1)], U32)
        yield changed("an array that begins otherwise", ARRAY, [max(number // 2, 1)] + [number] * (layers - 1), U32)
        yield changed("an array of i32", ARRAY, [number] * layers, I32)
    for value in (0, 1, 2, number + 1, number * 2, number // 2, LATER, 4294967295) if key.type == U32 else ():
        if value != number:
            yield changed(f"is {value}", U32, value & 0xFFFFFFFF)
    for value in (0.0, -1.0, float("nan"), float("inf")) if key.type == F32 else ():
        yield changed(f"is {value}", F32, value)
    if key.type == BOOL:
        yield changed("is inverted", BOOL, not key.value)


def _of_array(base: Gguf, key: Key) -> Iterator[Mutant]:
    def changed(what: str, value: Any, items: int = key.items) -> Mutant:
        return f"{key.name} {what}", _with(base, Key(key.name, ARRAY, value, items))

    yield changed("empty", [])
    yield changed("short", key.value[:-1])
    yield changed("of three", key.value[:3])
    yield changed("long", [*key.value, "<another>" if key.items == STRING else key.value[-1]])
    yield f"{key.name} a number", _with(base, Key(key.name, U32, 1))
    yield f"{key.name} a text", _with(base, Key(key.name, STRING, "x"))
    if key.items == STRING:
        yield changed("of numbers", [1] * len(key.value), U32)
        return
    for kind, title in ((U8, "u8"), (I8, "i8"), (U16, "u16"), (U32, "u32"), (I32, "i32"), (F32, "f32"), (F64, "f64")):
        if kind != key.items:
            ranged = [max(each, 0) if kind in (U8, U16, U32) else each for each in key.value]
            small = [each % 100 if kind in (U8, I8) else each for each in ranged]
            yield changed(f"of {title}", [float(each) if kind in (F32, F64) else int(each) for each in small], kind)


def _of_tokens(base: Gguf) -> Iterator[Mutant]:
    tokens = next(key for key in base.keys if key.name == f"{TOKENS}tokens")
    for what, first, second in (("twice", 20, 21), ("twice, far apart", 20, len(tokens.value) - 1)):
        value = list(tokens.value)
        value[second] = value[first]
        yield f"a token {what}", _with(base, evolve(tokens, value=value))
    for what, changes in (
        ("an empty token", {30: ""}),
        ("two empty tokens", {30: "", 31: ""}),
        ("an empty token and its name", {30: "", 31: "[EMPTY_30]"}),
        ("bytes", {30: "\udcff\udcfe"}),
    ):
        value = [changes.get(index, token) for index, token in enumerate(tokens.value)]
        yield what, _with(base, evolve(tokens, value=value))
    for key in base.keys:
        if key.name.endswith("_token_id"):
            for number in (len(tokens.value) - 1, len(tokens.value), 4294967295):
                yield f"{key.name} is the id {number}", _with(base, evolve(key, value=number))
        if key.name == f"{TOKENS}token_type":
            for number in (0, 2, 3, 5, 6, 7, 99, -1):
                value = [number, *key.value[1:]]
                yield f"{key.name} begins with {number}", _with(base, evolve(key, value=value))
        if key.name == f"{TOKENS}merges":
            for what, merge in (("without a space", "ab"), ("of nothing", ""), ("of unknown tokens", "qqq zzz")):
                yield f"a merge {what}", _with(base, evolve(key, value=[merge, *key.value[1:]]))
            yield "a merge twice", _with(base, evolve(key, value=[key.value[1], *key.value[1:]]))


def _set_keys(base: Gguf) -> Iterator[Mutant]:
    architecture = _value(base, "general.architecture")
    tokens = len(_value(base, f"{TOKENS}tokens"))
    for name, kind, value in ABSENT:
        full, key = name.format(arch=architecture), None
        if kind in ("layers", "tokens"):
            items, one = value
            one = _value(base, full) if one is None else one
            one = one[0] if isinstance(one, list) else one
            if one is not None:
                key = Key(full, ARRAY, [one] * (tokens if kind == "tokens" else _layers(base)), items)
        elif kind == "array":
            key = Key(full, ARRAY, value[1], value[0])
        else:
            key = Key(full, cast(int, kind), value)
        if key is not None:
            yield f"{full} = {kind} {str(value)[:30]}", _with(base, key)


def _of_tensor(base: Gguf, tensor: Tensor) -> Iterator[Mutant]:
    def changed(what: str, **changes: Any) -> Mutant:
        other = evolve(tensor, **changes)
        tensors = tuple(other if each is tensor else each for each in base.tensors)
        return f"{tensor.name} {what}", evolve(base, tensors=tensors)

    sizes = tensor.sizes
    yield f"{tensor.name} removed", evolve(base, tensors=tuple(each for each in base.tensors if each is not tensor))
    yield f"{tensor.name} twice", evolve(base, tensors=(*base.tensors, tensor))
    yield changed("renamed", name=f"{tensor.name}x")
    if ".0." not in tensor.name and tensor.name.startswith("blk."):
        return
    yield changed("with one more", sizes=(*sizes[:-1], sizes[-1] + 1))
    yield changed("with a wider row", sizes=(sizes[0] + 32, *sizes[1:]))
    yield changed("with an axis of 1", sizes=(*sizes, 1))
    yield changed("with an axis of 2", sizes=(*sizes, 2))
    if len(sizes) > 1:
        yield changed("transposed", sizes=sizes[::-1])
        yield changed("flat", sizes=(sizes[0] * sizes[1], *sizes[2:]))
    for kind, title in ((0, "f32"), (1, "f16"), (30, "bf16"), (28, "f64"), (26, "i32"), (8, "q8_0"), (2, "q4_0")):
        if kind != tensor.type and not (kind in (2, 8) and sizes[0] % 32):
            yield changed(f"as {title}", type=kind)


def _more_tensors(base: Gguf) -> Iterator[Mutant]:
    names = {tensor.name: tensor for tensor in base.tensors}

    def rows(name: str, default: int) -> int:
        return names[name].sizes[1] if name in names else default

    width, count = names["token_embd.weight"].sizes
    sizes = {
        "embedding": width, "tokens": count, "q": rows("blk.0.attn_q.weight", 64), "k": rows("blk.0.attn_k.weight", 32),
        "ff": rows("blk.0.ffn_up.weight", 128), "head": _value(base, f"{_value(base, 'general.architecture')}."
                                                               "attention.key_length") or 16,
    }  # fmt: skip
    sizes["qkv"] = sizes["q"] + 2 * sizes["k"]
    for template, shape in MORE:
        name = template.format(layers=_layers(base))
        if name not in names:
            tensor = Tensor(name, tuple(sizes.get(size, size) for size in shape), 0)  # type: ignore[arg-type]
            yield f"+{name} {list(shape)}", evolve(base, tensors=(*base.tensors, tensor))
    for fused in (("attn_q", "attn_k", "attn_v"),):
        parts = [f"blk.0.{each}.weight" for each in fused]
        if all(part in names for part in parts):
            kept = tuple(tensor for tensor in base.tensors if tensor.name not in parts)
            whole = Tensor("blk.0.attn_qkv.weight", (width, sizes["qkv"]), 0)
            yield "fused attention", evolve(base, tensors=(*kept, whole))
    gate = names.get("blk.0.ffn_gate_exps.weight") or names.get("blk.1.ffn_gate_exps.weight")
    if gate is not None:
        prefix = gate.name.partition("ffn_")[0]
        left_out = (gate.name, f"{prefix}ffn_up_exps.weight")
        kept = tuple(tensor for tensor in base.tensors if tensor.name not in left_out)
        both = Tensor(f"{prefix}ffn_gate_up_exps.weight", (gate.sizes[0], 2 * gate.sizes[1], gate.sizes[2]), gate.type)
        yield "fused experts", evolve(base, tensors=(*kept, both))


def _of_file(base: Gguf) -> Iterator[Mutant]:
    for version in (0, 1, 2, 4):
        yield f"version {version}", evolve(base, first=b"GGUF" + struct.pack("<I", version))
    yield "big-endian", evolve(base, first=b"GGUF" + struct.pack(">I", 3), order=">")
    yield "another magic", evolve(base, first=b"GGUX" + struct.pack("<I", 3))
    size = sum(tensor.nbytes for tensor in base.tensors)
    for what, missing in (("one byte", 1), ("half of the data", size // 2), ("all data", size)):
        yield f"without {what}", evolve(base, missing=missing)
    last = base.tensors[-1].name
    yield "an offset beyond the end", evolve(base, offsets={last: 32})
    yield "an offset that leaves a gap", evolve(base, offsets={last: 32}, missing=-32)
    first, second = base.tensors[0], base.tensors[1]
    swapped = {first.name: second.nbytes + -second.nbytes % 32, second.name: -first.nbytes - -first.nbytes % 32}
    yield "offsets in another order", evolve(base, offsets=swapped)
    yield "an offset beyond the file", evolve(base, offsets={last: 1 << 40})
    yield "tensors in another order", evolve(base, tensors=base.tensors[::-1])
    yield "keys in another order", evolve(base, keys=base.keys[::-1])
    yield "no tensors", evolve(base, tensors=())
    yield "no keys", evolve(base, keys=())


def _value(base: Gguf, name: str) -> Any:
    return next((key.value for key in base.keys if key.name == name), None)


def _layers(base: Gguf) -> int:
    return int(_value(base, f"{_value(base, 'general.architecture')}.block_count"))
