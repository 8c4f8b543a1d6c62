"""What a checkpoint declares about its quantization, and which layers its patterns name."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import regex
from attrs import field, frozen
from squish_safetensors.api import CONFIG_FILE, QUANTIZATION_KEYS, CheckpointFiles, config_parts

from squish_core.api import FormatError, Problem

METHOD = "quant_method"
BESIDE = {"quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt"}
"""File of its own -> the method whose writers leave it; it counts where config.json declares nothing."""
BUDGET, LONGEST = 2.0, 1000


@frozen
class Declared:
    """A quantization configuration: its method, its fields, and where it stands."""

    method: str
    fields: Mapping[str, Any]
    where: str

    def get(self, name: str, kinds: type | tuple[type, ...], default: Any = None) -> Any:
        """A field, FormatError where it is of another type (bool is no int); null counts as absent."""
        value = self.fields.get(name)
        if value is None:
            return default
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is int):
            raise refuse(name, "another type", value, part=self.where)
        return value

    def number(self, name: str, legal: Iterable[int], default: int | None = None) -> int:
        """An integer field that must be one of `legal`."""
        value, legal = self.get(name, int, default), tuple(legal)
        if value not in legal:
            raise refuse(name, " or ".join(map(str, legal[:12])), value, part=self.where)
        return int(value)


def refuse(name: str, expected: str, found: Any, *, part: str = CONFIG_FILE) -> FormatError:
    """The error for a declared value that no reader could follow."""
    return FormatError(
        f"the declared {name} cannot be", part=part, expected=expected, found=repr(found)[:80], code="config"
    )


def read_declaration(files: CheckpointFiles) -> tuple[Declared | None, list[Problem]]:
    """What config.json declares, or else a file of one method; what contradicts it is a finding."""
    config, problems = files.json(CONFIG_FILE), list[Problem]()
    if isinstance(config.get("quantization"), dict):
        return None, []  # that of MLX
    declared = declared_in(config)
    for name, method in BESIDE.items():
        fields = files.json(name)
        if not fields:
            continue
        fields = fields.get("quantization", fields)
        other = str(fields.get(METHOD, method)) if isinstance(fields, dict) else method
        if declared is None and isinstance(fields, dict):
            declared = Declared(other, fields, name)
        elif declared is not None and other != declared.method:
            message = f"states the method {other[:40]!r}, and {declared.where} {declared.method[:40]!r}, which is taken"
            problems.append(Problem(code="contradiction", severity="warning", where=name, message=message))
        elif declared is not None:
            problems += _differences(declared, fields, name)
    return declared, problems


def _differences(declared: Declared, fields: Mapping[str, Any], name: str) -> list[Problem]:
    """Settings that a second declaration of the same method states otherwise; the first one is taken."""
    return [
        Problem(
            code="contradiction", severity="warning", where=name,
            message=f"states {key} {fields[key]!r:.40}; {declared.fields[key]!r:.40} of {declared.where} is taken",
        )
        for key in ("bits", "group_size", "desc_act", "sym", "checkpoint_format", "zero_point", "version")
        if key in fields and key in declared.fields and fields[key] != declared.fields[key]
    ]  # fmt: skip


def declared_in(config: Mapping[str, Any]) -> Declared | None:
    """`quantization_config` (once `compression_config`) of the model, or of a part of it (`text_config`, ...)."""
    for _, part in config_parts(config):
        for key in QUANTIZATION_KEYS:
            fields = part.get(key)
            if isinstance(fields, dict) and fields:
                return Declared(_method(fields), fields, CONFIG_FILE)
            if fields:
                return Declared(repr(fields), {}, CONFIG_FILE)  # not an object: no method is stated
    return None


def _method(fields: Mapping[str, Any]) -> str:
    """The stated method; before Transformers 4.34 bitsandbytes stated only the bits that it loads in."""
    eldest = "bitsandbytes" if fields.get("load_in_4bit") or fields.get("load_in_8bit") else ""
    return str(fields.get(METHOD) or eldest)


@frozen
class Patterns:
    """Regular expressions from a file, matched from the start of a name, within a bounded time in all."""

    where: str
    _compiled: dict[str, Any] = field(factory=dict)
    _spent: list[float] = field(factory=lambda: [0.0])

    def matches(self, pattern: str, name: str) -> bool:
        """Whether a pattern matches; FormatError where it is none, or costs too much."""
        left = BUDGET - self._spent[0]
        started = time.monotonic()
        try:
            if len(pattern) > LONGEST or left <= 0:
                raise TimeoutError
            if pattern not in self._compiled:
                self._compiled[pattern] = regex.compile(pattern)
            return self._compiled[pattern].match(name, timeout=left) is not None
        except TimeoutError:
            raise refuse("pattern", "one that is matched quickly", pattern, part=self.where) from None
        except (regex.error, RecursionError, OverflowError, MemoryError):
            raise refuse("pattern", "a regular expression", pattern, part=self.where) from None
        finally:
            self._spent[0] += time.monotonic() - started
