"""The conformance kit on files that gguf-py wrote (tests/data/README.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

import squish_core as squish
from squish_core.testing import ContainerSuite

DATA = Path(__file__).parent / "data"


class TestGguf(ContainerSuite):
    container = "gguf"
    # The head's length is stated nowhere; it is read in windows of at least 4 KiB.
    read_ahead = 4096
    mutations = 1500

    def samples(self):
        # Without the block codecs a deep verification rightly says that it cannot decode.
        names = ["types", *(["blocks"] if "ggml.q4_k" in squish.registry().codecs else [])]
        return {name: (DATA / f"{name}.gguf").read_bytes() for name in names}


class TestSplitSet(ContainerSuite):
    container = "gguf"
    read_ahead = 4096
    mutations = 500

    def samples(self):
        return {"split": DATA / "split-00001-of-00002.gguf"}


@pytest.mark.parametrize("name", ["types", "blocks"])
def test_golden_files_are_rewritten_as_they_are(name, tmp_path):
    squish.convert(DATA / f"{name}.gguf", tmp_path / "ours.gguf")
    assert (tmp_path / "ours.gguf").read_bytes() == (DATA / f"{name}.gguf").read_bytes()
