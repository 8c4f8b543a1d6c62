"""What operations compile: no spilled registers, wide loads, and integer dot products or matrix units."""

from __future__ import annotations

import pytest
import torch
from machine_code import compiling, measured
from squish_cuda import products, weights
from squish_cuda.blocks import GRIDS
from stored_tensors import every_layout, stored

ARCHITECTURES = {"sm_80": 80, "sm_90": 90, "sm_120": 120}
CPU = torch.device("cpu")
NARROW = ("q1_0", "q2_0", "q2_k", "tq1_0", "tq2_0", *GRIDS)
"""Codes of which a run has fewer words than a wide load, or whose words are not read in a row."""


@pytest.mark.parametrize("architecture", ARCHITECTURES.values(), ids=ARCHITECTURES)
@pytest.mark.parametrize("name", every_layout())
def test_operations_compile_to_what_the_device_does_best(name: str, architecture: int) -> None:
    weight = weights.load(stored(every_layout()[name], (64, 1024)).bound, CPU)
    x = torch.zeros(16, 1024, dtype=torch.bfloat16)
    with compiling(architecture) as found:
        products.linear(weight, x[:1])
        products.linear(weight, x)
        products.embed(weight, torch.tensor([3, 5]))
    code = {kernel: measured(compiled) for kernel, compiled in found.items()}
    assert code.keys() == {"prepare", "product", "tiles", "values"}
    assert {kernel: each.stack for kernel, each in code.items()} == dict.fromkeys(code, 0)
    assert code["product"].registers <= 128
    assert code["product"].count("IDP") >= 8 * weight.form.has_integer_products
    assert code["tiles"].count("HMMA|HGMMA|UTCHMMA") >= 8
    wide = name in NARROW or all(code[kernel].count(r"LDG\S*\.128") for kernel in ("product", "tiles"))
    assert wide, {kernel: each.instructions for kernel, each in code.items()}


@pytest.mark.parametrize("architecture", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_experts_and_a_bias_compile(architecture: int) -> None:
    weight = weights.load(stored(every_layout()["q4_k"], (3, 64, 1024)).bound, CPU)
    matrix = weights.load(stored(every_layout()["q4_k"], (64, 1024)).bound, CPU)
    x, bias = torch.zeros(40, 1024, dtype=torch.float16), torch.zeros(64, dtype=torch.float16)
    with compiling(architecture) as found:
        products.experts(weight, x, torch.zeros(40, dtype=torch.int64))
        products.experts(weight, x[:2], torch.zeros(2, dtype=torch.int64))
        products.linear(matrix, x[:3], bias)
    assert {"prepare", "product", "tiles"} == found.keys()
    assert not any(measured(compiled).stack for compiled in found.values())
