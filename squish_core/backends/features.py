"""Resolving a format's features, without a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve

from squish_core.backends.base import chosen_backend
from squish_core.backends.chain import Chain, OfferOrder
from squish_core.backends.resolve import Lookup, resolve
from squish_core.codes import ErrorCode
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
    """Resolve a combination of a format's declared features, without a file."""
    implementation = registry.container(container)
    info = registry.containers[container].info
    if info.refines:
        registry.container(info.refines)  # raises if it is not installed: such files could not be opened
    legal: Mapping[str, tuple[str, ...]] = info.features
    if unknown := [name for name in features if name not in legal]:
        raise UsageError(
            f"format {container!r} has no such feature", expected=", ".join(legal) or "no features",
            found=", ".join(map(repr, unknown)), code="feature",
        )  # fmt: skip
    values = {
        name: _values(container, name, value, legal[name], info.bits.get(name)) for name, value in features.items()
    }
    text = ", ".join(f"{name}={'+'.join(sorted(names)) or 'none'}" for name, names in values.items())
    target = f"{container} with {text or 'no features'}"
    # Containers distinguish a single value from a set.
    arguments = {
        name: values[name] if info.bits.get(name) or _several(value) else next(iter(values[name]))
        for name, value in features.items()
    }
    with guarded(SquishError, f"resolving {target}"):
        encodings = implementation.encodings_for(**arguments)
        if not encodings and legal:
            raise UsageError(
                f"{target}: these features determine no encoding", code="feature",
                hint=f"Features are {', '.join(legal)}; `squish formats {container}` lists their values.",
            )  # fmt: skip
        chain = resolve(registry, target, container, encodings, policy=policy, op=op, backend=backend)
    if chosen_backend(chain, registry).reads_values:
        raise UsageError(
            f"{target}: without a file there are no values to read", code=ErrorCode.BACKEND, found=backend,
            expected="a file, or a backend without this option",
        )  # fmt: skip
    # The costs of the example tensor only serve to order the offers.
    others = tuple(offer.without_cost() for offer in chain.others)
    return evolve(chain, chosen=chain.chosen.without_cost(), others=others)


def _values(container: str, name: str, value: Any, legal: tuple[str, ...], bits: Mapping[str, int] | None) -> set[str]:
    """The values of a feature by name; a stored word stands for the set of its bits."""
    values: set[str] = set()
    for item in value if _several(value) else (value,):
        word = None if bits is None else _word(item)
        if word is None:
            values.add(_declared(item, legal))
            continue
        assert bits is not None
        values.update(flag for flag, bit in bits.items() if word & bit)
        if word < 0 or word & ~sum(bits.values()):
            raise _value_error(container, name, [f"{flag}={bit:#x}" for flag, bit in bits.items()], f"{word:#x}")
    if unknown := values - set(legal):
        raise _value_error(container, name, legal, ", ".join(sorted(map(str, unknown))))
    return values


def _declared(value: Any, legal: tuple[str, ...]) -> str:
    """A value as declared: numbers may be integers, and text may have any case."""
    text = str(value)
    similar = [name for name in legal if name.casefold() == text.casefold()]
    return similar[0] if len(similar) == 1 else text


def _several(value: Any) -> bool:
    return isinstance(value, (set, frozenset, list, tuple))


def _word(value: Any) -> int | None:
    """An integer, possibly as text (`0x24`); None for a name."""
    try:
        return int(value, 0) if isinstance(value, str) else int(value)
    except (TypeError, ValueError):
        return None


def _value_error(container: str, name: str, expected: Any, actual: str) -> UsageError:
    return UsageError(
        f"format {container!r} has no such value of {name!r}", expected=", ".join(expected), found=repr(actual),
        code="feature",
    )  # fmt: skip
