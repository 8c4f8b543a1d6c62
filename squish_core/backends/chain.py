"""Chains: the container, codec and backend chosen for a tensor, with the reasons; and the orders of offers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol

from attrs import evolve, field, frozen

from squish_core.backends.offers import MEMORY, MODES, Cost, Offer
from squish_core.codes import ErrorCode
from squish_core.display import fit_all, to_json
from squish_core.model import CodecSpec, Encoding, Refusal, TensorSpec
from squish_core.shown import Shown
from squish_core.text import escape, format_bytes

LONG = 40
"""Codec specifications longer than this get a line of their own."""


@frozen
class Ranked:
    """An offer to be ordered, with the rank of its encoding and the preference of its backend.

    `outside`: the backend is from a third-party distribution; `only_named`: as its `Availability` says. Both are false
    if the caller names the backend.
    """

    offer: Offer
    rank: int
    preference: int
    outside: bool = False
    only_named: str = ""

    @property
    def cost(self) -> Cost:
        """Cost of the offer; zero without a file."""
        return self.offer.cost or Cost(stored=0, resident=0, moved=0)

    @property
    def tie(self) -> tuple[Any, ...]:
        """Tie-breaker of every policy's sort key, which makes the order total."""
        mode, memory = MODES.index(self.offer.mode), list(MEMORY).index(self.cost.memory)
        delegated = self.offer.mode == "delegate"
        return (not delegated, memory, mode, self.cost.moved, -self.preference, self.offer.backend, self.rank)


OfferOrder = Callable[[Ranked], Any]
OFFER_ORDERS: dict[str, tuple[OfferOrder, str]] = {
    "spec": (lambda ranked: (ranked.rank,), "the format ranks this encoding before the others it stores"),
    "smallest": (lambda ranked: (ranked.cost.resident, ranked.rank), "it takes less memory than {other} when loaded"),
    "exact": (lambda ranked: (not ranked.offer.exact, ranked.rank), "its results are exact, those of {other} are not"),
}
"""Name -> sort key that ends with the rank, and the reason for an order decided before the rank."""


class Reason:
    """Why an offer is preferred; the text is made on first use."""

    def __init__(self, words: Callable[[], str]) -> None:
        self._words = words

    @cached_property
    def text(self) -> str:
        """The sentence."""
        return self._words()

    def __reduce__(self) -> tuple[Any, ...]:
        return Reason, (partial(str, self.text),)


class ChainPlugin(NamedTuple):
    """A plugin that a chain uses: its role there, its id, and the package that provides it.

    `role`: "container" (a format, or the one that it refines), "codec", "inner codec" (of a wrapping codec), "byte
    codec" (such as zstd), "backend" or "source" (of a URL). `version` is None if it is not installed, `package` if no
    known package provides the id.
    """

    role: str
    id: str
    package: str | None
    version: str | None

    def __str__(self) -> str:
        origin = f"{self.package or 'an unknown package'} {self.version or ''}".strip()
        return f"{self.role} {self.id} ({origin})"


class PluginTable(Protocol):
    """The part of the registry's providers that a chain needs."""

    def used(self, container: str, encoding: Encoding, backend: str | None = None) -> tuple[ChainPlugin, ...]: ...
    def install(self, plugins: Iterable[ChainPlugin]) -> str: ...


@frozen(kw_only=True, repr=False)
class Chain(Shown):
    """The choice for a tensor and its reason (`because`), with the `others` in order and the `refused` ones.

    `providers`: which distribution provides each id, for `plugins` and `install`.
    """

    target: str
    container: str
    chosen: Offer
    others: tuple[Offer, ...] = ()
    refused: tuple[Refusal, ...] = ()
    policy: str = "spec"
    spec: TensorSpec | None = None
    options: Mapping[str, Any] = field(factory=dict)
    providers: PluginTable = field(eq=False)
    reason: Reason = field(eq=False)

    @property
    def because(self) -> str:
        """Why the choice precedes the others.

        Examples
        --------
        >>> squish.open("model.gguf")["blk.0.ffn_up.weight"].plan("numpy").because
        'only this backend was requested'
        """
        return self.reason.text

    @property
    def plugins(self) -> tuple[ChainPlugin, ...]:
        """What the choice uses, from the file to the backend: (role, id, package, version) of each plugin.

        Examples
        --------
        >>> chain = squish.open("model.gguf")["blk.0.ffn_up.weight"].plan("numpy")
        >>> [(plugin.id, plugin.package) for plugin in chain.plugins]
        [('gguf', 'squish-gguf'), ('ggml.q8_0', 'squish-ggml'), ('numpy', 'squish-core')]
        """
        return self.providers.used(self.container, self.chosen.encoding, self.chosen.backend)

    @property
    def install(self) -> str:
        """The command that installs all `plugins`, for a machine that has none of them."""
        return self.providers.install(self.plugins)

    def __repr__(self) -> str:
        path = escape(self._path(self.chosen, _brief([self.chosen.encoding.codec])))
        rest = f"mode={self.chosen.mode} others={len(self.others)} refused={len(self.refused)}"
        return f"<Chain {self.target!r} {path} {rest}>"

    def __str__(self) -> str:
        return "\n".join(fit_all(self.explain().split("\n")))

    def without_chosen(self, why: str) -> Chain:
        """Return the chain with the next offer, after the chosen backend has rejected the data on loading."""
        lost, (first, *rest) = self.chosen, self.others
        refusal = Refusal(backend=lost.backend, encoding=lost.encoding, code=ErrorCode.UNCOVERED, why=why)
        reason = Reason(partial(str, f"{lost.backend}, which was preferred, does not support these data"))
        return evolve(self, chosen=first, others=tuple(rest), refused=(*self.refused, refusal), reason=reason)

    def explain(self) -> str:
        """Explain the choice, one statement per line; `print(chain)` wraps the lines to the terminal.

        Returns
        -------
        str
            The lines, not wrapped.

        Examples
        --------
        >>> chain = squish.open("model.gguf")["blk.0.ffn_up.weight"].plan("numpy")
        >>> print(chain.explain().splitlines()[1])
          chosen   gguf -> ggml.q8_0 -> numpy
        """
        answers: list[Offer | Refusal] = [self.chosen, *self.others, *self.refused]
        codecs = _brief(item.encoding.codec for item in answers if item.encoding)
        lines = [self.target, f"  chosen   {self._path(self.chosen, codecs)}", f"           {_terms(self.chosen)}"]
        lines.append(f"  because  {self.because}")
        lines += [f"  instead  {self._path(offer, codecs)}: {_terms(offer)}" for offer in self.others]
        lines += [f"  codec    {text}" for text, name in codecs.items() if name != text]
        lines.append(f"  plugins  {', '.join(map(str, self.plugins))}")
        for refusal in self.refused:
            codec = f" with {codecs[str(refusal.encoding.codec)]}" if refusal.encoding else ""
            backend = refusal.backend or "any backend"
            install = f" ({refusal.install})" if refusal.install else ""
            lines.append(f"  not      {backend}{codec}: {refusal.why}{install}")
        return "\n".join(map(escape, lines))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON.

        Returns
        -------
        dict
            `chosen`, `because`, `plugins`, `install`, `others` and `refused`; costs in bytes.

        Examples
        --------
        >>> squish.open("model.gguf")["token_embd.weight"].plan("numpy").to_dict()["chosen"]["cost"]["stored"]
        1024
        """

        def offer(item: Offer) -> dict[str, Any]:
            return {
                "backend": item.backend,
                "mode": item.mode,
                "codec": str(item.encoding.codec),
                "encoding": item.encoding.label,
                "ops": list(item.ops),
                "storage": item.storage,
                "exact": item.exact,
                "cost": to_json(item.cost),
                "facts": dict(item.facts),
            }

        return {
            "name": self.target,
            "format": self.container,
            "policy": self.policy,
            "chosen": offer(self.chosen),
            "because": self.because,
            "plugins": [plugin._asdict() for plugin in self.plugins],
            "install": self.install,
            "others": [offer(item) for item in self.others],
            "refused": [
                {
                    "backend": r.backend,
                    "codec": str(r.encoding.codec) if r.encoding else None,
                    "code": r.code,
                    "why": r.why,
                    "install": r.install,
                }
                for r in self.refused
            ],
        }

    def _path(self, offer: Offer, codecs: Mapping[str, str]) -> str:
        filters = sorted({item.codec for part in offer.encoding.parts.values() for item in part.filters})
        label = offer.encoding.label
        container = self.container if label == "stored" else f"{self.container} ({label})"
        return " -> ".join([container, *filters, codecs[str(offer.encoding.codec)], offer.backend])


def _brief(codecs: Iterable[CodecSpec]) -> dict[str, str]:
    """Codec -> short name: the ids alone for a long specification, unless they are ambiguous."""
    names = {str(codec): _ids(codec) for codec in codecs}
    count = Counter(names.values())
    return {text: text if len(text) <= LONG or count[name] > 1 else name for text, name in names.items()}


def _ids(codec: CodecSpec) -> str:
    return f"{codec.id}({_ids(codec.inner)})" if codec.inner else codec.id


def _terms(offer: Offer) -> str:
    cost = offer.cost
    if cost is None:
        return f"{offer.mode}: {offer.storage}"
    memory = "memory" if cost.memory == "host" else MEMORY[cost.memory]
    summary = f"; {offer.facts['summary']}" if offer.facts.get("summary") else ""
    return (
        f"{offer.mode}: {offer.storage}; {format_bytes(cost.stored)} stored, "
        f"{format_bytes(cost.resident)} in {memory}, {format_bytes(cost.moved)} read and written per use{summary}"
    )
