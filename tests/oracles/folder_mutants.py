"""One change at a time in a model's folder: each setting, field of the tokenizer, kind of tensor, and file."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from attrs import evolve, field, frozen

WEIGHTS, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
SIZES = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8, "I32": 4, "U8": 1, "U32": 4, "I64": 8}
LATER = 2_000_000_000


@frozen
class Tensor:
    """A tensor of a safetensors file."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes = field(repr=False)


@frozen
class Folder:
    """A folder in memory: its tensors under the name of each weights file, and its other files."""

    weights: Mapping[str, Mapping[str, Tensor]]
    files: Mapping[str, bytes]

    @property
    def tensors(self) -> dict[str, Tensor]:
        return dict(self.weights[WEIGHTS])

    def with_file(self, name: str, data: bytes | None) -> Folder:
        files = {key: value for key, value in self.files.items() if key != name}
        return evolve(self, files=files if data is None else {**files, name: data})

    def with_json(self, name: str, change: Callable[[dict[str, Any]], Any]) -> Folder:
        document = json.loads(self.files[name])
        change(document)
        return self.with_file(name, json.dumps(document).encode())

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Folder:
        return evolve(self, weights={WEIGHTS: tensors})

    def write(self, place: Path) -> Path:
        place.mkdir(parents=True)
        for name, data in self.files.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(data)
        for name, tensors in self.weights.items():
            (place / name).write_bytes(safetensors(tensors))
        return place


Mutant = tuple[str, Folder]


def safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """A safetensors file."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    place = 0
    for name, tensor in tensors.items():
        ends = [place, place + len(tensor.data)]
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": ends}
        place = ends[1]
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(tensor.data for tensor in tensors.values())


def read_folder(place: Path) -> Folder:
    """A folder, with its weights as one file."""
    tensors: dict[str, Tensor] = {}
    for path in sorted(place.glob("*.safetensors")):
        data = path.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        header, start = json.loads(data[8 : 8 + size]), 8 + size
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                tensors[name] = Tensor(entry["dtype"], tuple(entry["shape"]), data[start + begin : start + end])
    others = (path for path in sorted(place.iterdir()) if path.suffix != ".safetensors" and path.name != INDEX)
    return Folder({WEIGHTS: tensors}, {path.name: path.read_bytes() for path in others})


def mutants(base: Folder) -> Iterator[Mutant]:
    """Every change, by name; the first is none."""
    yield "unchanged", base
    yield from setting_mutants(base)
    yield from tokenizer_mutants(base)
    yield from tensor_mutants(base)
    yield from file_mutants(base)


def values(value: Any) -> Iterator[tuple[str, Any]]:
    """Other values in place of one: of another type, of another length, out of range."""
    yield "null", None
    if isinstance(value, bool):
        yield from (("not", not value), ("a text", "yes"), ("a number", 2))
    elif isinstance(value, int):
        yield from (("a text", str(value)), ("a float", float(value)), ("a fraction", value + 0.5), ("zero", 0))
        yield from (("negative", -value), ("twice", 2 * value), ("one more", value + 1), ("a list", [value, value]))
        yield from (("huge", LATER), ("true", True))
    elif isinstance(value, float):
        yield from (
            ("a text", str(value)),
            ("zero", 0.0),
            ("negative", -value),
            ("a list", [value]),
            ("twice", 2 * value),
        )
        yield "an integer", 1
    elif isinstance(value, str):
        yield from (("another text", value + "x"), ("empty", ""), ("a number", 7), ("a list", [value]))
    elif isinstance(value, list):
        yield from (
            ("empty", []),
            ("shorter", value[:-1]),
            ("longer", value + value[-1:]),
            ("a text", "all"),
            ("a number", 7),
        )
        yield "numbers", [7 for _ in value]
    elif isinstance(value, dict):
        yield from (("empty", {}), ("a list", [1]), ("a text", "none"))
    else:
        yield from (("a number", 7), ("a text", "x"), ("a list", [1]), ("false", False))


def setting_mutants(base: Folder) -> Iterator[Mutant]:
    """Each setting of config.json, and of the objects in it."""
    yield from json_mutants(base, CONFIG)
    config = json.loads(base.files[CONFIG])
    for name, value in EXTRA_SETTINGS:
        if name not in config:
            yield f"config {name} = {value!r}", base.with_file(CONFIG, json.dumps({**config, name: value}).encode())


EXTRA_SETTINGS: tuple[tuple[str, Any], ...] = (
    ("rope_scaling", {"rope_type": "linear", "factor": 2.0}), ("rope_scaling", {"rope_type": "nonsense"}),
    ("rope_scaling", {"type": "linear", "factor": 2.0}), ("rope_scaling", {"rope_type": "yarn"}),
    ("rope_scaling", 7), ("rope_theta", 5000.0), ("rope_theta", "5000"), ("head_dim", 16), ("head_dim", 8),
    ("sliding_window", 16), ("sliding_window", "16"), ("num_experts", 4), ("tie_word_embeddings", True),
    ("tie_word_embeddings", False), ("quantization_config", {}), ("quantization_config", {"quant_method": "gptq"}),
    ("quantization", {"group_size": 64, "bits": 4}), ("torch_dtype", "bfloat16"), ("torch_dtype", "nonsense"),
    ("auto_map", {"AutoModelForCausalLM": "modeling_x.X"}), ("model_file", "x.py"), ("no_such_setting", 7),
)  # fmt: skip


def json_mutants(base: Folder, name: str, skip: tuple[str, ...] = ()) -> Iterator[Mutant]:
    """Each member of a JSON file and of the objects in it: removed, of another type, out of range."""
    document = json.loads(base.files[name])
    places: list[tuple[str, ...]] = [(key,) for key in document if key not in skip]
    places += [
        (key, inner)
        for key, value in document.items()
        if isinstance(value, dict) and key not in skip
        for inner in list(value)[:40]
    ]
    short = name.removesuffix(".json")
    for place in places:
        path = ".".join(map(str, place))

        def parent(tree: dict[str, Any], place: tuple[str, ...] = place) -> dict[str, Any]:
            return tree if len(place) == 1 else tree[place[0]]

        def remove(tree: dict[str, Any], place: tuple[str, ...] = place) -> None:
            parent(tree, place).pop(place[-1])

        yield f"{short} {path} removed", base.with_json(name, remove)
        for label, value in values(parent(document)[place[-1]]):

            def change(tree: dict[str, Any], place: tuple[str, ...] = place, value: Any = value) -> None:
                parent(tree, place)[place[-1]] = value

            yield f"{short} {path} {label}", base.with_json(name, change)


def tokenizer_mutants(base: Folder) -> Iterator[Mutant]:
    """Each field of tokenizer.json and tokenizer_config.json, and the contents of the vocabulary."""
    yield from json_mutants(base, TOKENIZER_CONFIG)
    if TOKENIZER not in base.files:
        return
    document = json.loads(base.files[TOKENIZER])
    small = base.with_json(TOKENIZER, lambda tree: None)
    for place in ([], ["model"]):
        tree = document["model"] if place else document
        for key, value in tree.items():
            label = ".".join([*place, key])
            for change, other in [("removed", ...), *values(value)]:

                def edit(full: dict[str, Any], key: str = key, other: Any = other, inner: bool = bool(place)) -> None:
                    part = full["model"] if inner else full
                    if other is ...:
                        part.pop(key)
                    else:
                        part[key] = other

                yield f"tokenizer {label} {change}", small.with_json(TOKENIZER, edit)
    yield from vocabulary_mutants(base, document)


def vocabulary_mutants(base: Folder, document: dict[str, Any]) -> Iterator[Mutant]:
    """What stands in the vocabulary, the merges and the added tokens."""
    first, second, *_ = document["model"]["vocab"]

    def changed(label: str, change: Callable[[dict[str, Any]], Any]) -> Mutant:
        return f"tokenizer {label}", base.with_json(TOKENIZER, change)

    yield changed(
        "two tokens of one id", lambda tree: tree["model"]["vocab"].update({first: tree["model"]["vocab"][second]})
    )
    yield changed("an id beyond the vocabulary", lambda tree: tree["model"]["vocab"].update({"zzz": 5000}))
    yield changed("a negative id", lambda tree: tree["model"]["vocab"].update({"zzz": -1}))
    yield changed("an id of text", lambda tree: tree["model"]["vocab"].update({"zzz": "1"}))
    yield changed("a token less", lambda tree: tree["model"]["vocab"].popitem())
    yield changed("a merge of unknown tokens", lambda tree: tree["model"]["merges"].append(["qqq", "zzz"]))
    yield changed("a merge of one", lambda tree: tree["model"]["merges"].append(["a"]))
    yield changed(
        "a merge as text", lambda tree: tree["model"].update(merges=[" ".join(m) for m in tree["model"]["merges"]])
    )
    if document["added_tokens"]:
        yield changed("an added token beyond the vocabulary", lambda tree: tree["added_tokens"][0].update(id=5000))
        yield changed("an added token without content", lambda tree: tree["added_tokens"][0].pop("content"))
        yield changed("an added token without id", lambda tree: tree["added_tokens"][0].pop("id"))
        yield changed("an added token without flags", lambda tree: tree["added_tokens"][0].pop("special"))
        yield changed("an added token twice", lambda tree: tree["added_tokens"].append(dict(tree["added_tokens"][0])))


def tensor_mutants(base: Folder) -> Iterator[Mutant]:
    """A tensor of each kind: removed, renamed, of another shape or type, twice."""
    kinds: dict[str, str] = {}
    for name in base.tensors:
        kinds[re.sub(r"\d+", "#", name)] = name  # the last of its kind
    for kind, name in kinds.items():
        for label, tensors in tensor_changes(base.tensors, name):
            yield f"tensor {kind} {label}", base.with_tensors(tensors)
    for label, rename in RENAMINGS.items():
        yield f"names {label}", base.with_tensors({rename(name): tensor for name, tensor in base.tensors.items()})
    one = Tensor("F32", (4,), bytes(16))
    for name in EXTRA_TENSORS:
        if name not in base.tensors:
            yield f"tensor {name} added", base.with_tensors({**base.tensors, name: one})
    embeddings = next((name for name in base.tensors if "embed_tokens" in name or name.endswith("wte.weight")), None)
    if embeddings is not None and "lm_head.weight" not in base.tensors:
        head = base.tensors[embeddings]
        yield "head stored", base.with_tensors({**base.tensors, "lm_head.weight": head})
        other = evolve(head, data=head.data[:-4] + struct.pack("<f", 7.0))
        yield "head that differs", base.with_tensors({**base.tensors, "lm_head.weight": other})


RENAMINGS: dict[str, Callable[[str], str]] = {
    "without model.": lambda name: name.removeprefix("model."),
    "in language_model.": lambda name: f"language_model.{name}",
    "in model.language_model.": lambda name: re.sub(r"^model\.", "model.language_model.", name),
    "in another module": lambda name: f"other.{name}",
    "in module.": lambda name: f"module.{name}",
}  # fmt: skip
EXTRA_TENSORS = (
    "extra", "model.extra.weight", "model.layers.0.self_attn.rotary_emb.inv_freq",
    "model.layers.99.input_layernorm.weight", "model.layers.0.self_attn.q_proj.weight_scale", "lm_head.bias",
    "score.weight", "model.visual.extra.weight", "vision_tower.extra.weight",
)  # fmt: skip


def tensor_changes(tensors: dict[str, Tensor], name: str) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """One tensor changed."""
    tensor = tensors[name]
    yield "removed", {key: value for key, value in tensors.items() if key != name}
    yield "renamed", {key if key != name else f"{name}s": value for key, value in tensors.items()}
    count, size = int(np.prod(tensor.shape)), SIZES[tensor.dtype]
    rows = tensor.shape[0]
    if rows > 1:
        less = evolve(
            tensor, shape=(rows - 1, *tensor.shape[1:]), data=tensor.data[: count // rows * (rows - 1) * size]
        )
        yield "with a row less", {**tensors, name: less}
    twice = evolve(tensor, shape=(2 * rows, *tensor.shape[1:]), data=tensor.data * 2)
    yield "with twice the rows", {**tensors, name: twice}
    yield (
        "flat",
        {**tensors, name: evolve(tensor, shape=(count,))}
        if len(tensor.shape) > 1
        else {**tensors, name: evolve(tensor, shape=(1, count))},
    )
    if len(tensor.shape) > 1:
        yield "transposed", {**tensors, name: evolve(tensor, shape=tensor.shape[::-1])}
    for dtype in ("F16", "BF16", "F64", "I32", "U8"):
        yield f"of {dtype}", {**tensors, name: evolve(tensor, dtype=dtype, data=bytes(count * SIZES[dtype]))}


def file_mutants(base: Folder) -> Iterator[Mutant]:
    """Each file: removed, empty, cut off; the weights under other names."""
    for name in base.files:
        yield f"file {name} removed", base.with_file(name, None)
        yield f"file {name} empty", base.with_file(name, b"")
        yield f"file {name} cut off", base.with_file(name, base.files[name][:-20])
        if name.endswith(".json"):
            yield f"file {name} a list", base.with_file(name, b"[]")
            twice = base.files[name].replace(b"{", b'{"zzz": 1, "zzz": 2, ', 1)
            yield f"file {name} with a key twice", base.with_file(name, twice)
    for other in (
        "model-00001-of-00001.safetensors",
        "weights.safetensors",
        "consolidated.safetensors",
        "model.fp16.safetensors",
        "model-extra.safetensors",
    ):
        yield f"weights as {other}", evolve(base, weights={other: base.tensors})
    half = len(base.tensors) // 2
    parts = (dict(list(base.tensors.items())[n * half : (n + 1) * half + n * 9]) for n in range(2))
    shards = {f"model-0000{n + 1}-of-00002.safetensors": part for n, part in enumerate(parts)}
    where = {name: shard for shard, tensors in shards.items() for name in tensors}
    index = json.dumps({"metadata": {}, "weight_map": where}).encode()
    yield "sharded", evolve(base, weights=shards).with_file(INDEX, index)
    yield "sharded without an index", evolve(base, weights=shards)
    first = next(iter(shards))
    yield "sharded, one missing", evolve(base, weights={first: shards[first]}).with_file(INDEX, index)
    yield "a stale index", base.with_file(INDEX, index)
