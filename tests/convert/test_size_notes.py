"""What a report says about encodings that are larger than asked for, or than the values."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import squish_core as squish


def test_encodings_larger_than_the_values_and_budgets_that_are_exceeded_are_noted(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((64, 128)).astype("f4")
    arrays = {"model.layers.0.mlp.up_proj.weight": values, "lm_head.weight": values, "norm.weight": values[0]}
    sparse = squish.convert(arrays, tmp_path / "s.zt", encode="sparse_csr")
    assert [note for note in sparse.notes if "97 bits per weight instead of 32" in note and "2 tensors" in note]
    mixed = squish.convert(arrays, tmp_path / "m.zt", encode="mixed:bpw=4.5").notes
    assert [note for note in mixed if "18.25 bits per weight, with 1 matrix that it keeps, the largest lm_head" in note]
    del arrays["lm_head.weight"], arrays["norm.weight"]
    assert not squish.convert(arrays, tmp_path / "n.zt", encode="mixed:bpw=4.5").notes
    arrays["model.layers.0.mlp.up_proj.weight"] = np.where(np.arange(128) % 16, 0, values).astype("f4")
    assert not squish.convert(arrays, tmp_path / "t.zt", encode="sparse_csr").notes
