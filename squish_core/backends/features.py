"""Resolving without a file: a format's features, and a table of all their combinations and what runs each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

from attrs import evolve, frozen

from squish_core.backends.base import chosen_backend
from squish_core.backends.chain import Chain, OfferOrder
from squish_core.backends.resolve import Lookup, resolve
from squish_core.codes import ErrorCode
from squish_core.display import table
from squish_core.errors import SquishError, UsageError
from squish_core.guard import guarded
from squish_core.shown import Shown

ANY = "any"
"""Stands for the choice among all backends."""
Answer = Chain | SquishError


@frozen(kw_only=True)
class MatrixRow:
    """One combination of features, and for each backend the chain or the error that says why there is none."""

    features: Mapping[str, tuple[str, ...]]
    answers: Mapping[str, Answer]

    @property
    def text(self) -> str:
        """The features as `resolve` and `--feature` take them: `flags=INT4+SPARSE`."""
        return " ".join(f"{name}={'+'.join(values) or 'none'}" for name, values in self.features.items()) or "-"


@frozen(kw_only=True, repr=False)
class Matrix(Shown):
    """What runs each combination of a format's features: a sequence of `MatrixRow`; `print(matrix)` shows the table.

    `backends`: the columns, "any" for the choice among all.
    """

    container: str
    backends: tuple[str, ...]
    rows: tuple[MatrixRow, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[MatrixRow]:
        return iter(self.rows)

    def __getitem__(self, number: int) -> MatrixRow:
        return self.rows[number]

    def __repr__(self) -> str:
        return f"<Matrix {self.container!r} combinations={len(self)} backends={' '.join(self.backends)}>"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Return the table as text."""
        header, rows = self.cells()
        return table(header, "<" * len(header), rows)

    def cells(self) -> tuple[Sequence[str], list[tuple[str, ...]]]:
        """Return titles and a row for each combination: the chosen encoding, and what runs it on each backend."""
        names = max((list(row.features) for row in self.rows), key=len, default=[])
        rows = [(*_feature_cells(row, names), *_answer_cells(row, self.backends)) for row in self.rows]
        return (*names, "encoding", *self.backends), rows

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: for each combination and backend, the choice or the code and reason of the error."""
        rows = [
            {
                "features": {name: list(values) for name, values in row.features.items()},
                "answers": {name: _answer_dict(answer) for name, answer in row.answers.items()},
            }
            for row in self.rows
        ]
        return {"format": self.container, "backends": list(self.backends), "rows": rows}


def feature_matrix(
    registry: Lookup,
    container: str,
    backends: Sequence[str | None],
    *,
    policy: str | OfferOrder = "spec",
    op: str | None = None,
) -> Matrix:
    """Resolve every combination of a format's features on each backend (None: the choice among all)."""
    registry.container(container)  # raises if it is not installed
    info = registry.containers[container].info
    rows = []
    for features in _combinations(info.features, info.bits):
        arguments = {name: values if name in info.bits else values[0] for name, values in features.items()}
        answers = {
            backend or ANY: _answer(registry, container, arguments, policy=policy, op=op, backend=backend)
            for backend in backends
        }
        rows.append(MatrixRow(features=features, answers=answers))
    return Matrix(container=container, backends=tuple(backend or ANY for backend in backends), rows=tuple(rows))


def _answer(registry: Lookup, container: str, features: Mapping[str, Any], **options: Any) -> Answer:
    try:
        return resolve_features(registry, container, features, **options)
    except SquishError as error:
        return error


def _combinations(
    features: Mapping[str, Sequence[str]], bits: Mapping[str, Mapping[str, int]]
) -> Iterator[dict[str, tuple[str, ...]]]:
    """Every word of flags, in the order of the words; without flags, each feature alone and with the others."""
    words = {name: _words(bits[name]) for name in features if name in bits}
    if words:
        yield from (dict(zip(words, choice)) for choice in product(*words.values()))
        return
    for choice in product(*([(), *((value,) for value in values)] for values in features.values())):
        if any(choice) or not features:
            yield {name: values for name, values in zip(features, choice) if values}


def _words(bits: Mapping[str, int]) -> list[tuple[str, ...]]:
    """Return the sets of flags, in the order of the words that store them."""
    sets = (names for count in range(len(bits) + 1) for names in combinations(bits, count))
    return sorted(sets, key=lambda names: sum(bits[name] for name in names))


def _feature_cells(row: MatrixRow, names: Sequence[str]) -> list[str]:
    texts = {name: "+".join(values) or "none" for name, values in row.features.items()}
    return [texts.get(name, "-") for name in names]


def _answer_cells(row: MatrixRow, backends: Sequence[str]) -> Iterator[str]:
    """Yield the encoding of the first answer, then the mode on each backend; "-" where there is none."""
    labels = [answer.chosen.encoding.label for answer in row.answers.values() if isinstance(answer, Chain)]
    first = labels[0] if labels else "-"
    yield first
    for name in backends:
        answer = row.answers[name]
        if not isinstance(answer, Chain):
            yield "-"
            continue
        chosen = answer.chosen
        backend = f"{chosen.backend} " if name == ANY else ""
        label = f" {chosen.encoding.label}" if chosen.encoding.label != first else ""
        yield f"{backend}{chosen.mode}{label}"


def _answer_dict(answer: Answer) -> dict[str, Any]:
    if not isinstance(answer, Chain):
        return {"error": answer.message, "code": answer.code, "hint": answer.hint}
    chosen = answer.chosen
    return {
        "backend": chosen.backend,
        "mode": chosen.mode,
        "encoding": chosen.encoding.label,
        "codec": str(chosen.encoding.codec),
        "ops": list(chosen.ops),
        "exact": chosen.exact,
        "because": answer.because,
        "plugins": [plugin._asdict() for plugin in answer.plugins],
    }


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
        expected = ", ".join(legal) or "no features"
        found = ", ".join(map(repr, unknown))
        raise UsageError(f"format {container!r} has no such feature", expected=expected, found=found, code="feature")
    requests = {name: _split(value, legal[name], info.bits.get(name)) for name, value in features.items()}
    values = {name: _values(info, name, value) for name, value in requests.items()}
    text = ", ".join(f"{name}={'+'.join(sorted(names)) or 'none'}" for name, names in values.items())
    target = f"{container} with {text or 'no features'}"
    # Containers distinguish a single value from a set.
    arguments = {
        name: values[name] if info.bits.get(name) or _is_collection(value) else next(iter(values[name]))
        for name, value in requests.items()
    }
    with guarded(SquishError, f"resolving {target}"):
        encodings = implementation.encodings_for(**arguments)
        if not encodings and legal:
            hint = f"Features are {', '.join(legal)}; `squish formats {container}` lists their values."
            raise UsageError(f"{target}: these features determine no encoding", code="feature", hint=hint)
        chain = resolve(registry, target, container, encodings, policy=policy, op=op, backend=backend)
    if chosen_backend(chain, registry).reads_values:
        raise UsageError(
            f"{target}: without a file there are no values to read",
            code=ErrorCode.BACKEND,
            found=backend,
            expected="a file, or a backend without this option",
        )
    # The costs of the example tensor only serve to order the offers.
    others = tuple(offer.without_cost() for offer in chain.others)
    return evolve(chain, chosen=chain.chosen.without_cost(), others=others)


def _split(value: Any, legal: tuple[str, ...], bits: Mapping[str, int] | None) -> Any:
    """Return a value in the words of an answer, `INT4+SPARSE` or `none`, as a set of values."""
    if not isinstance(value, str) or _word(value) is not None or _declared_spelling(value, legal) in legal:
        return value
    if value.casefold() == "none" and bits:
        return frozenset()
    return frozenset(filter(None, map(str.strip, re.split("[+,|]", value)))) if re.search("[+,|]", value) else value


def _values(info: Any, name: str, value: Any) -> set[str]:
    """Return the values of a feature of a declaration, by name; a stored word stands for the set of its bits."""
    legal: tuple[str, ...] = info.features[name]
    bits: Mapping[str, int] | None = info.bits.get(name)
    synonyms = info.synonyms.get(name, {})
    values: set[str] = set()
    for item in value if _is_collection(value) else (value,):
        word = None if bits is None else _word(item)
        if word is None:
            values.add(synonyms.get(str(item).casefold()) or _declared_spelling(item, legal))
            continue
        assert bits is not None
        values.update(flag for flag, bit in bits.items() if word & bit)
        if word < 0 or word & ~sum(bits.values()):
            raise _value_error(info.id, name, [f"{flag}={bit:#x}" for flag, bit in bits.items()], f"{word:#x}")
    if unknown := values - set(legal):
        raise _value_error(info.id, name, (*legal, *synonyms), ", ".join(sorted(map(str, unknown))))
    return values


def _declared_spelling(value: Any, legal: tuple[str, ...]) -> str:
    """A value as declared: numbers may be integers, and text may have any case and any of `-`, `_` and spaces."""
    text = str(value)
    if text in legal:
        return text
    similar = [name for name in legal if _normalized(name) == _normalized(text)]
    return similar[0] if len(similar) == 1 else text


def _normalized(text: str) -> str:
    return re.sub("[-_ ]", "", text.casefold())


def _is_collection(value: Any) -> bool:
    return isinstance(value, (set, frozenset, list, tuple))


def _word(value: Any) -> int | None:
    """Return an integer, possibly as text (`0x24`); None for a name."""
    try:
        return int(value, 0) if isinstance(value, str) else int(value)
    except (TypeError, ValueError):
        return None


def _value_error(container: str, name: str, expected: Any, actual: str) -> UsageError:
    found = repr(actual)
    return UsageError(
        f"format {container!r} has no such value of {name!r}", expected=", ".join(expected), found=found, code="feature"
    )
