"""How a quantization_config of Hugging Face or MLX changes what mistral.rs reads on a CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import evolve

from squish_core.api import Problem, TensorSpec

from .tensors import CONVERTED, EMBEDDINGS, EXPERT_NAMES, Need, Settings, Shapes, needs

BITS, GROUPS = (2, 3, 4, 6, 8), (32, 64, 128)
FP8, SCALES, MARKS = "f8_e4m3", ("_scale_inv", "_scale"), ("nf4", "fp4")
MERGED = ("Glm4ForCausalLM",)
"""Classes that do not run AFQ."""


def _method(settings: Settings) -> str:
    quantization: Mapping[str, Any] | None = settings["quantization_config"]
    return "" if quantization is None else quantization.get("quant_method") or "afq"


def read_needs(name: str, settings: Settings, stored: Shapes) -> Iterator[Need]:
    """Yield every tensor that is read, as it must be stored."""
    method = _method(settings)
    for need in needs(name, settings, stored):
        if need.is_coded and method == "afq":
            yield from _grouped(need, settings)
        elif need.is_coded and method == "fp8" and need.name != EMBEDDINGS:
            yield evolve(need, dtypes=(*need.dtypes, FP8))
        else:
            yield need


def _grouped(need: Need, settings: Settings) -> Iterator[Need]:
    """Yield codes, scales and biases of AFQ as MLX stores them."""
    quantization = settings["quantization_config"]
    prefix = need.name.removesuffix("weight")
    *rows, columns = need.shape
    yield evolve(need, shape=(*rows, columns * quantization["bits"] // 32), dtypes=("u32",))
    for part in ("scales", "biases"):
        yield Need(prefix + part, (*rows, columns // (quantization["group_size"] or 1)), dtypes=CONVERTED)


def method_problems(name: str, settings: Settings, tensors: Mapping[str, TensorSpec]) -> Iterator[Problem]:
    """Yield codes that mistral.rs does not run on a CPU."""
    stored = {each: spec.shape for each, spec in tensors.items()}
    method, quantization = _method(settings), settings["quantization_config"]
    if method == "afq":
        if quantization["bits"] not in BITS or quantization["group_size"] not in GROUPS:
            yield _declared(f"is AFQ with {quantization['bits']} bits in groups of {quantization['group_size']}")
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


def unknown_method(name: str, settings: Settings, tensors: Mapping[str, TensorSpec]) -> str:
    """Return why it is unknown whether mistral.rs runs the codes; "" if it is known."""
    method = _method(settings)
    if method == "bitsandbytes":
        return "quantization_config.quant_method is bitsandbytes, which squish-models' tables do not describe"
    shapes = {each: spec.shape for each, spec in tensors.items()}
    for need in needs(name, settings, shapes) if method == "fp8" else ():
        spec = tensors.get(need.name)
        if spec is None or spec.dtype != FP8 or not need.is_coded or need.name == EMBEDDINGS:
            continue
        expected = _scales(need.shape, settings["quantization_config"].get("weight_block_size"))
        if _is_expert(need.name) or expected not in [shapes.get(need.name + scale) for scale in SCALES]:
            return f"{need.name} has FP8 codes whose scales squish-models' tables do not describe"
    return ""


def _scales(shape: tuple[int, ...], block: list[int] | None) -> tuple[int, ...]:
    """Return the shape of the scales of FP8 codes: one, or one per block."""
    if block is None or 0 in block:
        return ()
    return tuple(-(-size // each) for size, each in zip(shape, block))


def _declared(message: str) -> Problem:
    return Problem(code="engine-type", severity="error", where="config.json quantization_config", message=message)
