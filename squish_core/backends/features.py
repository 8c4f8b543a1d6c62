"""Resolving a format's features, without a file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

from attrs import evolve

from squish_core.backends.base import chosen_backend
from squish_core.backends.chain import Chain, OfferOrder
from squish_core.backends.resolve import Lookup, resolve
from squish_core.codes import ErrorCode
from squish_core.errors import SquishError, UsageError
from squish_core.guard import guarded


class ContainerFeatures(Protocol):
    """The part of a format's declaration that says what its features are."""

    @property
    def id(self) -> str: ...
    @property
    def features(self) -> Mapping[str, tuple[str, ...]]: ...
    @property
    def bits(self) -> Mapping[str, Mapping[str, int]]: ...
    @property
    def synonyms(self) -> Mapping[str, Mapping[str, str]]: ...


def resolve_features(
    registry: Lookup, container: str, features: Mapping[str, Any], *, policy: str | OfferOrder = "spec",
    op: str | None = None, backend: str | None = None,
) -> Chain:  # fmt: skip
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
    requests = {name: _split(value, legal[name], info.bits.get(name)) for name, value in features.items()}
    values = {name: _values(info, name, value) for name, value in requests.items()}
    text = ", ".join(f"{name}={'+'.join(sorted(names)) or 'none'}" for name, names in values.items())
    target = f"{container} with {text or 'no features'}"
    # Containers distinguish a single value from a set.
    arguments = {
        name: values[name] if info.bits.get(name) or _several(value) else next(iter(values[name]))
        for name, value in requests.items()
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


def _split(value: Any, legal: tuple[str, ...], bits: Mapping[str, int] | None) -> Any:
    """A value in the words of an answer, `INT4+SPARSE` or `none`, as a set of values."""
    if not isinstance(value, str) or _word(value) is not None or _declared(value, legal) in legal:
        return value
    if value.casefold() == "none" and bits:
        return frozenset()
    return frozenset(filter(None, map(str.strip, re.split("[+,|]", value)))) if re.search("[+,|]", value) else value


def _values(info: ContainerFeatures, name: str, value: Any) -> set[str]:
    """The values of a feature by name; a stored word stands for the set of its bits."""
    legal, bits = info.features[name], info.bits.get(name)
    synonyms = info.synonyms.get(name, {})
    values: set[str] = set()
    for item in value if _several(value) else (value,):
        word = None if bits is None else _word(item)
        if word is None:
            values.add(synonyms.get(str(item).casefold()) or _declared(item, legal))
            continue
        assert bits is not None
        values.update(flag for flag, bit in bits.items() if word & bit)
        if word < 0 or word & ~sum(bits.values()):
            raise _value_error(info.id, name, [f"{flag}={bit:#x}" for flag, bit in bits.items()], f"{word:#x}")
    if unknown := values - set(legal):
        raise _value_error(info.id, name, (*legal, *synonyms), ", ".join(sorted(map(str, unknown))))
    return values


def _declared(value: Any, legal: tuple[str, ...]) -> str:
    """A value as declared: numbers may be integers, and text may have any case and any of `-`, `_` and spaces."""
    text = str(value)
    if text in legal:
        return text
    similar = [name for name in legal if _plain(name) == _plain(text)]
    return similar[0] if len(similar) == 1 else text


def _plain(text: str) -> str:
    return re.sub("[-_ ]", "", text.casefold())


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
