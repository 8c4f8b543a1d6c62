"""Folders of a dozen models with what published ones have besides weights, for a comparison of keys."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oracles import families
from squish_models.tokenizer.gguf import VISIBLE

CHAT = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]
FIRST = families.SIZE["vocab_size"] - families.PADDING
"""The first id without a token."""


def change(path: Path, **values: Any) -> None:
    """Set values of a JSON file, which need not exist."""
    stored = json.loads(path.read_text()) if path.exists() else {}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**stored, **values}))


def add_tokens(folder: Path, *texts: str, special: bool = True) -> dict[str, int]:
    """Add tokens after those of the tokenizer; returns their ids."""
    path = folder / "tokenizer.json"
    added = json.loads(path.read_text())["added_tokens"]
    first = max(FIRST, *(each["id"] + 1 for each in added))
    more = [
        {
            "id": first + number,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": not special,
            "special": special,
        }
        for number, text in enumerate(texts)
    ]
    change(path, added_tokens=[*added, *more])
    return {each["content"]: each["id"] for each in more}


def ids_of(folder: Path) -> dict[str, int]:
    stored = json.loads((folder / "tokenizer.json").read_text())
    return {each["content"]: each["id"] for each in stored["added_tokens"]}


def template(folder: Path, before: str = "", after: str = "") -> None:
    """Let the tokenizer put tokens around a text."""
    ids = ids_of(folder)
    tokens = [[{"SpecialToken": {"id": text, "type_id": 0}}] if text else [] for text in (before, after)]
    single = [*tokens[0], {"Sequence": {"id": "A", "type_id": 0}}, *tokens[1]]
    pair = [*single, *(tokens[0]), {"Sequence": {"id": "B", "type_id": 1}}, *tokens[1]]
    named = {text: {"id": text, "ids": [ids[text]], "tokens": [text]} for text in (before, after) if text}
    processor = {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": named}
    change(folder / "tokenizer.json", post_processor=processor)


def llama(folder: Path) -> None:
    """Several ids that end a text, as in Llama 3."""
    more = add_tokens(folder, "<|eot_id|>", "<|eom_id|>")
    ends = [ids_of(folder)["<|end_of_text|>"], *more.values()]
    change(folder / "config.json", eos_token_id=ends)
    change(folder / "generation_config.json", eos_token_id=ends, temperature=0.6, top_p=0.9, do_sample=True)


def mistral(folder: Path) -> None:
    """Added tokens beside a tokenizer.model, which tokenizer_config.json declares."""
    more = {**add_tokens(folder, "[INST]"), **add_tokens(folder, "[IMG]", special=False)}
    declared = {
        str(number): {
            "content": text,
            "special": text == "[INST]",
            "normalized": False,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
        }
        for text, number in more.items()
    }
    change(folder / "tokenizer_config.json", added_tokens_decoder=declared)


def qwen2(folder: Path) -> None:
    """A chat template in tokenizer_config.json, and all defaults of sampling that a generation_config.json has."""
    change(folder / "tokenizer_config.json", chat_template=CHAT)
    change(
        folder / "generation_config.json",
        do_sample=True,
        temperature=0.7,
        top_k=20,
        top_p=0.8,
        min_p=0.05,
        repetition_penalty=1.05,
    )


def qwen3(folder: Path) -> None:
    """Pooling by the last token, and a template that appends another token than eos, as in Qwen3-Embedding."""
    template(folder, after="<|endoftext|>")
    (folder / "modules.json").write_text(json.dumps(MODULES))
    change(folder / "1_Pooling" / "config.json", word_embedding_dimension=64, pooling_mode_lasttoken=True)


def qwen3_moe(folder: Path) -> None:
    """Chat templates in files."""
    (folder / "chat_template.jinja").write_text(CHAT)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(f"tools{CHAT}")


def glm4(folder: Path) -> None:
    """A prefix of two tokens, and turns that end where the next begins."""
    more = add_tokens(folder, "[gMASK]", "<sop>", "<|user|>", "<|observation|>")
    template(folder, before="[gMASK]")
    ends = [ids_of(folder)["<|endoftext|>"], more["<|user|>"], more["<|observation|>"]]
    change(folder / "config.json", eos_token_id=ends)
    change(folder / "generation_config.json", eos_token_id=ends)


def gpt_oss(folder: Path) -> None:
    """Ids of a conversation, of which one does not end it."""
    more = add_tokens(folder, "<|return|>", "<|call|>", "<|end|>")
    ends = [more["<|return|>"], more["<|call|>"]]
    change(folder / "config.json", eos_token_id=more["<|return|>"])
    change(folder / "tokenizer_config.json", eos_token="<|return|>")
    change(folder / "generation_config.json", eos_token_id=ends)


def gemma4(folder: Path) -> None:
    """A token for every row, since the converter cuts the others; its chat parser reads these."""
    add_tokens(folder, *VISIBLE, "<mask>")


def gpt2(folder: Path) -> None:
    """The setting that the converter reads."""
    change(folder / "config.json", n_ctx=families.SIZE["max_position_embeddings"])


FOLDERS: dict[str, tuple[Callable[[Path], None] | None, str]] = {
    "llama": (llama, "llama-bpe"),
    "mistral": (mistral, "default"),
    "gemma2": (None, "default"),
    "gemma3_text": (None, "default"),
    "phi3-longrope": (None, "default"),
    "qwen2": (qwen2, "qwen2"),
    "qwen3": (qwen3, "qwen2"),
    "qwen3_moe": (qwen3_moe, "qwen2"),
    "glm4": (glm4, "glm4"),
    "granite": (None, "smollm"),
    "gpt_oss": (gpt_oss, "gpt-4o"),
    "deepseek_v3": (None, "deepseek-v3"),
    "lfm2": (None, "llama-bpe"),
    "gpt2": (gpt2, "gpt-2"),
    "gemma4_text": (gemma4, "gemma4"),
}
"""Family of `oracles.families` -> what is changed, and the name of its pre-tokenizer."""


def make(root: Path) -> dict[str, Path]:
    """The folders, by family."""
    folders = {name: families.make(name, root / name) for name in FOLDERS}
    for name, folder in folders.items():
        dress = FOLDERS[name][0]
        if dress is not None:
            dress(folder)
    return folders
