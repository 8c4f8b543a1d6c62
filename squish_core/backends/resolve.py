"""Resolving: choose an encoding and a backend for a tensor, with reasons for and against each.

Without a file, an example tensor takes the place of the stored one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from attrs import evolve, frozen

from squish_core import dtypes
from squish_core.backends.answers import Answers, AnswerTable, answers_for, keep
from squish_core.backends.base import Backend
from squish_core.backends.chain import OFFER_ORDERS, Chain, OfferOrder, PluginTable, Ranked, Reason
from squish_core.backends.offers import MEMORY, OPS, OPS_OF_RANK, Availability, Offer, Request
from squish_core.codes import ErrorCode
from squish_core.errors import CodecError, MissingPluginError, SquishError, TensorError, UsageError
from squish_core.guard import quietly
from squish_core.log import log
from squish_core.model import CodecSpec, Encoding, Filter, Part, Refusal, Segment, TensorSpec, check_declared
from squish_core.specs import parse_spec
from squish_core.text import format_bytes, install_hint

if TYPE_CHECKING:
    import numpy as np

    from squish_core.codecs.base import Codec
    from squish_core.formats.base import Container


SHAPES = ((256, 256), (1280, 256))
"""Large enough for the default blocks and groups of formats, small enough to compute quickly. The second is for codecs
that refuse the first: vectors of 5 divide no power of two."""
EXPERTS = 4


def example(registry: Lookup, encoding: Encoding, op: str) -> TensorSpec:
    """Complete an encoding without parts for a matrix, or for `experts` a stack of matrices.

    Parameters that depend on the values, such as TCA-TBE's exponents, are computed for a tensor of ones. CodecError
    if the codec supports none of the shapes.
    """
    try:
        return _example(registry, encoding, op, SHAPES[0])
    except CodecError as error:
        with contextlib.suppress(CodecError):
            return _example(registry, encoding, op, SHAPES[1])
        raise error


def _example(registry: Lookup, encoding: Encoding, op: str, shape: tuple[int, int]) -> TensorSpec:
    values = encoding.parts.get("data" if encoding.codec.id == "dense" else "values")
    dtype = "f32" if values is None else values.dtype
    spec = TensorSpec(name="", shape=(EXPERTS, *shape) if op == "experts" else shape, dtype=dtype)
    spec = evolve(spec, dtype=registry.codec(encoding.codec).value_dtype(spec))
    codec = _fitted(registry, encoding.codec, spec)
    parts = registry.codec(codec).parts(spec)
    filters = {role: part.filters for role, part in encoding.parts.items()}
    complete = {role: _part(kind, shape, filters.get(role, ())) for role, (kind, shape) in parts.items()}
    return evolve(spec, encodings=(evolve(encoding, codec=codec, parts=complete),))


def _fitted(registry: Lookup, codec: CodecSpec, spec: TensorSpec) -> CodecSpec:
    """Return a codec and the codecs it wraps, with the parameters that depend on values."""

    def panels() -> Iterator[np.ndarray]:
        import numpy as np

        yield np.ones(spec.shape, dtypes.to_numpy(spec.dtype))

    inner = None if codec.inner is None else _fitted(registry, codec.inner, spec)
    fitted = evolve(codec, inner=inner)
    return evolve(fitted, params=registry.codec(fitted).fit_params(panels, spec))


def _part(dtype: str, shape: tuple[int, ...], filters: tuple[Filter, ...]) -> Part:
    segment = Segment(0, 0, dtypes.nbytes(dtype, shape))
    return Part(dtype=dtype, shape=shape, segments=(segment,), filters=filters)


def because(offers: Sequence[Ranked], policy: str, key: OfferOrder, *, alone: bool, use: str = "use") -> str:
    """Return why the first offer precedes those of other encodings, and the next one.

    `alone`: the caller named a backend. `use`: the unit of moved bytes.
    """
    if len(offers) == 1:
        return "only this backend was requested" if alone else "nothing else here can run it"
    first, second = offers[:2]
    other = next((ranked for ranked in offers if ranked.rank != first.rank), second)
    return "; ".join(dict.fromkeys(_reason(first, after, policy, key, use) for after in (other, second)))


def _reason(first: Ranked, second: Ranked, policy: str, key: OfferOrder, use: str) -> str:
    """Return why an offer precedes another, as a sentence."""
    mine, other = first.offer.backend, second.offer.backend
    if first.outside != second.outside:
        return f"{other} is a third-party backend, which is preferred only if named"
    if second.only_named and not first.only_named:
        return f"{other} is used only if named: {second.only_named}"
    if mine == other:
        other = f"{other} with {second.offer.encoding.label}"
    keys = key(first), key(second)
    if keys[0] != keys[1]:
        if key is not OFFER_ORDERS.get(policy, (None, ""))[0]:
            return f"the caller's policy ({policy}) prefers it to {other}"
        return OFFER_ORDERS["spec" if keys[0][:-1] == keys[1][:-1] else policy][1].format(other=other)
    moved = format_bytes(first.cost.moved), format_bytes(second.cost.moved)
    reasons = (
        f"its own runtime takes over the whole operation, which is preferred to {other}",
        f"{mine} keeps the weights in {MEMORY[first.cost.memory]}, {other} in {MEMORY[second.cost.memory]}",
        _mode_reason(first.offer, other),
        f"{mine} reads and writes {moved[0]} per {use}, {other} {moved[1]}",
        f"{mine} declares a higher preference than {other}; all else is equal",
        f"{mine} comes before {other} by name; all else is equal",
        OFFER_ORDERS["spec"][1],
    )
    return next(reason for reason, a, b in zip(reasons, first.tie, second.tie) if a != b)


def _mode_reason(offer: Offer, other: str) -> str:
    """Return the advantage of an offer's mode over that of another backend."""
    if offer.encoding.codec.id == "dense":
        return f"works on the stored values directly; {other} would make an f32 copy first"
    return f"works on the compressed blocks directly; {other} would decode them to f32 first"


class Lookup(Protocol):
    """The part of the registry that resolving needs."""

    @property
    def containers(self) -> Mapping[str, Any]: ...
    @property
    def backends(self) -> Mapping[str, Any]: ...
    def container(self, name: str) -> Container: ...
    def backend(self, name: str) -> Backend: ...
    def codec(self, spec: CodecSpec) -> Codec: ...
    def missing(self, encoding: Encoding) -> Refusal | None: ...
    def absent_backends(self) -> list[Refusal]: ...
    def is_outside(self, backend: str) -> bool: ...
    @property
    def answers(self) -> AnswerTable: ...
    @property
    def providers(self) -> PluginTable: ...
    @property
    def resolvers(self) -> dict[str, Resolver]: ...


@frozen(kw_only=True)
class Candidate:
    """A backend to ask: `backend` if it can run here, else `refusal` with code and reason."""

    id: str
    backend: Backend | None = None
    refusal: tuple[str, str] | None = None
    only_named: str = ""


@frozen
class Candidates:
    """The candidates as their probes answered (None: a backend that cannot be imported), and their refusals."""

    probed: Sequence[Availability | None]
    candidates: Sequence[Candidate]
    refusals: tuple[tuple[str, str] | None, ...]


class Resolver:
    """Resolves tensors by one policy, on any backend or a named one. Probes backends once, for the first tensor.

    Parameters
    ----------
    registry
        What is installed; a registration needs a new resolver.
    backend
        Backend id, possibly with options ("ane:device=M1"); any backend by default.
    policy
        "spec", "smallest", "exact" or a function from `Ranked` to a sort key. Under any policy, third-party backends
        rank after Squish's own unless they are named.
    """

    def __init__(self, registry: Lookup, backend: str | None = None, policy: str | OfferOrder = "spec") -> None:
        self._table = registry.answers  # before the rest of the registry: a registration starts a new table
        self.registry, self.backend, self.policy = registry, backend, policy
        self._order = _offer_order(policy)
        self._named = None if backend is None else parse_spec(backend)
        self._backends: Sequence[Candidate] | None = None
        self._candidates: Candidates | None = None

    def probe(self) -> Candidates:
        """Ask the backends whether they can run here now; `resolve` does so for the first tensor alone."""
        backends = self._backends
        if backends is None:
            backends = _backends(self.registry, self._named)
            if all(candidate.backend for candidate in backends):  # an import that failed is tried again
                self._backends = backends
        probed = [_probe(candidate.backend) if candidate.backend else None for candidate in backends]
        here = self._candidates
        if here is None or self._backends is None or here.probed != probed:
            candidates = [_candidate(backend, available) for backend, available in zip(backends, probed)]
            refusals = tuple([candidate.refusal for candidate in candidates])
            here = self._candidates = Candidates(probed, candidates, refusals)
        return here

    def resolve(
        self,
        target: str,
        container: str,
        alternatives: Sequence[Encoding | Refusal],
        *,
        spec: TensorSpec | None = None,
        op: str | None = None,
    ) -> Chain:
        """Ask every backend about every encoding and order the offers. A SquishError without offers lists all refusals.

        `op` is the operation to run; the default depends on the rank.
        """
        ops = OPS if spec is None else OPS_OF_RANK.get(len(spec.shape), ("dense",))
        op = op or ops[0]
        if op not in OPS:
            raise UsageError("no such operation", expected=", ".join(OPS), found=repr(op), code=ErrorCode.OP)
        if op not in ops:
            raise UsageError(
                "its rank does not fit the operation", expected=", ".join(ops), found=repr(op), code="rank"
            )
        if spec is not None:
            check_declared(spec)
        here = self._candidates or self.probe()
        question = self.policy, op, self.backend, here.refusals
        is_stored = spec is not None and alternatives is spec.encodings
        cacheable = spec if is_stored and isinstance(self.policy, str) else None
        answers = None if cacheable is None else answers_for(self._table, question, cacheable)
        if answers is None:
            alone = self._named is not None
            answers = quietly(_answers, self.registry, here.candidates, alternatives, spec, op, *self._order, alone)
            if not answers.offers:
                raise _no_chain(target, alternatives, answers.refusals, spec)
            offers, refusals = answers.offers, answers.refusals
            if cacheable is not None:
                keep(self._table, question, cacheable, answers)
        else:
            assert spec is not None
            offers, refusals = answers.about(spec.encodings)
        options = {} if self._named is None else self._named.params
        chain = Chain(
            target=target,
            container=container,
            chosen=offers[0],
            reason=answers.reason,
            others=tuple(offers[1:]),
            refused=refusals,
            policy=self._order[0],
            spec=spec,
            options=options,
            providers=self.registry.providers,
        )
        log("resolved %s", chain)
        return chain


def resolve(
    registry: Lookup,
    target: str,
    container: str,
    alternatives: Sequence[Encoding | Refusal],
    *,
    spec: TensorSpec | None = None,
    backend: str | None = None,
    policy: str | OfferOrder = "spec",
    op: str | None = None,
) -> Chain:
    """Return the chain of one tensor, as `Resolver` has it, with backends as they are now."""
    resolvers = registry.resolvers
    resolver = resolvers.get(policy) if backend is None and isinstance(policy, str) else None
    if resolver is not None:
        resolver.probe()
    else:
        resolver = Resolver(registry, backend, policy)
        if backend is None and isinstance(policy, str):
            resolvers[policy] = resolver
    return resolver.resolve(target, container, alternatives, spec=spec, op=op)


def _answers(
    registry: Lookup,
    candidates: Sequence[Candidate],
    alternatives: Sequence[Encoding | Refusal],
    spec: TensorSpec | None,
    op: str,
    policy: str,
    key: OfferOrder,
    alone: bool,
) -> Answers:
    """Ask the candidates about every encoding and order the offers. `alone`: the caller named a backend."""
    encodings = [item for item in alternatives if isinstance(item, Encoding)]
    refusals: list[tuple[Refusal, int | None]] = [(item, None) for item in alternatives if isinstance(item, Refusal)]
    offers: list[Ranked] = []
    questions = [_question(registry, spec, encoding, op) for encoding in encodings]
    refusals += [(question, rank) for rank, question in enumerate(questions) if isinstance(question, Refusal)]
    for candidate in candidates:
        name, backend = candidate.id, candidate.backend
        if backend is None:
            assert candidate.refusal is not None
            code, why = candidate.refusal
            refusals.append((Refusal(backend=name, encoding=None, code=code, why=why), None))
            continue
        preference = registry.backends[name].info.preference
        outside = not alone and registry.is_outside(backend.id)
        for rank, (encoding, question) in enumerate(zip(encodings, questions)):
            if isinstance(question, Refusal):
                continue
            answer = _offer(backend, question, encoding)
            if isinstance(answer, Refusal):
                refusals.append((answer, rank))
            else:
                offers.append(Ranked(answer, rank, preference, outside, "" if alone else candidate.only_named))
    if not alone:
        refusals += [(item, None) for item in registry.absent_backends()]
    offers.sort(key=lambda ranked: (ranked.outside, bool(ranked.only_named), key(ranked), *ranked.tie))
    if offers and offers[0].only_named:
        refusals += [(_only_named(ranked), ranked.rank) for ranked in offers]
        offers = []
    use = "use" if spec is not None else "use of a 256 x 256 matrix"
    return Answers(
        [ranked.offer for ranked in offers],
        Reason(partial(because, offers, policy, key, alone=alone, use=use)),
        tuple([refusal for refusal, _ in refusals]),
        ([ranked.rank for ranked in offers], [rank for _, rank in refusals]),
    )


def _offer_order(policy: str | OfferOrder) -> tuple[str, OfferOrder]:
    if callable(policy):
        return getattr(policy, "__name__", "custom"), policy
    if policy not in OFFER_ORDERS:
        raise UsageError("no such policy", expected=", ".join(OFFER_ORDERS), found=repr(policy), code=ErrorCode.POLICY)
    return policy, OFFER_ORDERS[policy][0]


def _backends(registry: Lookup, named: CodecSpec | None) -> list[Candidate]:
    """Return all backends, or the named one with its options."""
    if named is not None and named.id not in registry.backends:
        try:
            registry.backend(named.id)  # which says what to install
        except SquishError as error:
            raise error.about_argument() from None
    backends: list[Candidate] = []
    for name in sorted(registry.backends) if named is None else [named.id]:
        try:
            backend = registry.backend(name)
        except SquishError as error:  # it cannot be imported, or is in conflict; the others still answer
            if named is not None:
                raise
            backends.append(Candidate(id=name, refusal=(error.code or ErrorCode.IMPORT, error.message)))
            continue
        if named is not None and named.params:
            backend = backend.configured(named.params)
        backends.append(Candidate(id=name, backend=backend))
    return backends


def _candidate(backend: Candidate, available: Availability | None) -> Candidate:
    """Return the backend, if its probe says that it can run here."""
    if available is None:
        return backend
    if available.ok:
        return evolve(backend, only_named=available.only_named)
    return Candidate(id=backend.id, refusal=("unavailable", available.reason))


def _probe(backend: Backend) -> Availability:
    try:
        return backend.probe()
    except Exception as error:  # a failing probe must not affect the other backends
        return Availability(ok=False, reason=f"its probe failed: {type(error).__name__}: {error}")


def _question(registry: Lookup, spec: TensorSpec | None, encoding: Encoding, op: str) -> Request | Refusal:
    """Return the request for an encoding, of an example tensor if `spec` is None; a refusal if its codec is missing."""
    missing = registry.missing(encoding)
    if missing is not None and missing.code == ErrorCode.WHOLE:
        return Request(spec=spec, encoding=encoding, codec=None, op=op)
    if missing is not None:
        return evolve(missing, encoding=encoding)
    try:
        tensor = example(registry, encoding, op) if spec is None else spec
        complete = tensor.encodings[0] if spec is None else encoding
        return Request(spec=tensor, encoding=complete, codec=registry.codec(complete.codec), op=op)
    except SquishError as error:
        code, why = error.code or ErrorCode.PARAMS, error.reason()
    except Exception as error:  # a codec's bug must not affect the other encodings
        code, why = ErrorCode.PLUGIN_BUG, f"its codec failed: {type(error).__name__}: {error}"
    return Refusal(encoding=encoding, code=code, why=why)


def _offer(backend: Backend, question: Request, encoding: Encoding) -> Offer | Refusal:
    """Ask a backend about an encoding; an offer without the operation counts as a refusal."""
    if question.codec is None and not backend.whole:
        why = f"{encoding.codec.id} is a whole model, which only its own runtime can run"
        return Refusal(backend=backend.id, encoding=encoding, code=ErrorCode.WHOLE, why=why)
    try:
        answer = backend.offer(question)
    except Exception as error:  # a backend's bug must not affect the others
        code, why = ErrorCode.PLUGIN_BUG, f"its offer failed: {type(error).__name__}: {error}"
    else:
        if isinstance(answer, Refusal):
            return answer if question.encoding is encoding else evolve(answer, encoding=encoding)
        if question.codec is None or question.op in answer.ops:  # a whole model has no operation
            return answer if question.encoding is encoding else answer.about(encoding)
        code, why = "operation", f"has no operation {question.op!r} for this codec and shape"
    return Refusal(backend=backend.id, encoding=encoding, code=code, why=why)


def _only_named(ranked: Ranked) -> Refusal:
    offer = ranked.offer
    why = f"{ranked.only_named}; backend={offer.backend!r} selects it anyway"
    return Refusal(backend=offer.backend, encoding=offer.encoding, code="unavailable", why=why)


def _no_chain(
    target: str, alternatives: Sequence[Encoding | Refusal], refusals: Sequence[Refusal], spec: TensorSpec | None
) -> SquishError:
    if spec is not None and spec.problem:
        return TensorError(spec.problem, tensor=spec.name, code=ErrorCode.UNREADABLE)
    if not any(isinstance(item, Encoding) for item in alternatives) and all(item.encoding is None for item in refusals):
        return TensorError("has no encoding that Squish knows", tensor=target, code=ErrorCode.UNREADABLE)
    real = [item for item in refusals if item.encoding is not None]
    if all(item.code == ErrorCode.WHOLE for item in real):  # only the others could run a whole model
        real = list(refusals)
    backends: dict[str, list[str]] = {}
    for item in real:
        # A refusal without a backend lists everything that is missing; several encodings may need the same.
        for why in (item.why,) if item.backend else item.why.split("; "):
            backends.setdefault(why, []).extend([item.backend] if item.backend else [])
    reasons = "; ".join(
        f"{', '.join(dict.fromkeys(names))}: {why}" if names else why for why, names in backends.items()
    )
    hint = install_hint(item.install for item in real)
    kind = MissingPluginError if hint else TensorError
    return kind(f"nothing installed can run it ({reasons})", tensor=target, code=ErrorCode.NO_CHAIN, hint=hint)
