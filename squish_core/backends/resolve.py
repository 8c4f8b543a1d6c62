"""From encodings and backends to one chain, and why not the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from attrs import evolve

from squish_core.backends.answers import Answers, AnswerTable, answers_for, keep
from squish_core.backends.base import Backend
from squish_core.backends.chain import OFFER_ORDERS, Chain, OfferOrder, Ranked
from squish_core.backends.offers import OPS, OPS_OF_RANK, Availability, Offer, Request
from squish_core.codes import ErrorCode
from squish_core.errors import SquishError, UsageError
from squish_core.model import CodecSpec, Encoding, Refusal, TensorSpec
from squish_core.specs import parse_spec
from squish_core.text import format_bytes

if TYPE_CHECKING:
    from squish_core.codecs.base import Codec
    from squish_core.formats.base import Container


class Lookup(Protocol):
    """What resolving asks of the registry."""

    @property
    def containers(self) -> Mapping[str, Any]: ...
    @property
    def backends(self) -> Mapping[str, Any]: ...
    def container(self, wanted: str) -> Container: ...
    def backend(self, wanted: str) -> Backend: ...
    def codec(self, wanted: CodecSpec) -> Codec: ...
    def missing(self, encoding: Encoding) -> Refusal | None: ...
    def absent_backends(self) -> list[Refusal]: ...
    def is_outside(self, backend: str) -> bool: ...
    @property
    def answers(self) -> AnswerTable: ...


Candidate = tuple[str, Backend | None, tuple[str, str] | None]
"""Id of a backend, and the backend if it can run here, else the code and the reason why not."""


class Resolver:
    """Resolves tensors by one policy and, if named, for one backend; backends are probed once, for the first tensor.

    Parameters
    ----------
    registry
        What is installed.
    backend
        Backend id, with options for some ("ane:device=M1"); any by default.
    policy
        "spec", "smallest", "exact" or a function from `Ranked` to a sort key. Backends of other distributions than
        Squish's own rank after those, whatever the policy, unless they are named.
    """

    def __init__(self, registry: Lookup, backend: str | None = None, policy: str | OfferOrder = "spec") -> None:
        self.registry, self.backend, self.policy = registry, backend, policy
        self._table: AnswerTable = {}
        self._candidates: list[Candidate] | None = None

    def resolve(
        self,
        target: str,
        container: str,
        recipes: Sequence[Encoding | Refusal],
        *,
        spec: TensorSpec | None = None,
        op: str | None = None,
    ) -> Chain:
        """Cross encodings with backends and order the offers. SquishError with every refusal when there is none.

        `op` is what the tensor is for (without one: what weights of this rank are usually for).
        """
        policy, backend = self.policy, self.backend
        name, key = _offer_order(policy)
        wanted = None if backend is None else parse_spec(backend)
        ops = OPS if spec is None else OPS_OF_RANK.get(len(spec.shape), ("dense",))
        op = op or ops[0]
        if op not in OPS:
            raise UsageError("no such operation", expected=", ".join(ops), found=repr(op), code=ErrorCode.OP)
        if op not in ops:
            raise UsageError("it has another rank", expected=", ".join(ops), found=repr(op), code="rank")
        if self._candidates is None:
            self._table = self.registry.answers  # before the rest of the registry: a registration starts a new table
            self._candidates = _candidates(self.registry, wanted)
        candidates, table = self._candidates, self._table
        question = policy, op, backend, *[why for _, _, why in candidates]
        alike = spec if spec is not None and recipes is spec.encodings and isinstance(policy, str) else None
        answers = None if alike is None else answers_for(table, question, alike)
        if answers is None:
            answers = _answers(self.registry, candidates, recipes, spec, op, name, key, alone=wanted is not None)
            if not answers.offers:
                raise _nothing(target, recipes, answers.refused, spec)
            offers, refused = answers.offers, answers.refused
            if alike is not None:
                keep(table, question, alike, answers)
        else:
            assert spec is not None
            offers, refused = answers.about(spec.encodings)
        chosen, *others = offers
        return Chain(
            target=target, container=container, chosen=chosen, because=answers.because, others=tuple(others),
            refused=tuple(refused), policy=name, spec=spec, options={} if wanted is None else wanted.params,
        )  # fmt: skip


def resolve(
    registry: Lookup,
    target: str,
    container: str,
    recipes: Sequence[Encoding | Refusal],
    *,
    spec: TensorSpec | None = None,
    backend: str | None = None,
    policy: str | OfferOrder = "spec",
    op: str | None = None,
) -> Chain:
    """The chain of one tensor, as `Resolver` has it."""
    return Resolver(registry, backend, policy).resolve(target, container, recipes, spec=spec, op=op)


def resolve_features(
    registry: Lookup,
    container: str,
    features: dict[str, Any],
    *,
    policy: str | OfferOrder = "spec",
    op: str | None = None,
    backend: str | None = None,
) -> Chain:
    """The chain for a combination of a format's declared features, without a file."""
    from squish_core.guard import guarded

    implementation = registry.container(container)
    declared = registry.containers[container].info.features
    asked = {
        name: set(value) if isinstance(value, (set, frozenset, list, tuple)) else {value}
        for name, value in features.items()
    }
    for name, values in asked.items():
        unknown = values - set(declared.get(name, ()))
        if name not in declared or unknown:
            raise UsageError(
                f"format {container!r} has no such {'value of ' + repr(name) if name in declared else 'feature'}",
                expected=", ".join(declared.get(name, declared)) or "no features",
                found=", ".join(sorted(map(str, unknown))) if name in declared else repr(name), code="feature",
            )  # fmt: skip
    shown = ", ".join(f"{name}={'+'.join(sorted(values))}" for name, values in asked.items())
    target = f"{container} with {shown or 'nothing given'}"
    with guarded(SquishError, f"resolving {target}"):
        recipes = implementation.encodings_for(**features)
        if not recipes and declared:
            raise UsageError(
                "names no way to store a tensor", tensor=target, code="feature",
                hint=f"Give a feature ({', '.join(declared)}); `squish formats {container}` lists the values.",
            )  # fmt: skip
        return resolve(registry, target, container, recipes, policy=policy, op=op, backend=backend)


def _answers(
    registry: Lookup,
    candidates: Sequence[Candidate],
    recipes: Sequence[Encoding | Refusal],
    spec: TensorSpec | None,
    op: str,
    policy: str,
    key: OfferOrder,
    *,
    alone: bool,
) -> Answers:
    """What the candidates answer about each encoding, in order; `alone`: the caller names one backend."""
    encodings = [item for item in recipes if isinstance(item, Encoding)]
    refused: list[tuple[Refusal, int | None]] = [(item, None) for item in recipes if isinstance(item, Refusal)]
    offers: list[Ranked] = []
    for name, implementation, reason in candidates:
        if implementation is None:
            assert reason is not None
            refused.append((Refusal(backend=name, encoding=None, code=reason[0], why=reason[1]), None))
            continue
        preference = getattr(registry.backends[name].info, "preference", 0)
        outside = not alone and registry.is_outside(implementation.id)
        for rank, encoding in enumerate(encodings):
            answer = _offer(registry, implementation, spec, encoding, op)
            if isinstance(answer, Refusal):
                refused.append((answer, rank))
            else:
                offers.append(Ranked(answer, rank, preference, outside))
    if not alone:
        refused += [(item, None) for item in registry.absent_backends()]
    offers.sort(key=lambda ranked: (ranked.outside, key(ranked), *ranked.tie))
    return Answers(
        [ranked.offer for ranked in offers],
        _because(offers, policy, key, asked=alone) if offers else "",
        [refusal for refusal, _ in refused],
        ([ranked.rank for ranked in offers], [rank for _, rank in refused]),
    )


def _offer_order(policy: str | OfferOrder) -> tuple[str, OfferOrder]:
    if callable(policy):
        return getattr(policy, "__name__", "custom"), policy
    if policy not in OFFER_ORDERS:
        raise UsageError("no such policy", expected=", ".join(OFFER_ORDERS), found=repr(policy), code=ErrorCode.POLICY)
    return policy, OFFER_ORDERS[policy][0]


def _because(offers: Sequence[Ranked], policy: str, key: OfferOrder, *, asked: bool) -> str:
    """What put the first offer before those of other encodings, and before the next; `asked`: one backend alone was."""
    if len(offers) == 1:
        return "only this backend was asked" if asked else "nothing else here can run it"
    first, second = offers[:2]
    other = next((ranked for ranked in offers if ranked.rank != first.rank), second)
    return "; ".join(dict.fromkeys(_decided(first, after, policy, key) for after in (other, second)))


def _decided(first: Ranked, second: Ranked, policy: str, key: OfferOrder) -> str:
    """What put an offer before another, as a sentence."""
    mine, other = first.offer.backend, second.offer.backend
    if first.outside != second.outside:
        return f"{other} is a third party's, and comes first only where it is named"
    if mine == other:
        other = f"{other} with {second.offer.encoding.label}"
    keys = key(first), key(second)
    if keys[0] != keys[1]:
        if key is not OFFER_ORDERS.get(policy, (None, ""))[0]:
            return f"the caller's policy ({policy}) puts it before {other}"
        return OFFER_ORDERS["spec" if keys[0][:-1] == keys[1][:-1] else policy][1].format(other=other)
    moved = format_bytes(first.cost.moved), format_bytes(second.cost.moved)
    reasons = (
        _mode_reason(first.offer, other),
        f"{mine} reads and writes {moved[0]} per use, {other} {moved[1]}",
        f"{mine} declares a higher preference than {other}; all else is equal",
        f"{mine} comes before {other} by name; all else is equal",
        OFFER_ORDERS["spec"][1],
    )
    return next(reason for reason, a, b in zip(reasons, first.tie, second.tie) if a != b)


def _mode_reason(offer: Offer, other: str) -> str:
    """Why the way in which an offer runs is better than the way of another backend."""
    if offer.mode == "delegate":
        return f"its own runtime takes over the whole operation, which goes before {other}"
    if offer.encoding.codec.id == "dense":
        return f"works on the stored values directly; {other} would make an f32 copy first"
    return f"works on the compressed blocks directly; {other} would decode them to f32 first"


def _candidates(registry: Lookup, wanted: CodecSpec | None) -> list[Candidate]:
    """All backends, or the wanted one with its options."""
    if wanted is not None and wanted.id not in registry.backends:
        try:
            registry.backend(wanted.id)  # which says what to install
        except SquishError as error:
            raise error.about_argument() from None
    candidates: list[Candidate] = []
    for name in sorted(registry.backends) if wanted is None else [wanted.id]:
        try:
            backend = registry.backend(name)
        except SquishError as error:  # it cannot be imported, or is in conflict; the others still answer
            if wanted is not None:
                raise
            candidates.append((name, None, (error.code or ErrorCode.IMPORT, error.message)))
            continue
        if wanted is not None and wanted.params:
            backend = backend.configured(wanted.params)
        available = _probe(backend)
        if available.ok:
            candidates.append((name, backend, None))
        else:
            candidates.append((name, None, ("unavailable", available.reason)))
    return candidates


def _probe(backend: Backend) -> Availability:
    try:
        return backend.probe()
    except Exception as error:  # a probe must never stop the others
        return Availability(ok=False, reason=f"its probe failed: {type(error).__name__}: {error}")


def _offer(registry: Lookup, backend: Backend, spec: TensorSpec | None, encoding: Encoding, op: str) -> Offer | Refusal:
    """What a backend answers; an offer without the operation that is asked for is a refusal."""
    missing = registry.missing(encoding)
    if missing is not None and not (backend.whole and missing.code == ErrorCode.WHOLE):
        return evolve(missing, backend=backend.id, encoding=encoding)
    try:
        codec = None if missing is not None else registry.codec(encoding.codec)
        answer = backend.offer(Request(spec=spec, encoding=encoding, codec=codec, op=op))
    except Exception as error:  # one backend's bug must not take the others away
        code, why = ErrorCode.PLUGIN_BUG, f"its offer failed: {type(error).__name__}: {error}"
    else:
        if isinstance(answer, Refusal) or op in answer.ops:
            return answer
        code, why = "operation", f"has no operation {op!r} for this codec and shape"
    return Refusal(backend=backend.id, encoding=encoding, code=code, why=why)


def _nothing(
    target: str, recipes: Sequence[Encoding | Refusal], refused: Sequence[Refusal], spec: TensorSpec | None
) -> SquishError:
    from squish_core.errors import MissingPluginError, TensorError

    if spec is not None and spec.problem:
        return TensorError(spec.problem, tensor=spec.name, code=ErrorCode.UNREADABLE)
    if not any(isinstance(item, Encoding) for item in recipes) and all(item.encoding is None for item in refused):
        return TensorError("no stored encoding is known for it", tensor=target, code=ErrorCode.UNREADABLE)
    real = [item for item in refused if item.encoding is not None] or list(refused)
    reasons = "; ".join(dict.fromkeys(f"{item.backend or 'the format'}: {item.why}" for item in real))
    install = next((item.install for item in real if item.install), None)
    kind = MissingPluginError if install else TensorError
    return kind(
        f"nothing installed can run it ({reasons})", tensor=target, code=ErrorCode.NO_CHAIN,
        hint=f"Run `{install}`." if install else None,
    )  # fmt: skip
