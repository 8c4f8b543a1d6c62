"""`uqff_report.json`: what each layer was to be, and is."""

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
    """The report as mistral.rs writes it, by Squish. The type of most layers counts as the one that was asked for."""
    stored = {layer.key: type_name(layer.spec) for layer in layers}
    counts = Counter(stored.values())
    default = counts.most_common(1)[0][0] if counts else "unquant"
    details: list[dict[str, Any]] = []
    for layer in layers:
        resolved = _promoted(default) if is_promoted(layer.key) else default
        details.append({
            "module": layer.key, "default_target": default, "resolved_target": resolved, "stored": stored[layer.key],
            "shape": list(layer.spec.shape),
        })  # fmt: skip
    fallbacks = [
        {"module": each["module"], "from": each["resolved_target"], "to": each["stored"], "shape": each["shape"]}
        for each in details if each["stored"] != each["resolved_target"]
    ]  # fmt: skip
    output = {
        "quant": default, "shards": list(shards), "layers": len(layers), "actual_counts": dict(sorted(counts.items())),
        "fallback_count": len(fallbacks), "fallbacks": fallbacks, "layer_details": details,
    }  # fmt: skip
    report = {"schema": 1, "generated_by": {"tool": "squish"}, "uqff_version": version, "outputs": [output]}
    return (json.dumps(report, indent=2) + "\n").encode()


def findings(output: Mapping[str, Any]) -> list[Problem]:
    """A note of the layers that a report says are stored as another type than they were to be.

    The layers are compared one by one: the count that mistral.rs 0.9.5 states is 0 whatever there is.
    """
    details = output.get("layer_details")
    found: Counter[str] = Counter()
    for each in details if isinstance(details, list) else ():
        wanted, stored = (each.get(key) if isinstance(each, dict) else None for key in ("resolved_target", "stored"))
        if isinstance(wanted, str) and isinstance(stored, str) and wanted != stored:
            found[f"{wanted[:20]} -> {stored[:20]}"] += 1
    if not found:
        return []
    told = ", ".join(f"{count} {change}" for change, count in found.most_common(8))
    message = f"says that layers could not be stored as they were to be: {told}"
    return [Problem(code="fallback", severity="note", where=REPORT, message=message)]


def type_name(spec: TensorSpec) -> str:
    """What mistral.rs calls the type of a layer."""
    codec = spec.encodings[0].codec
    if codec.id in ("affine", "hqq"):
        return f"{'afq' if codec.id == 'affine' else 'hqq'}{codec.params['bits']}"
    short = {"dense": "unquant", "float8": "fp8", "uqff.f8q8": "f8q8", "mx": "mxfp4"}
    return short.get(codec.id) or _short(codec.id.removeprefix("ggml."))


def _short(name: str) -> str:
    return name.replace("_k", "k")


def _promoted(name: str) -> str:
    """The type that lm_head and embeddings get."""
    table = {f"afq{bits}": f"afq{finer}" for bits, finer in tables.AFQ_PROMOTED.items()}
    table |= {_short(kind): _short(finer) for kind, finer in tables.GGML_PROMOTED.items()}
    return table.get(name, name)
