"""Round trips for all types, shapes, biases and shard sizes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from squish_codecs.api import HQQ_PACKINGS, Hqq

import squish_core as squish
from squish_core.api import TensorSpec

KINDS = ("unquant", "q8_0", "hqq4", "hqq3", "hqq1", "afq3", "afq8", "fp8", "f8q8", "mxfp4")


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 6), st.integers(1, 3), st.booleans()), min_size=1),
    st.integers(1, 40_000),
)
def test_a_sharded_model_round_trips(layers: Any, shard: int) -> None:
    rng = np.random.default_rng(0)
    header, data, rules = [], b"", []
    for number, (kind, rows, columns, bias) in enumerate(layers):
        shapes = {f"l{number}.q_proj.weight": (8 * rows, 64 * columns)}
        shapes |= {f"l{number}.q_proj.bias": (8 * rows,)} if bias else {}
        for name, shape in shapes.items():
            raw = rng.normal(size=shape).astype("<f4").tobytes()
            offsets = f"[{len(data)},{len(data) + len(raw)}]"
            header.append(f'"{name}":{{"dtype":"F32","shape":{list(shape)},"data_offsets":{offsets}}}')
            data += raw
        rules += [] if kind == "unquant" else [f"l{number}.q_proj.weight={kind}"]
    text = f"{{{','.join(header)}}}".encode()
    source = len(text).to_bytes(8, "little") + text + data
    with tempfile.TemporaryDirectory() as folder:
        out, again = Path(folder) / "out", Path(folder) / "again"
        squish.convert(source, out, f"uqff:max_shard_size={shard}B", rules)
        conversion = squish.convert(out, again, "uqff")
        assert {step.action for step in conversion.steps} == {"copy"}
        with squish.open(source) as source_file, squish.open(out) as one, squish.open(again) as other:
            assert set(source_file) == set(one) == set(other)
            for name in source_file:
                assert one[name].shape == source_file[name].shape
                np.testing.assert_array_equal(one[name].numpy(), other[name].numpy())
                if one[name].codec == "dense":
                    np.testing.assert_array_equal(one[name].numpy(), source_file[name].numpy())


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(HQQ_PACKINGS)),
    st.sampled_from([0, 1]),
    st.integers(1, 5),
    st.integers(1, 4),
    st.sampled_from([1e-6, 1.0, 1e4]),
    st.sampled_from([0.0, 100.0]),
)
def test_hqq_values_stay_in_the_range_of_their_group(
    bits: int, axis: int, rows: int, columns: int, spread: float, centre: float
) -> None:
    values = (np.random.default_rng(rows).normal(size=(16 * rows, 8 * columns)) * spread + centre * spread).astype(
        "<f4"
    )
    params = {"bits": bits, "group_size": 16, "axis": axis}
    spec = TensorSpec(name="w", shape=values.shape, dtype="f32")
    if axis == 1 and values.size // 16 % (1 if bits == 3 else 8 // bits):
        return  # the rows of codes do not fill whole bytes
    out = np.empty_like(values)
    parts = Hqq.from_params(params).encode(values)
    Hqq.from_params(params).decode(parts, spec, region=tuple(slice(0, size) for size in values.shape), out=out)
    groups, back = (a.reshape((16, -1) if axis == 0 else (-1, 16)) for a in (values, out))
    span = np.ptp(groups, axis=axis, keepdims=True)
    assert (np.abs(groups - back) <= span * 1.01 + np.abs(values).max() * 1e-5).all()
