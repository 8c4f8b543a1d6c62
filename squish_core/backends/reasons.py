"""Why an offer goes before another, in words."""

from __future__ import annotations

from collections.abc import Sequence

from squish_core.backends.chain import OFFER_ORDERS, OfferOrder, Ranked
from squish_core.backends.offers import MEMORY, Offer
from squish_core.text import format_bytes


def because(offers: Sequence[Ranked], policy: str, key: OfferOrder, *, alone: bool, use: str = "use") -> str:
    """What put the first offer before those of other encodings, and before the next; `alone`: the caller names one
    backend. `use`: what bytes are counted of."""
    if len(offers) == 1:
        return "only this backend was asked" if alone else "nothing else here can run it"
    first, second = offers[:2]
    other = next((ranked for ranked in offers if ranked.rank != first.rank), second)
    return "; ".join(dict.fromkeys(_decided(first, after, policy, key, use) for after in (other, second)))


def _decided(first: Ranked, second: Ranked, policy: str, key: OfferOrder, use: str) -> str:
    """What put an offer before another, as a sentence."""
    mine, other = first.offer.backend, second.offer.backend
    if first.outside != second.outside:
        return f"{other} is a third party's, and comes first only where it is named"
    if first.emulated != second.emulated:
        return f"{other} stands in for a device that is not here, and is chosen only by name"
    if mine == other:
        other = f"{other} with {second.offer.encoding.label}"
    keys = key(first), key(second)
    if keys[0] != keys[1]:
        if key is not OFFER_ORDERS.get(policy, (None, ""))[0]:
            return f"the caller's policy ({policy}) puts it before {other}"
        return OFFER_ORDERS["spec" if keys[0][:-1] == keys[1][:-1] else policy][1].format(other=other)
    moved = format_bytes(first.cost.moved), format_bytes(second.cost.moved)
    reasons = (
        f"its own runtime takes over the whole operation, which goes before {other}",
        f"{mine} keeps the weights in {MEMORY[first.cost.memory]}, {other} in {MEMORY[second.cost.memory]}",
        _mode_reason(first.offer, other),
        f"{mine} reads and writes {moved[0]} per {use}, {other} {moved[1]}",
        f"{mine} declares a higher preference than {other}; all else is equal",
        f"{mine} comes before {other} by name; all else is equal",
        OFFER_ORDERS["spec"][1],
    )
    return next(reason for reason, a, b in zip(reasons, first.tie, second.tie) if a != b)


def _mode_reason(offer: Offer, other: str) -> str:
    """Why the way in which an offer runs is better than the way of another backend."""
    if offer.encoding.codec.id == "dense":
        return f"works on the stored values directly; {other} would make an f32 copy first"
    return f"works on the compressed blocks directly; {other} would decode them to f32 first"
