"""`squish families`: the families, what they map, and which engines ran their models."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer
from attrs import asdict
from squish_cli.api import Answer
from squish_convert.api import (
    TEXT,
    Add,
    Cut,
    Expression,
    Family,
    Interleave,
    Join,
    NegExp,
    Pad,
    Permute,
    Reshape,
    Stack,
    Tile,
    Transpose,
    source_names,
)

from squish_core.api import ErrorCode, FamilyInfo, UsageError, registry, table

from .tables import PREDICTING

EXAMPLES = ("squish families", "squish families qwen3_moe", "squish families llama --json")
RUNS = Path(__file__).with_name("runs.json")
"""Family -> small model -> formats that it was converted to, one after the other -> what the last one's engine did."""
ENGINES = {"GGUF": "llama.cpp", "HF": "transformers", "MLX": "mlx", "UQFF": "mistralrs"}
"""Format -> the engine for which it is written."""
EXPERTS = "experts.{e}."
OK, MAPPED, LEFT_OUT = "ok", "mapped", "left out"
OTHERS = ("mlx", "uqff")
"""Layouts in which a tensor keeps its Hugging Face name unless a rule renames it."""


def families(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Show the map of this one: an id, or a model_type.")
    ] = None,
) -> Answer:
    """List the families of models, or show what one maps.

    For each engine: "ok" if it computes the same with every small model of the family that was converted, "part" if
    with some of them, "no" if with none, "-" if none was run. NAME shows tensors, settings, GGUF's keys, and each run.
    """
    infos = [entry.info for entry in registry().families.values() if entry.info.part == TEXT]
    if name is None:
        return _list(infos)
    lower = name.lower()
    info = next((each for each in infos if lower == each.id or lower in each.model_types), None)
    if info is None:
        names = {word for each in infos for word in (each.id, *each.model_types)}
        near = get_close_matches(lower, names, 3, 0.6)
        hint = f"Did you mean {' or '.join(near)}? " if near else ""
        raise UsageError(
            "no such family", code=ErrorCode.USAGE, found=repr(name), hint=f"{hint}`squish families` lists all."
        )
    data = describe(info)
    return Answer(data, lines_of(data))


def _list(infos: Sequence[FamilyInfo]) -> Answer:
    data = [summary(info) for info in sorted(infos, key=lambda info: info.id)]
    header = ("id", "model_type", *ENGINES.values(), "components")
    rows = [
        (
            each["id"],
            ", ".join(each["model_types"][:2]) + (", ..." if len(each["model_types"]) > 2 else ""),
            *each["engines"].values(),
            ", ".join(part for part, state in each["components"].items() if state == MAPPED) or "-",
        )
        for each in data
    ]
    return Answer(data, table(header, "<" * len(header), rows))


def summary(info: FamilyInfo) -> dict[str, Any]:
    """What the list says of a family."""
    family: Family = registry().implementation("family", info.id)
    return {
        "id": info.id,
        "title": info.title,
        "package": registry().families[info.id].dist,
        "model_types": list(info.model_types),
        "architecture": info.architecture or getattr(family, "architecture", ""),
        "layouts": list(info.layouts),
        "engines": engines(info.id),
        "components": components(info, family),
    }


def describe(info: FamilyInfo) -> dict[str, Any]:
    """The map of a family."""
    family: Family = registry().implementation("family", info.id)
    keys = {key.gguf: key for key in getattr(family, "keys", ())}
    return {
        **summary(info),
        "present": list(info.present),
        "absent": list(info.absent),
        "tensors": [*tensors(family)],
        "gguf_tensors": list(family.constants),
        "left_out": list(family.other_modalities),
        "settings": [
            {"config": _own(family, key.hf), **{name: each for name, each in asdict(key).items() if name != "hf"}}
            for key in keys.values()
        ],
        "fixed": dict(getattr(family, "fixed", {})),
        "unstated": dict(getattr(family, "unstated", {})),
        "pretokenizers": [name for each in getattr(family, "pretokenizers", ()) for name in each.names],
        "runs": runs().get(info.id, {}),
    }


def tensors(family: Family) -> Iterator[dict[str, Any]]:
    """The tensors under the names of each layout, with what GGUF changes in them."""
    rules = {
        layout: {
            name: rule for rule in family.names.get(layout, ()) if not rule.reading for name in source_names(rule.of)
        }
        for layout in ("gguf", *OTHERS)
    }
    for tensor in family.tensors:
        stored = rules["gguf"].get(tensor.name)
        others = {layout: rules[layout].get(tensor.name) for layout in OTHERS}
        yield {
            "hf": tensor.name,
            "gguf": None if stored is None else stored.name,
            **{layout: tensor.name if rule is None else rule.name for layout, rule in others.items()},
            "shape": list(tensor.shape),
            "required": tensor.required and tensor.tied_to is None,
            "changes": [] if stored is None else [*operations(stored.of)],
        }


def operations(expression: Expression) -> Iterator[str]:
    """What an expression does, in words."""
    while not isinstance(expression, str):
        if isinstance(expression, Interleave):
            yield "rows alternate"
            return
        if isinstance(expression, Join):
            yield "rows joined"
            return
        if isinstance(expression, Permute):
            yield "rows of q and k interleaved"
        elif isinstance(expression, Add):
            yield f"norms {expression.constant:+g}"
        elif isinstance(expression, NegExp):
            yield "`-exp` of decays"
        elif isinstance(expression, Tile):
            yield f"heads {'grouped' if expression.inverse else 'tiled'}{' in columns' if expression.columns else ''}"
        elif isinstance(expression, Reshape):
            yield "axes of 1 left out"
        elif isinstance(expression, Pad):
            yield "first row repeated"
        elif isinstance(expression, Cut):
            yield "first rows cut"
        elif isinstance(expression, Stack):
            yield "experts stacked" if any(EXPERTS in name for name in source_names(expression)) else "matrices stacked"
        elif isinstance(expression, Transpose):
            yield "matrices transposed"
        expression = expression.of


def components(info: FamilyInfo, family: Family) -> dict[str, str]:
    """Parts of a model: those that are mapped, and those that are left out."""
    found = {TEXT: MAPPED} if family.tensors else {}
    if any(EXPERTS in tensor.name for tensor in family.tensors):
        found["experts"] = MAPPED
    if family.tensors and family.adapter() is not None:
        found["adapters"] = MAPPED
    if getattr(family, "predicting", ""):
        is_mapped = any(row.kind == PREDICTING for row in getattr(family, "rows", ()))
        found["prediction layers"] = MAPPED if is_mapped else LEFT_OUT
    towers = [each.info for each in registry().families.values() if each.info.part != TEXT]
    mapped = {tower.part for tower in towers if set(tower.model_types) & set(info.model_types)}
    found |= dict.fromkeys(sorted(mapped), MAPPED)
    if family.other_modalities:
        found["other modalities" if mapped else "images and audio"] = LEFT_OUT
    return found


def runs() -> dict[str, dict[str, dict[str, str]]]:
    """What was run: family -> small model -> formats -> result."""
    loaded: dict[str, dict[str, dict[str, str]]] = json.loads(RUNS.read_text(encoding="utf-8"))
    return loaded


def engines(family: str) -> dict[str, str]:
    """Engine -> whether it ran the family's models: ok, part, no, or "-" if none was run."""
    results: dict[str, list[str]] = {engine: [] for engine in ENGINES.values()}
    for paths in runs().get(family, {}).values():
        for path, result in paths.items():
            results[ENGINES[path.rpartition(" ")[2]]].append(result)
    return {
        engine: "-" if not found else OK if {*found} == {OK} else "part" if OK in found else "no"
        for engine, found in results.items()
    }


def lines_of(data: Mapping[str, Any]) -> list[str]:
    """The map of a family as tables."""
    apart = [*(f"with {name}" for name in data["present"]), *(f"without {name}" for name in data["absent"])]
    facts = (
        ("title", data["title"]),
        ("package", data["package"]),
        ("model_type", ", ".join(data["model_types"])),
        ("GGUF", " ".join((data["architecture"] or "-", *apart))),
        *((f"{layout}", "the only target; tensors are copied") for layout in data["layouts"]),
        *data["components"].items(),
        *((f"in {engine}", result) for engine, result in data["engines"].items()),
    )
    lines = table(("id", data["id"]), "<<", facts)
    rows = [(each["hf"], each["gguf"] or "-", ", ".join(each["changes"]) or "-") for each in data["tensors"]]
    lines += _section(table(("Hugging Face", "GGUF", "changed for GGUF"), "<<<", rows))
    for layout in OTHERS:
        renamed = [(each["hf"], each[layout]) for each in data["tensors"] if each[layout] != each["hf"]]
        lines += _section(table(("Hugging Face", layout.upper()), "<<", renamed))
    lines += _section(
        table(
            ("config.json", "GGUF", "type", ""),
            "<<<<",
            [
                (each["config"], each["gguf"], each["type"], "" if each["required"] else "optional")
                for each in data["settings"]
            ],
        )
    )
    for kind in ("fixed", "unstated"):
        values = [(name, json.dumps(value)) for name, value in data[kind].items()]
        lines += _section(table((kind, "value"), "<<", values))
    failed = [
        (model, path, result) for model, paths in data["runs"].items() for path, result in paths.items() if result != OK
    ]
    return lines + _section(table(("did not run", "as", "result"), "<<<", failed))


def _section(lines: list[str]) -> list[str]:
    return ["", *lines] if lines else []


def _own(family: Family, setting: str) -> str:
    """The name of a setting in the family's config.json."""
    return str(getattr(family, "own_names", {}).get(setting, setting))
