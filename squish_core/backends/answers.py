"""A cache of backends' answers by kind of tensor: a model has only a few kinds."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress

from attrs import evolve, frozen

from squish_core.backends.chain import Reason
from squish_core.backends.offers import Offer
from squish_core.codes import ErrorCode
from squish_core.model import Encoding, Part, Refusal, TensorSpec, data_key

MOST = 1024
"""Maximum number of cached answers."""


@frozen
class Answers:
    """Ordered offers, the reason why the first one wins, and refusals.

    `ranks`: ranks of the encodings of offers and refusals (None for a refusal without an encoding).
    """

    offers: Sequence[Offer]
    reason: Reason
    refusals: tuple[Refusal, ...]
    ranks: tuple[Sequence[int], Sequence[int | None]]

    def about(self, encodings: Sequence[Encoding]) -> tuple[Sequence[Offer], tuple[Refusal, ...]]:
        """Return the same offers and refusals for the encodings of another tensor of this kind."""
        ranks, refusal_ranks = self.ranks
        offers = [offer.about(encodings[rank]) for offer, rank in zip(self.offers, ranks)]
        if refusal_ranks.count(None) == len(refusal_ranks):
            return offers, self.refusals
        refusals = [
            refusal if rank is None else evolve(refusal, encoding=encodings[rank])
            for refusal, rank in zip(self.refusals, refusal_ranks)
        ]
        return offers, tuple(refusals)

    def apply_to_all(self, spec: TensorSpec) -> bool:
        """Return whether the answers apply to every tensor of this kind.

        They do not if one is a failure, mentions this tensor, or has an encoding that is not the tensor's.
        """
        offer_ranks, refusal_ranks = self.ranks
        answers = [
            *((offer.encoding, rank, offer.storage) for offer, rank in zip(self.offers, offer_ranks)),
            *((item.encoding, rank, item.why) for item, rank in zip(self.refusals, refusal_ranks) if rank is not None),
        ]
        return all(encoding is spec.encodings[rank] and spec.name not in text for encoding, rank, text in answers) and (
            all(refusal.code != ErrorCode.PLUGIN_BUG for refusal in self.refusals)
        )


AnswerTable = dict[Hashable, Answers]
"""Answers by question and kind of tensor.

Threads share a table without a lock: single dictionary operations are atomic, and two threads store the same answer to
the same question. The registry starts a new table with each registration.
"""


def answers_for(table: AnswerTable, question: Hashable, spec: TensorSpec) -> Answers | None:
    """Return the cached answers for a tensor of this kind, or None."""
    try:
        return table.get((question, kind_of(spec)))
    except TypeError:  # parameters that are not plain data
        return None


def keep(table: AnswerTable, question: Hashable, spec: TensorSpec, answers: Answers) -> None:
    """Cache answers that apply to every tensor of this kind."""
    if answers.apply_to_all(spec):
        if len(table) >= MOST:
            table.clear()
        with suppress(TypeError):
            table[question, kind_of(spec)] = answers


def kind_of(spec: TensorSpec) -> Hashable:
    """Key of everything that a backend may depend on: all but names, digests and file offsets.

    TypeError for parameters that are not plain data.
    """
    encodings = [
        (encoding.label, encoding.codec.key, *[_part(role, part) for role, part in encoding.parts.items()])
        for encoding in spec.encodings
    ]
    return spec.dtype, spec.shape, spec.problem, data_key(spec.attrs) if spec.attrs else None, *encodings


def _part(role: str, part: Part) -> Hashable:
    lengths = tuple([segment.length for segment in part.segments])
    filters = tuple([(item.codec, data_key(item.params)) for item in part.filters]) if part.filters else None
    return role, part.dtype, part.shape, part.byteorder, part.data, lengths, filters
