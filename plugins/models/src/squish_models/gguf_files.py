"""The files of a Hugging Face folder, for a GGUF. What needs its vocabulary is computed when it is read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from squish_core.api import ErrorCode, FormatError, Model, SquishError

from .config_file import config_agrees, config_keys, dump_json, respelled, undeclared, vector_dtype, written_config
from .keep import KEYS_FILE, kept_keys, restored_files, same_value
from .settings import CONFIG, TextSettings
from .tokenizer import (
    FILES,
    TEMPLATE_FOLDER,
    Tokenizer,
    generation_config,
    huggingface_files,
    read_gguf,
    read_huggingface,
    read_special,
)
from .tokenizer import gguf_keys as tokenizer_keys

GENERATION = "generation_config.json"
REPORTS = ("uqff_report.json",)
"""Files that describe how a source is stored, not the model."""
VOCABULARIES = frozenset(("tokenizer.json", "tokenizer.model"))


class GgufFiles(Mapping[str, bytes]):
    """The files of a GGUF: kept ones and those beside it that agree with its keys; the others are rebuilt.

    Attributes
    ----------
    vectors
        The dtype of dense tensors that the config states.
    """

    def __init__(self, family: TextSettings, model: Model, settings: Mapping[str, Any]) -> None:
        self._family, self._model = family, model
        kept, self._names = restored_files(model.meta)
        lent = {name: data for name, data in model.assets.items() if name not in REPORTS}
        if CONFIG in lent and not config_agrees(family, model, lent[CONFIG]):
            raise FormatError(
                "contradicts the keys of the GGUF", part=CONFIG, code=ErrorCode.CONTRADICTION,
                hint="Leave out assets=; the GGUF contains the settings.",
            )  # fmt: skip
        self._files, self.vectors = {**kept, **lent}, None
        self._special = read_special(model.meta)
        self._agreeing: Tokenizer | None = None
        if CONFIG in self._files and config_agrees(family, model, self._files[CONFIG]):
            self.vectors = vector_dtype(json.loads(self._files[CONFIG]))
            self._files[CONFIG] = undeclared(self._files[CONFIG])
        else:
            self._files[CONFIG] = dump_json(written_config(family, settings, self._special))
        self._without_vocabulary = self._available()

    @property
    def has_vocabulary(self) -> bool:
        """Whether there is a tokenizer."""
        if self._special is not None and (not self._names or VOCABULARIES.intersection(self._names)):
            return True
        return not VOCABULARIES.isdisjoint(self)

    def _available(self) -> Mapping[str, bytes]:
        """The files that need no vocabulary."""
        if self._special is None:
            return self._files
        files = {CONFIG: self._files[CONFIG]}
        if not any(name in self._files for name in FILES) and (not self._names or GENERATION in self._names):
            files[GENERATION] = generation_config(self._special)
        return files

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer that the files describe."""
        files = self._all
        return self._agreeing or read_huggingface(files, json.loads(files[CONFIG]))

    @cached_property
    def _all(self) -> Mapping[str, bytes]:
        tokenizer, names, files = read_gguf(self._model.meta), self._names, self._files
        if tokenizer is None:
            return files
        from_keys = huggingface_files(tokenizer, gemma=self._family.gemma_tokenizer)
        rebuilt = {name: data for name, data in from_keys.items() if not names or name in names}
        describing = {name for name in files if name in FILES}
        own = {} if "tokenizer.json" in files and not names else rebuilt
        if not describing or self._agrees({**own, **files}):
            return {**own, **files}
        return {**rebuilt, **{name: data for name, data in files.items() if name not in describing}}

    def _agrees(self, files: Mapping[str, bytes]) -> bool:
        """Whether the tokenizer in files agrees with the keys; if so, it is kept."""
        try:
            tokenizer = read_huggingface(files, json.loads(files[CONFIG]))
        except SquishError:
            return False
        keys, meta = {} if tokenizer is None else tokenizer_keys(tokenizer), self._model.meta
        agrees = all(same_value(meta[key], value) for key, value in keys.items() if key in meta)
        self._agreeing = tokenizer if agrees else None
        return agrees

    def __getitem__(self, name: str) -> bytes:
        files = self._without_vocabulary
        if name in files or not (name in self._files or name in FILES or name.startswith(TEMPLATE_FOLDER)):
            return files[name]
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)


class FolderFiles(Mapping[str, bytes]):
    """The files of a GGUF in a folder of another layout, with the keys that cannot be rebuilt from them."""

    def __init__(self, family: TextSettings, model: Model, settings: Mapping[str, Any], layout: str) -> None:
        self._family, self._model, self._settings = family, model, settings
        self.files = GgufFiles(family, model, settings)
        config = self.files[CONFIG]
        self._config = config if layout == "hf" else respelled(family, config, settings)

    @cached_property
    def _keys(self) -> Mapping[str, bytes]:
        keys, _ = config_keys(self._family, self._settings)
        tokenizer = self.files.tokenizer
        return kept_keys(self._model.meta, keys | (tokenizer_keys(tokenizer) if tokenizer is not None else {}))

    def __getitem__(self, name: str) -> bytes:
        if name == CONFIG:
            return self._config
        return self._keys[name] if name == KEYS_FILE and name in self._keys else self.files[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self.files, *self._keys)))

    def __len__(self) -> int:
        return sum(1 for _ in self)
