"""Questions about a format's features, without a file: every answer is one, and names what a file could hold."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest

import squish_core as squish
from squish_core.api import SquishError

FORMATS = sorted(squish.registry().containers)
BACKENDS = (None, "cpu", "numpy", "metal", "ane:device=M1", "ane:device=M4")


def questions(container: str) -> Iterator[dict[str, Any]]:
    """Each value of each feature, and each pair of values."""
    features: Any = squish.registry().containers[container].info.features
    choices = [(name, value) for name, values in features.items() for value in values]
    yield from ({name: value} for name, value in choices)
    for (one, first), (other, second) in combinations(choices, 2):
        yield {one: {first, second}} if one == other else {one: first, other: second}


@pytest.mark.parametrize("container", FORMATS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_no_question_ends_in_a_failed_offer(
    container: str, backend: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUISH_METAL", "cpu")
    for features in questions(container):
        for op in (None, "experts", "dense"):
            try:
                chain = squish.registry().resolve(container=container, backend=backend, op=op, **features)
            except SquishError as error:
                failures = [str(error)] if error.code == "plugin-bug" or "failed: " in str(error) else []
            else:
                failures = [refusal.why for refusal in chain.refused if refusal.code == "plugin-bug"]
            assert failures == [], features


@pytest.mark.parametrize("container", FORMATS)
def test_a_format_declares_every_codec_that_its_features_and_short_names_lead_to(container: str) -> None:
    known = squish.registry()
    info: Any = known.containers[container].info
    codecs = {text.partition(":")[0].partition("(")[0] for text in info.aliases.values()}
    for features in questions(container):
        try:
            encodings = known.container(container).encodings_for(**features)
        except SquishError:
            continue
        for encoding in encodings:
            spec = getattr(encoding, "codec", None)
            while spec is not None:
                codecs.add(spec.id)
                spec = spec.inner
            parts = getattr(encoding, "parts", {})
            codecs.update(item.codec for part in parts.values() for item in part.filters)
    assert codecs - {"dense"} - set(info.codecs) == set()
