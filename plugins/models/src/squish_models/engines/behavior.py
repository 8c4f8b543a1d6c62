"""What an engine does with a model's settings: it refuses the model, or computes different results."""

from __future__ import annotations

from collections.abc import Iterator

from squish_convert.api import Inventory

from squish_core.api import Problem

from ..config.rope import rope_kind
from ..settings import TextSettings
from .differences import FOLDER, GGUF
from .requirements import ANY, Engine


def setting_problems(engine: Engine, inventory: Inventory, *, gguf: bool) -> Iterator[Problem]:
    """Find settings with which the engine refuses the model, ignores a setting, or computes different results."""
    settings, name = inventory.settings, inventory.naming.model_type or ""
    if settings is None:
        return
    form, place = (GGUF, f"{name}.rope.scaling.type") if gguf else (FOLDER, "config.json rope_scaling")
    for each in engine.differences:
        if inventory.naming.family in each.families and form in each.forms and each.applies(settings):
            where, message = each.where.format(family=name), each.message.format(family=name)
            if each.severity == "error":
                yield Problem(code="engine-setting", severity="error", where=where, message=message)
            else:
                yield Problem(code="engine-result", severity=each.severity, where=where, message=message)
    scaling = settings.get("rope_scaling") or {}
    kind, scalings = rope_kind(scaling), engine.key_scalings if gguf else engine.scalings
    if kind and kind not in scalings.get(name, scalings.get(ANY, (kind,))):
        yield Problem(
            code="engine-key",
            severity="error",
            where=place,
            message=f"is {kind}, which {engine.title} does not know for {name}",
        )
    elif kind and not gguf and kind not in engine.unscaled.get(name, (kind,)):
        yield Problem(
            code="engine-result",
            severity="warning",
            where=place,
            message=f"is {kind}, which {engine.title} ignores for {name}",
        )
    for key in () if gguf else engine.scaling_keys.get(kind, ()):
        if key not in scaling:
            yield Problem(
                code="engine-key",
                severity="error",
                where=f"{place}.{key}",
                message=f"is missing; {engine.title} needs it for {kind}",
            )
    if engine.ignores and isinstance(inventory.family, TextSettings):
        for note in inventory.family.ignored(settings, engine.ignores):
            where = "general.architecture" if gguf else "config.json"
            yield Problem(code="engine-result", severity="warning", where=where, message=note)
