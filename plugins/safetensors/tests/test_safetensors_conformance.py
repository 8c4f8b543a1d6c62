"""The conformance kit on files built by hand: a single file with every kind of part, and a sharded set."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from squish_safetensors.header import TAGS
from squish_testing import ContainerSuite

from squish_core import dtypes

pytestmark = pytest.mark.alone


def packed(tensors: Mapping[str, tuple[str, list[int]]]) -> bytes:
    entries, data = {}, b""
    for name, (tag, shape) in tensors.items():
        size = dtypes.nbytes(TAGS[tag], tuple(shape))
        entries[name] = {"dtype": tag, "shape": shape, "data_offsets": [len(data), len(data) + size]}
        data += bytes(number % (2 if tag == "BOOL" else 60) for number in range(size))
    raw = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    return len(raw).to_bytes(8, "little") + raw + data


@cache
def sharded() -> Path:
    folder = Path(tempfile.mkdtemp())
    places = {}
    for number, name in enumerate(("a", "b"), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        (folder / file).write_bytes(packed({name: ("F32", [4, 8]), f"{name}.bias": ("BF16", [4])}))
        places |= {name: file, f"{name}.bias": file}
    listing = {"metadata": {"total_size": 2 * (128 + 8)}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(listing))
    (folder / "config.json").write_text("{}")
    return folder


class TestSafetensors(ContainerSuite):
    """Samples are in the writer's order, which a copy keeps. A set becomes one file, which holds no assets."""

    container = "safetensors"
    not_rewritten = ("sharded", "an unknown dtype")

    def samples(self) -> Mapping[str, bytes | Path]:
        every = {f"t.{tag}": (tag, [4, 8]) for tag in TAGS} | {"none": ("U8", [0, 2]), "scalar": ("U8", [])}
        order = [*TAGS]
        ordered = sorted(every.items(), key=lambda item: (-order.index(item[1][0]), item[0]))
        unknown = packed({"good": ("F32", [4, 8]), "odd": ("U8", [32])}).replace(b'"U8"', b'"Q9"')
        return {"every dtype": packed(dict(ordered)), "sharded": sharded(), "an unknown dtype": unknown}

    def values(self) -> Mapping[str, Mapping[str, np.ndarray]]:
        kinds = {"U8": "<u1", "I8": "<i1", "I16": "<i2", "U32": "<u4", "F16": "<f2", "F32": "<f4", "F64": "<f8"}
        counted = np.arange(256, dtype=np.uint8) % 60
        whole = {tag: counted[: 32 * np.dtype(kind).itemsize].view(kind).reshape(4, 8) for tag, kind in kinds.items()}
        return {
            "every dtype": {f"t.{tag}": values for tag, values in whole.items()},
            "sharded": {"a": whole["F32"], "b": whole["F32"]},
            "an unknown dtype": {"good": whole["F32"]},
        }

    def unreadable(self) -> Mapping[str, set[str]]:
        return {"an unknown dtype": {"odd"}}

    def damaged(self) -> Mapping[str, bytes]:
        whole = packed({"a": ("F32", [4, 8]), "b": ("F32", [4, 8])})
        return {
            "cut in the values": whole[:-40],
            "trailing bytes": whole + bytes(8),
            "a gap": whole.replace(b"[128, 256]", b"[130, 256]"),
            "the header is not JSON": whole[:9] + b"?" + whole[10:],
        }


def test_a_plugin_that_is_installed_may_be_named_as_well() -> None:
    class Named(TestSafetensors):
        plugin = "squish_safetensors"

    assert Named().entry().dist == "squish-safetensors"
