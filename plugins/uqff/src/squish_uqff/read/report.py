"""`uqff_report.json`: the requested and actual type of each layer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from squish_core.api import Problem, TensorSpec

from .. import tables
from ..write.accept import is_promoted
from ..write.layers import Layer
from .shards import REPORT


def make_report(layers: Sequence[Layer], shards: Sequence[str], version: str) -> bytes:
    """Return a report like mistral.rs's, with the most common type as the requested one."""
    types = {layer.key: type_name(layer.spec) for layer in layers}
    counts = Counter(types.values())
    default = counts.most_common(1)[0][0] if counts else "unquant"
    details: list[dict[str, Any]] = []
    for layer in layers:
        resolved = _promoted(default) if is_promoted(layer.key) else default
        details.append(
            {
                "module": layer.key,
                "default_target": default,
                "resolved_target": resolved,
                "stored": types[layer.key],
                "shape": list(layer.spec.shape),
            }
        )
    fallbacks = [
        {"module": each["module"], "from": each["resolved_target"], "to": each["stored"], "shape": each["shape"]}
        for each in details
        if each["stored"] != each["resolved_target"]
    ]
    output = {
        "quant": default, "shards": list(shards), "layers": len(layers), "actual_counts": dict(sorted(counts.items())),
        "fallback_count": len(fallbacks), "fallbacks": fallbacks, "layer_details": details,
    }  # fmt: skip
    report = {"schema": 1, "generated_by": {"tool": "squish"}, "uqff_version": version, "outputs": [output]}
    return (json.dumps(report, indent=2) + "\n").encode()


def findings(output: Mapping[str, Any]) -> list[Problem]:
    """Report layers stored with a fallback type.

    Layers are compared one by one, since mistral.rs 0.9.5 always reports a count of 0.
    """
    details = output.get("layer_details")
    changes: Counter[str] = Counter()
    for each in details if isinstance(details, list) else ():
        target, actual = (each.get(key) if isinstance(each, dict) else None for key in ("resolved_target", "stored"))
        if isinstance(target, str) and isinstance(actual, str) and target != actual:
            changes[f"{target[:20]} -> {actual[:20]}"] += 1
    if not changes:
        return []
    summary = ", ".join(f"{count} {change}" for change, count in changes.most_common(8))
    message = f"reports layers with a fallback type: {summary}"
    return [Problem(code="fallback", severity="note", where=REPORT, message=message)]


def type_name(spec: TensorSpec) -> str:
    """Return mistral.rs's name for a layer's type."""
    codec = spec.encodings[0].codec
    if codec.id in ("affine", "hqq"):
        return f"{'afq' if codec.id == 'affine' else 'hqq'}{codec.params['bits']}"
    short = {"dense": "unquant", "float8": "fp8", "uqff.f8q8": "f8q8", "mx": "mxfp4"}
    return short.get(codec.id) or _short(codec.id.removeprefix("ggml."))


def _short(name: str) -> str:
    return name.replace("_k", "k")


def _promoted(name: str) -> str:
    """Return the promoted type for lm_head and embeddings."""
    table = {f"afq{bits}": f"afq{finer}" for bits, finer in tables.AFQ_PROMOTED.items()}
    table |= {_short(kind): _short(finer) for kind, finer in tables.GGML_PROMOTED.items()}
    return table.get(name, name)
