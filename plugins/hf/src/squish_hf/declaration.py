"""A checkpoint's quantization declaration, and matching of its layer patterns."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import field, frozen
from squish_safetensors.api import CONFIG_FILE, QUANTIZATION_KEYS, CheckpointFiles, config_parts

from squish_core.api import ErrorCode, FormatError, Problem, UsageError

METHOD = "quant_method"
OWN_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt"}
"""File -> the method whose writers create it; used if config.json declares nothing."""
COMFYUI, MISTRAL = "comfyui", "mistral"
"""Methods that their software recognizes by the names of tensors."""
MAX_SECONDS, MAX_PATTERN = 2.0, 1000


@frozen
class Declared:
    """A quantization configuration: method, fields and location."""

    method: str
    fields: Mapping[str, Any]
    where: str

    def get(self, name: str, kinds: type | tuple[type, ...], default: Any = None) -> Any:
        """Return a field; FormatError for another type (bool is not int). Null means absent."""
        value = self.fields.get(name)
        if value is None:
            return default
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is int):
            raise refuse(name, _type_name(kinds), value, part=self.where)
        return value

    def number(self, name: str, legal: Iterable[int], default: int | None = None) -> int:
        """Return an integer field that must be one of `legal`."""
        value, legal = self.get(name, int, default), tuple(legal)
        if value not in legal:
            raise refuse(name, " or ".join(map(str, legal[:12])), value, part=self.where)
        return int(value)


def _type_name(kinds: type | tuple[type, ...]) -> str:
    kinds = kinds if isinstance(kinds, tuple) else (kinds,)
    names = {
        str: "text",
        dict: "an object",
        list: "a list",
        int: "an integer",
        bool: "true or false",
        float: "a number",
    }
    return " or ".join(names.get(kind, kind.__name__) for kind in kinds)


def refuse(name: str, expected: str, found: Any, *, part: str = CONFIG_FILE) -> FormatError:
    """Return the error for an invalid declared value."""
    return FormatError(
        f"invalid quantization setting {name}",
        part=part,
        expected=expected,
        found=repr(found)[:80],
        code=ErrorCode.CONFIG,
    )


def read_declaration(files: CheckpointFiles) -> tuple[Declared | None, list[Problem]]:
    """Read the declaration in config.json, else in a method's own file; contradictions are reported."""
    config, problems = files.json(CONFIG_FILE), list[Problem]()
    if isinstance(config.get("quantization"), dict):
        return None, []  # MLX's declaration
    declared = declared_in(config)
    for name, method in OWN_FILES.items():
        fields = files.json(name)
        if not fields:
            continue
        fields = fields.get("quantization", fields)
        other = str(fields.get(METHOD, method)) if isinstance(fields, dict) else method
        if declared is None and isinstance(fields, dict):
            declared = Declared(other, fields, name)
        elif declared is not None and other != declared.method:
            message = f"method {other[:40]!r} is ignored: {declared.where} has {declared.method[:40]!r}"
            problems.append(Problem(code=ErrorCode.CONTRADICTION, severity="warning", where=name, message=message))
        elif declared is not None:
            problems += _differences(declared, fields, name)
    return declared or conventional(files), problems


def _differences(declared: Declared, fields: Mapping[str, Any], name: str) -> list[Problem]:
    """Report settings that differ in a second declaration of the same method; the first one applies."""
    return [
        Problem(
            code=ErrorCode.CONTRADICTION,
            severity="warning",
            where=name,
            message=f"{key} {fields[key]!r:.40} is ignored: {declared.where} has {declared.fields[key]!r:.40}",
        )
        for key in ("bits", "group_size", "desc_act", "sym", "checkpoint_format", "zero_point", "version")
        if key in fields and key in declared.fields and fields[key] != declared.fields[key]
    ]


def conventional(files: CheckpointFiles) -> Declared | None:
    """Return the method that software recognizes by name: ComfyUI's markers, Mistral's `qscale_weight`."""
    index = files.index
    if "_quantization_metadata" in index.meta:
        return Declared(COMFYUI, {}, "_quantization_metadata")
    if not any(problem.code == ErrorCode.UNDECLARED_SCALES for problem in index.problems):
        return None  # without codes that have scales, names need no check
    marks = ((".qscale_weight", MISTRAL), (".comfy_quant", COMFYUI), (".scaled_fp8", COMFYUI))
    for end, method in marks:
        if any(f".{name}".endswith(end) for name in index.tensors):
            return Declared(method, {}, f"*{end}")
    return None


INTEGERS = {method: {"bits": 4, "group_size": 128} for method in ("gptq", "awq", "compressed-tensors")}
"""Methods of integer codes -> the settings that most of their checkpoints have."""


def requested(options: Mapping[str, str], methods: Iterable[str]) -> Declared | None:
    """Return the declaration in the read options, for a checkpoint without one; UsageError if it is invalid."""
    where = "format="
    if not options:
        return None
    method = options.get("method", "")
    if method not in methods:
        raise UsageError(
            "hf cannot read this method",
            expected=", ".join(methods),
            found=repr(method),
            code=ErrorCode.OPTION,
            hint="For example {option:format=hf:method=fp8}.",
        )
    fields: dict[str, Any] = {METHOD: method, **INTEGERS.get(method, {})}
    if "quant_algo" in options:
        fields["quant_algo"] = options["quant_algo"]
    for key in ("bits", "group_size"):
        if key in options:
            if re.fullmatch(r"-?\d{1,9}", options[key]) is None:
                raise UsageError(f"invalid {key}", expected="a number", found=repr(options[key]), code=ErrorCode.OPTION)
            fields[key] = int(options[key])
    if method == "compressed-tensors":
        fields["config_groups"] = _possible_groups(fields["bits"], fields["group_size"])
    return Declared(method, fields, where)


def _possible_groups(bits: int, group_size: int) -> dict[str, Any]:
    """Return groups of compressed-tensors; the parts of a layer fit only one. Those with zero points come first."""
    sizes = {"group_size": group_size, "strategy": "group" if group_size > 0 else "channel"}
    weights = [
        *(("pack-quantized", {"num_bits": bits, "symmetric": symmetric, **sizes}) for symmetric in (False, True)),
        *(("int-quantized", {"num_bits": 8, "symmetric": symmetric, "strategy": strategy})
          for symmetric in (False, True) for strategy in ("channel", "tensor")),
        *(("float-quantized", {"num_bits": 8, "type": "float", "strategy": strategy, "block_structure": [128, 128]})
          for strategy in ("tensor", "channel", "block")),
        ("nvfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}),
        ("mxfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}),
        ("mxfp8-quantized", {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32}),
    ]  # fmt: skip
    return {
        f"group_{number}": {"targets": [f"Linear{number}"], "format": form, "weights": fields}
        for number, (form, fields) in enumerate(weights)
    }


def declared_in(config: Mapping[str, Any]) -> Declared | None:
    """Return `quantization_config` (formerly `compression_config`) of the model or a part (`text_config`, ...)."""
    for _, part in config_parts(config):
        for key in QUANTIZATION_KEYS:
            fields = part.get(key)
            if isinstance(fields, dict) and fields:
                return Declared(_method(fields), fields, CONFIG_FILE)
            if fields:
                return Declared(repr(fields), {}, CONFIG_FILE)  # not an object, so no method
    return None


def _method(fields: Mapping[str, Any]) -> str:
    """Return the method; before Transformers 4.34, bitsandbytes only declared the number of bits."""
    oldest = "bitsandbytes" if fields.get("load_in_4bit") or fields.get("load_in_8bit") else ""
    return str(fields.get(METHOD) or oldest)


@frozen
class Patterns:
    """Regular expressions from a file, matched at the start of names, in bounded total time."""

    where: str
    _compiled: dict[str, Any] = field(factory=dict)
    _spent: list[float] = field(factory=lambda: [0.0])

    def matches(self, pattern: str, name: str) -> bool:
        """Return whether a pattern matches; FormatError if it is invalid or too slow."""
        import regex  # imported here because every safetensors file is examined, mostly without patterns

        left = MAX_SECONDS - self._spent[0]
        started = time.monotonic()
        try:
            if len(pattern) > MAX_PATTERN or left <= 0:
                raise TimeoutError
            if pattern not in self._compiled:
                self._compiled[pattern] = regex.compile(pattern)
            return self._compiled[pattern].match(name, timeout=left) is not None
        except TimeoutError:
            raise refuse("pattern", "a shorter or simpler regular expression", pattern, part=self.where) from None
        except (regex.error, RecursionError, OverflowError, MemoryError):
            raise refuse("pattern", "a regular expression", pattern, part=self.where) from None
        finally:
            self._spent[0] += time.monotonic() - started
