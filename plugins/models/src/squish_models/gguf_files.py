"""The files of a Hugging Face folder for a GGUF; those that need its vocabulary are computed on access."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from attrs import evolve
from squish_convert.api import Model

from squish_core.api import ErrorCode, FormatError, SquishError, check_assets

from .config.gguf_defaults import LoadedKeys
from .config.spelling import text_config
from .config_file import (
    config_agrees,
    config_keys,
    dump_json,
    respelled,
    undeclared,
    vector_dtype,
    with_null_dtype,
    written_config,
)
from .dense_modules import dense_files
from .general import POOLING, general_keys, pooling_files, score_files
from .keep import DIGEST, KEYS_FILE, kept_keys, restored_files, same_value, tokenizer_digest
from .mlx_folder import for_mlx
from .reranking import score_settings, without_prompt
from .settings import CONFIG, TextSettings
from .tokenizer import (
    FILES,
    HUGGINGFACE,
    VOCABULARY_FILES,
    Content,
    EncodedFiles,
    Tokenizer,
    Vocabulary,
    describes_tokenizer,
    generation_config,
    huggingface_content,
    parse_files,
    read_content,
    read_gguf,
    read_special,
    stored_keys,
    stored_tokens,
)
from .tokenizer import gguf_keys as tokenizer_keys

GENERATION = "generation_config.json"
REPORTS = ("uqff_report.json",)
"""Files that describe how a source is stored, not the model."""
VOCABULARIES = frozenset(VOCABULARY_FILES)


class GgufFiles(Mapping[str, bytes]):
    """The files of a GGUF: those stored in or next to it that agree with its keys; the others are rebuilt.

    Parameters
    ----------
    vocabulary
        The vocabulary in the keys, if it has been read.

    Attributes
    ----------
    has_config
        Whether config.json was stored; otherwise it is built from the keys.
    vectors
        The dtype of dense tensors in a stored config.
    """

    def __init__(
        self, family: TextSettings, model: Model, settings: Mapping[str, Any], vocabulary: Vocabulary | None = None
    ) -> None:
        model = evolve(model, meta=without_prompt(family.architecture, model.meta))
        self._family, self._model, self._vocabulary = family, model, vocabulary
        kept, self._names = restored_files(model.meta)
        kept = {**inner_tokenizer(model.meta), **kept}
        assets = {name: data for name, data in model.assets.items() if name not in REPORTS}
        check_assets(assets)
        if model.config() and not config_agrees(family, model, assets[CONFIG]):
            raise FormatError(
                "contradicts the keys of the GGUF",
                part=CONFIG,
                code=ErrorCode.CONTRADICTION,
                hint="Leave out {option:assets}; the GGUF contains the settings.",
            )
        number = LoadedKeys(family.architecture, model.meta)[POOLING]
        pooling = pooling_files(number, settings["hidden_size"], dense_files(settings))
        score = score_settings(family.architecture, model.meta)
        pooling |= score_files(score) if score is not None else {}
        own = {name: data for name, data in pooling.items() if not self._names or name in self._names}
        self._files, self.vectors = {**own, **kept, **assets}, None
        self._special = read_special(model.meta, settings["vocab_size"])
        self._agreeing: Tokenizer | None = None
        self.has_config = CONFIG in self._files and config_agrees(family, model, self._files[CONFIG])
        if self.has_config:
            self.vectors = vector_dtype(text_config(json.loads(self._files[CONFIG])))
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

    def check_tokenizer(self) -> bool:
        """Check the vocabulary unless it was checked when it was stored, and return whether there is a tokenizer."""
        if self._special is not None and not self._is_unchanged:
            read_gguf(self._model.meta)
        return self._special is not None

    def _available(self) -> Mapping[str, bytes]:
        """Return the files that need no vocabulary."""
        if self._special is None:
            return self._files
        files = {CONFIG: self._files[CONFIG]}
        has_own = not any(name in self._files for name in FILES) and (not self._names or GENERATION in self._names)
        if has_own and self._family.generates:
            files[GENERATION] = generation_config(self._special)
        return files

    @cached_property
    def tokenizer_keys(self) -> Mapping[str, Any]:
        """GGUF's keys for the files' tokenizer; none if the GGUF has no tokenizer keys to compare."""
        if self._special is None:
            return {}
        if self._is_unchanged:
            return stored_keys(self._model.meta)
        tokenizer = self._agreeing or self._read(self._described[1])
        return tokenizer_keys(tokenizer) if tokenizer is not None else {}

    def _read(self, content: Content) -> Tokenizer | None:
        config = text_config(json.loads(self._files[CONFIG]))
        return read_content(content, config, self._family.pretokenizers, self._family.merging)

    @cached_property
    def _is_unchanged(self) -> bool:
        """Whether neither the keys nor the stored files have changed since they were written."""
        meta, files = self._model.meta, self._files
        if DIGEST not in meta:
            return False
        kept = {name: data for name, data in files.items() if describes_tokenizer(name)}
        return same_value(
            meta[DIGEST], tokenizer_digest(stored_keys(meta), kept, text_config(json.loads(files[CONFIG])))
        )

    @property
    def _all(self) -> Mapping[str, bytes]:
        if self._is_unchanged and not set(self._names).difference(self._files, self._without_vocabulary):
            return {**self._without_vocabulary, **self._files}
        return self._described[0]

    @cached_property
    def _described(self) -> tuple[Mapping[str, bytes], Content]:
        """All files and the content of the tokenizer's: files that agree with the keys, otherwise rebuilt ones."""
        names, files, unchanged = self._names, self._files, self._is_unchanged
        ranked = not unchanged or "tokenizer.json" not in files
        tokenizer = read_gguf(self._model.meta, self._vocabulary, checked=unchanged, ranked=ranked)
        if tokenizer is None:
            return files, parse_files(files)
        content = huggingface_content(tokenizer, gemma=self._family.gemma_tokenizer)
        if not self._family.generates:
            content = content.select([name for name in content.names if name != GENERATION])
        rebuilt = content.select(names) if names else content
        own = Content() if "tokenizer.json" in files and not names else rebuilt
        if unchanged:
            return EncodedFiles(tokenizer, own, files), own
        others = {name: data for name, data in files.items() if not describes_tokenizer(name)}
        if len(others) < len(files) and (agreeing := self._agreeing_content(files, own)) is not None:
            return EncodedFiles(tokenizer, own, files), agreeing
        if len(others) < len(files):  # all are rebuilt, since a changed chat template may belong to none of the names
            own = content.select((*names, "tokenizer_config.json")) if names else content
        return EncodedFiles(tokenizer, own, others), parse_files(others, own)

    def _agreeing_content(self, files: Mapping[str, bytes], own: Content) -> Content | None:
        """Return the content of files whose tokenizer agrees with the keys; None if it does not."""
        try:
            content = parse_files(files, own)
            tokenizer = self._read(content)
        except SquishError:
            return None
        keys, meta = {} if tokenizer is None else tokenizer_keys(tokenizer), self._model.meta
        if not all(same_value(meta[key], value) for key, value in keys.items() if key in meta):
            return None
        self._agreeing = tokenizer
        return content

    def matches(self, name: str, data: bytes) -> bool:
        """Return whether a file has these bytes."""
        files = self._all
        return files.matches(name, data) if isinstance(files, EncodedFiles) else self.get(name) == data

    def __getitem__(self, name: str) -> bytes:
        files = self._without_vocabulary
        if name in files or not (name in self._files or describes_tokenizer(name)):
            return files[name]
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        # each file of an unchanged tokenizer is stored or can be rebuilt
        others = (*self._files, *self._names) if self._is_unchanged else self._all
        return iter(dict.fromkeys((*self._without_vocabulary, *others)))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def inner_tokenizer(meta: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the tokenizer.json that a key contains."""
    value = getattr(meta.get(HUGGINGFACE), "value", None)
    return {"tokenizer.json": value.encode(errors="surrogatepass")} if isinstance(value, str) else {}


class FolderFiles(Mapping[str, bytes]):
    """The files of a GGUF in a folder of another layout, with the keys that cannot be rebuilt from them."""

    def __init__(self, family: TextSettings, model: Model, settings: Mapping[str, Any], layout: str) -> None:
        self._family, self._model, self._settings = family, model, settings
        self.files = GgufFiles(family, model, settings)
        config = self.files[CONFIG]
        if layout != "hf":
            config = respelled(family, config, settings)
            config = for_mlx(config, {}, model.name, family.mlx_type, family.mlx_part) if layout == "mlx" else config
        elif not self.files.has_config:
            config = with_null_dtype(config)  # the writer fills it in
        self._config = config

    @cached_property
    def _keys(self) -> Mapping[str, bytes]:
        keys, _ = config_keys(self._family, self._settings)
        meta = self._model.meta
        general = general_keys(
            self._family,
            self._model,
            self._settings,
            self._model.vectors.values(),
            self.files,
            lambda: stored_tokens(meta),
        )
        return kept_keys(meta, {**keys, **general, **self.files.tokenizer_keys})

    def __getitem__(self, name: str) -> bytes:
        if name == CONFIG:
            return self._config
        return self._keys[name] if name == KEYS_FILE and name in self._keys else self.files[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self.files, *self._keys)))

    def __len__(self) -> int:
        return sum(1 for _ in self)
