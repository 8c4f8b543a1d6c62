"""Tensor names of Hugging Face and of GGUF, for architectures whose tensors are otherwise the same in both."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from squish_core.errors import FormatError
from squish_core.formats.metadata import plain

if TYPE_CHECKING:
    from squish_core.file import File
from squish_core.errors import UsageError

# As GGUF calls them. Not here: llama, whose rows of q and k are in another order in GGUF, and gemma, whose norms are
# stored plus 1.
ARCHITECTURES = ("qwen2", "qwen3", "qwen3moe")

_MODEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "ffn_gate_inp": "mlp.gate",
    **{f"attn_{letter}": f"self_attn.{letter}_proj" for letter in "qkv"}, "attn_output": "self_attn.o_proj",
    **{f"attn_{letter}_norm": f"self_attn.{letter}_norm" for letter in "qk"},
    **{f"ffn_{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")},
    **{f"ffn_{name}_exps": f"mlp.experts.{name}_proj" for name in ("gate", "up", "down")},
}  # fmt: skip
_ARCHITECTURE, _CONFIG = "general.architecture", "config.json"
_TABLES: Mapping[str, tuple[re.Pattern[str], str, Mapping[str, str]]] = {
    "hf": (re.compile(r"blk\.(\d+)\.(.+)"), "model.layers.{}.{}", {**_MODEL, **_LAYER}),
    "gguf": (
        re.compile(r"model\.layers\.(\d+)\.(.+)"), "blk.{}.{}", {hf: name for name, hf in {**_MODEL, **_LAYER}.items()},
    ),
}  # fmt: skip


def rename(name: str, to: str) -> str:
    """A name as Hugging Face (`to` "hf") or GGUF ("gguf") has it; one that is not in the table stays as it is."""
    pattern, form, table = _TABLES[to]
    key, dot, kind = name.rpartition(".")
    layer = pattern.fullmatch(key)
    if layer and layer[2] in table:
        return f"{form.format(layer[1], table[layer[2]])}{dot}{kind}"
    return f"{table[key]}{dot}{kind}" if key in table else name


def parse_names(text: str | None, file: File | None = None) -> Callable[[str], str]:
    """`hf:ARCH` or `gguf:ARCH` as a function from names to names; without it names stay as they are.

    FormatError for an architecture whose tensors differ in more than names, and for one that is not what `file` states.
    """
    if text is None:
        return str
    to, _, architecture = text.partition(":")
    if to not in _TABLES or architecture not in ARCHITECTURES:
        raise UsageError(
            "cannot rename: not verified for this architecture",
            expected=f"{' or '.join(_TABLES)}, a colon and {' or '.join(ARCHITECTURES)}", found=repr(text),
            code="names",
        )  # fmt: skip
    if file is not None:
        _check_architecture(architecture, file)
    return partial(rename, to=to)


def _check_architecture(architecture: str, file: File) -> None:
    """FormatError unless the architecture is the one that the file states, if it states one."""
    for place, stated in stated_architectures(file):
        if re.sub("[-_]", "", stated.lower()) != architecture:
            raise FormatError(
                "the names are those of another architecture", file=file.name, code="names",
                expected=architecture, found=f"{stated!r} in {place}",
                hint="Name the file's own architecture; of others, the tensors differ in more than names.",
            )  # fmt: skip


def stated_architectures(file: File) -> Iterator[tuple[str, str]]:
    """Where a file states its architecture, and what it states: GGUF's metadata, and the model's config."""
    if _ARCHITECTURE in file.index.meta:
        yield _ARCHITECTURE, str(plain(file.index.meta[_ARCHITECTURE]))
    if _CONFIG in file.assets:
        try:
            config = json.loads(bytes(file.assets[_CONFIG].raw))
        except (ValueError, RecursionError):
            raise FormatError("is not JSON", file=file.name, part=_CONFIG, code="json") from None
        if isinstance(config, dict) and "model_type" in config:
            yield f"{_CONFIG} (model_type)", str(config["model_type"])
