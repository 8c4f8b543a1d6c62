"""How a quantization_config of Hugging Face or MLX changes what mistral.rs reads, on a CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import evolve

from squish_core.api import Problem, TensorSpec

from .tensors import EXPERT_NAMES, Need, Settings, Shapes, needs

BITS, GROUPS = (2, 3, 4, 6, 8), (32, 64, 128)
SCALE, MARKS = ".weight_scale_inv", ("nf4", "fp4")
MERGED = ("Glm4ForCausalLM",)
"""Classes that do not run AFQ."""


def _method(settings: Settings) -> str:
    declared: Mapping[str, Any] | None = settings["quantization_config"]
    return "" if declared is None else declared.get("quant_method") or "afq"


def read_needs(name: str, settings: Settings, stored: Shapes) -> Iterator[Need]:
    """Every tensor that is read, as it must be stored; `is_coded` of those with codes in u32."""
    for need in needs(name, settings, stored):
        if need.is_coded and _method(settings) == "afq":
            yield from _grouped(need, settings)
        else:
            yield evolve(need, is_coded=False)


def _grouped(need: Need, settings: Settings) -> Iterator[Need]:
    """Codes, scales and biases of AFQ, as MLX stores them."""
    declared = settings["quantization_config"]
    prefix = need.name.removesuffix("weight")
    *rows, columns = need.shape
    yield evolve(need, shape=(*rows, columns * declared["bits"] // 32))
    for part in ("scales", "biases"):
        yield Need(prefix + part, (*rows, columns // (declared["group_size"] or 1)))


def method_problems(name: str, settings: Settings, stored: Shapes) -> Iterator[Problem]:
    """Codes that mistral.rs does not run on a CPU."""
    method, declared = _method(settings), settings["quantization_config"]
    if method == "afq":
        if declared["bits"] not in BITS or declared["group_size"] not in GROUPS:
            yield _declared(f"is AFQ with {declared['bits']} bits in groups of {declared['group_size']}")
        if name in MERGED or any(need.is_coded and _is_expert(need.name) for need in needs(name, settings, stored)):
            yield _declared("is AFQ, which mistral.rs does not run for this model on a CPU")
    elif method in ("gptq", "awq"):
        if any(each.endswith(".qweight") for each in stored):
            yield _declared(f"is {method}, which mistral.rs runs only on CUDA")
    elif method == "mxfp4" and name != "GptOssForCausalLM":
        yield _declared("is mxfp4, which mistral.rs runs only on CUDA and Metal")
    elif method == "bitsandbytes" and not any(mark in each for each in stored for mark in MARKS):
        yield _declared("is bitsandbytes, and no tensor has its codes")


def _is_expert(name: str) -> bool:
    return ".experts." in name and name.rpartition(".")[0].rpartition(".")[2] in {*EXPERT_NAMES[0], *EXPERT_NAMES[1]}


def unknown_method(settings: Settings, stored: Mapping[str, TensorSpec]) -> str:
    """Why it is not known whether mistral.rs runs the codes."""
    method = _method(settings)
    has_codes = method == "bitsandbytes" or (method == "fp8" and any(name.endswith(SCALE) for name in stored))
    return f"quantization_config.quant_method is {method}, which squish-models' tables do not describe" if has_codes else ""


def _declared(message: str) -> Problem:
    return Problem(code="engine-type", severity="error", where="config.json quantization_config", message=message)
