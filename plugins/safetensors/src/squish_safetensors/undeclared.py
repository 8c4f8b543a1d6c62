"""Codes with undeclared scales, recognized by dtype and name, so that they are not read as values.

Imported only for files with dtypes of codes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attrs import evolve, frozen

from squish_core.api import ErrorCode, Index, LazyTensors, Limits, Problem, Source

from .folder import CONFIG_FILE, DECLARING
from .header import TAGS, TensorRecord, read_record
from .refine.declarations import MLX, QUANTIZATION_KEYS, config_parts
from .refine.files import CheckpointFiles

FLOAT_CODES = frozenset(
    ("f8_e4m3", "f8_e5m2", "f8_e4m3fnuz", "f8_e5m2fnuz", "f8_e8m0", "f6_e2m3", "f6_e3m2", "f4_e2m1")
)
"""Dtypes of codes under any name; integers are codes only under the name of a weight."""
INTEGER_CODES = frozenset(("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"))
UQFF = "uqff.version.major"
"""A tensor by which UQFF declares the codes of its file."""
CODES = FLOAT_CODES | INTEGER_CODES
SCALES = frozenset(("f16", "bf16", "f32", "f64", "u8", "i8", *FLOAT_CODES))
"""Dtypes of scales."""

WEIGHT = re.compile(r"weight|qdata|_data$|blocks$|packed|codes?$|kernel|proj|embed|^W_q$|^B$|^compressed$|^w\d?$")
SCALE = re.compile(r"scal(?:es?|ing)|absmax|amax|^s$|^SCB$|_s_rel$|_s_channel$|^comfy_quant$")
"""Words in the last component of a name: factors of a weight's codes, or the marker of another tool."""
OF_ACTIVATIONS = re.compile(
    r"(?:^|_)(?:in|input|inputs|output|act|activation|q|k|v|kv|kv_cache|softmax|prob|logit|rope|layer|smooth|pre_quant"
    r"|prequant)_(?:global_|per_tensor_)?scal|scale_(?:input|output|act)$|scale_ub$|qscale_act"
)
"""Scales that no weight needs."""
OTHER = re.compile(
    r"zero|zp$|g_idx|shape|perm|order|index|indices|bitmask|row_offsets|quant_map|format$|_offset|quant_state|codebook"
    r"|wf_|nbits|group_size|position|mask|ids?$"
)
"""Integers that are not codes of weights."""


@frozen
class Convention:
    """A naming convention for scales: patterns of the last component of the names, and the declaration."""

    scale: str
    codes: str
    dtypes: frozenset[str]
    declared_by: str
    option: str = ""

    def matches(self, scale: str, codes: str, dtype: str) -> bool:
        """Return whether codes and scale have names of this convention."""
        return bool(re.search(self.scale, scale) and re.search(self.codes, codes) and dtype in self.dtypes)


def _method(name: str, more: str = "") -> str:
    return f'"quantization_config": {{"quant_method": "{name}"{more}}} in config.json'


CONVENTIONS = (
    Convention("^comfy_quant$", "", CODES, "a complete comfy_quant tensor"),
    Convention("^scale_weight$", "", FLOAT_CODES, "a tensor scaled_fp8 (ComfyUI)", "hf:method=comfyui"),
    Convention("^qscale_weight$", "", FLOAT_CODES, "its name (Mistral)", "hf:method=mistral"),
    Convention("absmax", "", CODES | SCALES, _method("bitsandbytes", ', "load_in_4bit": true'),
               "hf:method=bitsandbytes"),
    Convention("^SCB$", "", CODES, _method("bitsandbytes", ', "load_in_8bit": true'), "hf:method=bitsandbytes"),
    Convention("", "^W_q$", CODES, _method("hqq"), "hf:method=hqq"),
    Convention("", "^_weight_qdata$", CODES, _method("torchao"), "hf:method=torchao"),
    Convention("scales$", "blocks$", CODES, _method("mxfp4"), "hf:method=mxfp4"),
    Convention("weight_scale_2$", "", CODES, _method("modelopt", ', "quant_algo": "NVFP4"'),
               "hf:method=modelopt,quant_algo=NVFP4"),
    Convention("", "^weight_packed$", CODES, _method("compressed-tensors", ', "config_groups": {...}'),
               "hf:method=compressed-tensors,bits=4,group_size=128"),
    Convention("^scales$", "^qweight$", CODES, _method("gptq", ', "bits": 4, "group_size": 128') + " (or awq)",
               "hf:method=gptq,bits=4,group_size=128"),
    Convention("^scales$", "^weight$", frozenset(("u32",)),
               '"quantization": {"bits": 4, "group_size": 64} in config.json',
               "mlx:bits=4,group_size=64"),
    Convention("_weight_scale$", "", FLOAT_CODES, _method("modelopt", ', "quant_algo": "FP8"'),
               "hf:method=modelopt,quant_algo=FP8"),
    Convention("scale(_inv)?$", "", FLOAT_CODES, _method("fp8"), "hf:method=fp8"),
    Convention("weight_scale$", "^weight$", frozenset(("i8",)),
               _method("compressed-tensors", ', "config_groups": {...}'),
               "hf:method=compressed-tensors"),
)  # fmt: skip
UNKNOWN = Convention("", "", CODES, "the settings of the software that wrote it")


def without_declaration(index: Index, records: Mapping[str, TensorRecord], source: Source, limits: Limits) -> Index:
    """Mark codes with scales in an Index, unless a file of the checkpoint declares a quantization."""
    found = undeclared_codes({name: TAGS.get(record[1], "unknown") for name, record in records.items()})
    if not found or UQFF in records or _declares(CheckpointFiles(index, source, limits)):
        return index
    cut = any(problem.where in (CONFIG_FILE, *DECLARING) for problem in index.problems)
    if cut:  # an unreadable declaration is a finding already
        found = {name: problem for name, problem in found.items() if TAGS[records[name][1]] in FLOAT_CODES}
    marked: dict[str, Any] = dict(records)
    marked.update({name: (*records[name], problem) for name, problem in found.items()})
    tensors = LazyTensors(marked, read_record, index.tensors.extents) if isinstance(index.tensors, LazyTensors) else {}
    return evolve(index, tensors=tensors, problems=index.problems if cut else (*index.problems, *found.values()))


def _declares(files: CheckpointFiles) -> bool:
    config = files.json(CONFIG_FILE)
    return any(part.get(key) for _, part in config_parts(config) for key in (*QUANTIZATION_KEYS, MLX)) or any(
        files.json(name) for name in DECLARING
    )


def mark_undeclared(index: Index, *, stored: bool = False) -> Index:
    """Mark the codes with scales that the declared quantization of a checkpoint does not cover.

    Parameters
    ----------
    index : Index
        The Index of the checkpoint, whose layers are tensors already.
    stored : bool
        Whether the Index lists the stored tensors, with a finding that gives the reason: then only float codes, which
        could be taken for values, are marked. `verify` lists them.

    Returns
    -------
    Index
        With `undeclared` set for the remaining codes.

    Examples
    --------
    >>> with squish.open("model.safetensors") as file:
    ...     mark_undeclared(file.index) is file.index
    True
    """
    found = undeclared_codes({name: spec.dtype for name, spec in index.tensors.items()})
    if stored:
        found = {name: problem for name, problem in found.items() if index.tensors[name].dtype in FLOAT_CODES}
    if not found:
        return index
    tensors = {
        name: evolve(spec, undeclared=found[name]) if name in found else spec for name, spec in index.tensors.items()
    }
    return evolve(index, tensors=tensors, problems=(*index.problems, *(() if stored else found.values())))


def undeclared_codes(tensors: Mapping[str, str]) -> dict[str, Problem]:
    """Find codes with scales.

    Parameters
    ----------
    tensors : mapping of str to str
        Name -> dtype of stored tensors.

    Returns
    -------
    dict of str to Problem
        Name of codes -> the finding, with a declaration that would describe them.

    Examples
    --------
    >>> found = undeclared_codes({"up.weight": "f8_e4m3", "up.weight_scale": "f32", "norm.weight": "f32"})
    >>> list(found), found["up.weight"].code
    (['up.weight'], 'undeclared-scales')
    """
    codes: dict[str, list[str]] = defaultdict(list)
    scales = []
    for name, dtype in tensors.items():
        parent, _, leaf = name.rpartition(".")
        if dtype in SCALES and SCALE.search(leaf) and not OF_ACTIVATIONS.search(leaf):
            scales.append((parent, leaf))
        elif dtype in FLOAT_CODES or (dtype in INTEGER_CODES and WEIGHT.search(leaf) and not OTHER.search(leaf)):
            codes[parent].append(leaf)
    found: dict[str, Problem] = {}
    for parent, scale in scales:
        for name in _beside(parent, scale, codes, tensors):
            found.setdefault(name, _finding(name, scale, tensors[name]))
    return found


def _beside(parent: str, scale: str, codes: Mapping[str, Iterable[str]], tensors: Mapping[str, str]) -> Iterator[str]:
    """Return the codes that a scale belongs to: those with its own name, otherwise all of its module."""
    module, _, own = parent.rpartition(".")
    if parent in tensors and ("absmax" in scale or own in codes.get(module, ())):
        yield parent  # x.weight of x.weight.absmax, whose codes may have any dtype
    match = SCALE.search(scale)
    stem = scale[: match.start()].strip("_.") if match else ""
    here = list(codes.get(parent, ()))
    named = [leaf for leaf in here if stem and (leaf.strip("_").startswith(stem) or stem.startswith(leaf))]
    for leaf in named or here:
        yield f"{parent}.{leaf}" if parent else leaf


def _finding(name: str, scale: str, dtype: str) -> Problem:
    leaf = name.rpartition(".")[2]
    convention = next((item for item in CONVENTIONS if item.matches(scale, leaf, dtype)), UNKNOWN)
    option = f"{{option:format={convention.option}}} if that is what they are, or " if convention.option else ""
    message = (
        f"{dtype} codes beside scales ({scale[:40]}) that nothing declares, so their values are not known; "
        f"{convention.declared_by} would declare them. "
        f"Use {option}{{option:format=safetensors:scales=ignore}} to take the codes for the values"
    )
    return Problem(code=ErrorCode.UNDECLARED_SCALES, severity="error", where=name, message=message)
