"""Tensor types that an engine does not run, or computes differently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

from squish_convert.api import Inventory

from squish_core.api import File, Problem, TensorSpec

from .requirements import Engine, Reading

LISTED = 3
"""Number of tensor names that a problem lists."""
EXPERTS = ("*_exps.*", "*.experts.*")
"""Name patterns of experts."""
VERDICTS = {
    "error": ("error", "does not run"),
    "cpu": ("warning", "does not run on a CPU"),
    "warning": ("warning", "computes otherwise"),
}
"""What an engine does with a codec -> severity, and text of the message."""


def type_problems(file: File, engine: Engine, reading: Reading, inventory: Inventory) -> Iterator[Problem]:
    """Find tensors stored in a way that the engine does not support, grouped by encoding."""
    groups: dict[tuple[str, str], list[str]] = {}
    sources = inventory.coverage.sources if inventory.coverage is not None else {}
    experts = reading.experts.get(inventory.naming.family or "", {})
    for name, spec in file.index.tensors.items():
        verdict = _expert_verdict(spec, experts)
        stored = spec.encodings[0].codec.id if verdict else _not_run(spec, reading)
        rule = sources[name].rule if name in sources else None
        if stored is None and reading.vectors and rule is not None and rule.dtype not in (None, spec.dtype):
            stored = f"{spec.dtype} instead of {rule.dtype}"
        if stored is not None:
            groups.setdefault((verdict or "error", stored), []).append(name)
    for (verdict, stored), names in groups.items():
        severity, text = VERDICTS[verdict]
        listed = ", ".join(names[1:LISTED])
        more = f"; so are {listed}{f' and {len(names) - LISTED} more' if len(names) > LISTED else ''}" if listed else ""
        yield Problem(
            code="engine-type",
            severity=severity,
            where=names[0],
            message=f"is stored as {stored}, which {engine.title} {text}{more}",
        )


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Return whether one of the patterns matches."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _expert_verdict(spec: TensorSpec, experts: Mapping[str, str]) -> str:
    """Return the verdict on a codec of experts; "" for other tensors and codecs."""
    if not experts or not spec.encodings or not matches(spec.name, EXPERTS):
        return ""
    codec = spec.encodings[0].codec.id
    return next((value for pattern, value in experts.items() if codec != "dense" and fnmatchcase(codec, pattern)), "")


def _not_run(spec: TensorSpec, reading: Reading) -> str | None:
    """Return the encoding of a tensor if the engine does not support it."""
    if not spec.encodings:
        return spec.problem or "nothing readable"
    codec = spec.encodings[0].codec
    if codec.id == "dense":
        return spec.dtype if spec.dtype.startswith(("f", "bf")) and spec.dtype not in reading.dtypes else None
    return None if matches(codec.id, reading.codecs) else codec.id
