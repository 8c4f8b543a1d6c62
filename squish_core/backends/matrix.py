"""All combinations of a format's features and what runs each of them: a table, without a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

from attrs import frozen

from squish_core.backends.chain import Chain, OfferOrder
from squish_core.backends.features import resolve_features
from squish_core.backends.resolve import Lookup
from squish_core.display.notebook import page
from squish_core.display.tables import table
from squish_core.errors import SquishError

ANY = "any"
"""The name of the choice among all backends."""
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
class Matrix:
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

    def _repr_html_(self) -> str:
        return page(self.lines())

    def lines(self) -> list[str]:
        """A row for each combination: the encoding that is chosen, and what runs it on each backend."""
        names = max((list(row.features) for row in self.rows), key=len, default=[])
        rows = [(*_feature_cells(row, names), *_answer_cells(row, self.backends)) for row in self.rows]
        header = (*names, "encoding", *self.backends)
        return table(header, "<" * len(header), rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: for each combination and backend, the choice or the code and reason of the error."""
        rows = [
            {"features": {name: list(values) for name, values in row.features.items()},
             "answers": {name: _answer_dict(answer) for name, answer in row.answers.items()}}
            for row in self.rows
        ]  # fmt: skip
        return {"container": self.container, "backends": list(self.backends), "rows": rows}


def feature_matrix(
    registry: Lookup, container: str, backends: Sequence[str | None], *,
    policy: str | OfferOrder = "spec", op: str | None = None,
) -> Matrix:  # fmt: skip
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
    """The sets of flags, in the order of the words that store them."""
    sets = (names for count in range(len(bits) + 1) for names in combinations(bits, count))
    return sorted(sets, key=lambda names: sum(bits[name] for name in names))


def _feature_cells(row: MatrixRow, names: Sequence[str]) -> list[str]:
    texts = {name: "+".join(values) or "none" for name, values in row.features.items()}
    return [texts.get(name, "-") for name in names]


def _answer_cells(row: MatrixRow, backends: Sequence[str]) -> Iterator[str]:
    """The encoding of the first answer, then the mode on each backend; "-" where there is none."""
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
        "backend": chosen.backend, "mode": chosen.mode, "encoding": chosen.encoding.label,
        "codec": str(chosen.encoding.codec), "ops": list(chosen.ops), "exact": chosen.exact,
        "because": answer.because, "plugins": [plugin._asdict() for plugin in answer.plugins],
    }  # fmt: skip
