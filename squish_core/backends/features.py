"""Questions about a format's features, without a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve

from squish_core.backends.chain import Chain, OfferOrder
from squish_core.backends.resolve import Lookup, resolve
from squish_core.errors import SquishError, UsageError
from squish_core.guard import guarded


def resolve_features(
    registry: Lookup,
    container: str,
    features: Mapping[str, Any],
    *,
    policy: str | OfferOrder = "spec",
    op: str | None = None,
    backend: str | None = None,
) -> Chain:
    """The chain for a combination of a format's declared features, without a file."""
    implementation = registry.container(container)
    info = registry.containers[container].info
    declared: Mapping[str, tuple[str, ...]] = info.features
    if unknown := [name for name in features if name not in declared]:
        raise UsageError(
            f"format {container!r} has no such feature", expected=", ".join(declared) or "no features",
            found=", ".join(map(repr, unknown)), code="feature",
        )  # fmt: skip
    values = {
        name: _values(container, name, value, declared[name], info.bits.get(name)) for name, value in features.items()
    }
    shown = ", ".join(f"{name}={'+'.join(sorted(chosen)) or 'none'}" for name, chosen in values.items())
    target = f"{container} with {shown or 'no features'}"
    # A feature that is one value stays that value: containers tell one from several.
    arguments = {
        name: values[name] if info.bits.get(name) or _several(value) else next(iter(values[name]))
        for name, value in features.items()
    }
    with guarded(SquishError, f"resolving {target}"):
        recipes = implementation.encodings_for(**arguments)
        if not recipes and declared:
            raise UsageError(
                f"{target}: no file stores a tensor like this", code="feature",
                hint=f"Features are {', '.join(declared)}; `squish formats {container}` lists their values.",
            )  # fmt: skip
        chain = resolve(registry, target, container, recipes, policy=policy, op=op, backend=backend)
    # The costs of the example tensor ordered the offers; they hold for no tensor of the user's.
    others = tuple(offer.without_cost() for offer in chain.others)
    return evolve(chain, chosen=chain.chosen.without_cost(), others=others)


def _values(
    container: str, name: str, value: Any, declared: tuple[str, ...], bits: Mapping[str, int] | None
) -> set[str]:
    """The values of a feature by name; a word as files store it is the set of its bits."""
    values: set[str] = set()
    for item in value if _several(value) else (value,):
        word = None if bits is None else _word(item)
        if word is None:
            values.add(item)
            continue
        assert bits is not None
        values.update(flag for flag, bit in bits.items() if word & bit)
        if word < 0 or word & ~sum(bits.values()):
            raise _no_value(container, name, [f"{flag}={bit:#x}" for flag, bit in bits.items()], f"{word:#x}")
    if unknown := values - set(declared):
        raise _no_value(container, name, declared, ", ".join(sorted(map(str, unknown))))
    return values


def _several(value: Any) -> bool:
    return isinstance(value, (set, frozenset, list, tuple))


def _word(value: Any) -> int | None:
    """A number, or a text that states one (`0x24`); None for a name."""
    try:
        return int(value, 0) if isinstance(value, str) else int(value)
    except (TypeError, ValueError):
        return None


def _no_value(container: str, name: str, expected: Any, found: str) -> UsageError:
    return UsageError(
        f"format {container!r} has no such value of {name!r}", expected=", ".join(expected), found=repr(found),
        code="feature",
    )  # fmt: skip
