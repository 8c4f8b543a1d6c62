"""What an engine needs of the models of a family that another package brings, or a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import evolve, field, frozen

if TYPE_CHECKING:
    from .requirements import Engine


@frozen(kw_only=True)
class EngineNeeds:
    """What an engine needs of a family's models.

    Attributes
    ----------
    supported
        Whether it has the family.
    required
        Settings of config.json, or GGUF's keys without the architecture, without which it does not load.
    defaults
        What it takes where config.json is silent: setting -> value.
    scalings
        Kinds of RoPE scaling that it applies; without it, any.
    pretokenizers
        Values of `tokenizer.ggml.pre` that it knows beside those in squish-models' tables.
    """

    supported: bool = True
    required: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(factory=dict)
    scalings: tuple[str, ...] | None = None
    pretokenizers: tuple[str, ...] = ()


def with_needs(engine: Engine, needs: EngineNeeds, kind: str) -> Engine:
    """The engine's tables with a row for a `model_type` or an architecture."""
    scalings = {} if needs.scalings is None else {kind: needs.scalings}
    return evolve(
        engine,
        keys={
            **engine.keys,
            kind: tuple(name if name.startswith("tokenizer.") else f"{kind}.{name}" for name in needs.required),
        },
        fields={**engine.fields, kind: needs.required},
        defaults={**engine.defaults, kind: needs.defaults},
        scalings={**engine.scalings, **scalings},
        key_scalings={**engine.key_scalings, **scalings},
        unsupported=engine.unsupported if needs.supported else (*engine.unsupported, kind),
        pretokenizers=engine.pretokenizers.union(needs.pretokenizers) if engine.pretokenizers else frozenset(),
    )
