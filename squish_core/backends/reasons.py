"""The reason why one offer is preferred to another."""

from __future__ import annotations

from collections.abc import Sequence

from squish_core.backends.chain import OFFER_ORDERS, OfferOrder, Ranked
from squish_core.backends.offers import MEMORY, Offer
from squish_core.text import format_bytes


def because(offers: Sequence[Ranked], policy: str, key: OfferOrder, *, alone: bool, use: str = "use") -> str:
    """Why the first offer precedes those of other encodings, and the next one.

    `alone`: the caller named a backend. `use`: the unit of moved bytes.
    """
    if len(offers) == 1:
        return "only this backend was requested" if alone else "nothing else here can run it"
    first, second = offers[:2]
    other = next((ranked for ranked in offers if ranked.rank != first.rank), second)
    return "; ".join(dict.fromkeys(_reason(first, after, policy, key, use) for after in (other, second)))


def _reason(first: Ranked, second: Ranked, policy: str, key: OfferOrder, use: str) -> str:
    """Why an offer precedes another, as a sentence."""
    mine, other = first.offer.backend, second.offer.backend
    if first.outside != second.outside:
        return f"{other} is a third-party backend, which is preferred only if named"
    if first.emulated != second.emulated:
        return f"{other} is used only if named: its device is emulated, or has a memory of its own"
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
    """The advantage of an offer's mode over that of another backend."""
    if offer.encoding.codec.id == "dense":
        return f"works on the stored values directly; {other} would make an f32 copy first"
    return f"works on the compressed blocks directly; {other} would decode them to f32 first"
