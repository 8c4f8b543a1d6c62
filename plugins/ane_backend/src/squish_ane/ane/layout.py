"""What a planned weight becomes in the compiled program: sections, records by core, coefficient streams, Winograd."""

from __future__ import annotations

from typing import Any

from attrs import asdict

from . import facts
from .planner import Verdict, Weights
from .structures import (
    ACTIVATION_BYTES,
    ELEMENT_CODES,
    STREAMS,
    TYPE_NUMBERS,
    Descriptor,
    codebook_bytes,
    converts_to_half,
    cycles_after_skipping,
    group_records,
    winograd,
)  # fmt: skip

_SCALED = ("int8", "int8_asymmetric", "sparse_int8")
_TYPES = {"int8": "i8", "int8_asymmetric": "u8", "blockwise": "i8", "f8_e4m3": "f8_e4m3"}
"""Form -> type of its weights section while streamed; palettes have indices, the others float16."""


def compiled(weights: Weights, verdict: Verdict, cores: int, shape: tuple[int, ...], stride: int) -> dict[str, Any]:
    """Return facts about a planned weight as plain data, for `squish plan --json`.

    `zeros` and its costs are here for weights under a mask; `with_zeros` adds them for others.
    """
    streams = verdict.mode == "stream"
    has_palette = streams and weights.codebooks > 0 and "palette" in weights.form
    budget = codebook_bytes(weights.bits, weights.vector_size, weights.codebooks) if has_palette else 0
    has_scales = weights.form in _SCALED and streams
    shared = verdict.generation != facts.GENERATIONS[0]
    share = -(-verdict.nbytes // cores)
    records = () if shared or not weights.channels else group_records(weights.channels, cores, share)
    descriptor = Descriptor(
        palette=budget, groups=records, scales=2 * weights.channels if has_scales else 0, weights=verdict.nbytes
    )
    type_name = ("lut" if has_palette else _TYPES.get(weights.form, "f16")) if streams else "f16"
    used = {"palette": has_palette, "post_scale": has_scales}
    result: dict[str, Any] = {
        "generation": verdict.generation, "form": weights.form, "evidence": verdict.evidence, "pieces": verdict.pieces,
        "gates": {hex(gate): facts.is_set(gate, verdict.generation) for gate in facts.ROWS[weights.form].gates},
        "type_number": TYPE_NUMBERS[type_name], "sections": dict(descriptor.sections), "palette_budget": budget,
        "records": "shared kernel memory" if shared else [[each.offset, each.channels] for each in records],
        "streams": {name: asdict(STREAMS[name]) for name, is_used in used.items() if is_used},
        "winograd": _winograd(weights, shape, stride),
    }  # fmt: skip
    if has_palette:  # both tables share a budget, whose size is not stated
        result["palette_budget_with_activation"] = budget + ACTIVATION_BYTES
    if weights.form in ELEMENT_CODES:
        code = ELEMENT_CODES[weights.form]
        result["element_code"], result["converts_to_half"] = code, converts_to_half(code)
    if weights.form.startswith("sparse") and weights.elements:
        result |= _zeros(weights, verdict, verdict.why if verdict.mode != "stream" else "")
    return {**result, "summary": _summary(result)}


def with_zeros(layout: dict[str, Any], masked: Weights, verdict: Verdict, moved: int) -> dict[str, Any]:
    """Return the facts about a weight and its counted zeros.

    `masked` and `verdict`: the same weight under a mask, as planned; `moved`: bytes moved in its present form.
    """
    why = verdict.why if verdict.mode != "stream" else ""
    if not why and verdict.nbytes >= moved:
        why = f"{moved / verdict.dense:.2f} without a mask"
    result = {**layout, **_zeros(masked, verdict, why)}
    return {**result, "summary": _summary(result)}


def _zeros(weights: Weights, verdict: Verdict, why: str) -> dict[str, Any]:
    """Return the share of zeros and its costs under a mask; `why`: the reason against a sparse stream."""
    zeros = 1 - weights.nonzero / weights.elements
    return {
        "zeros": zeros, "moved_of_dense": verdict.nbytes / verdict.dense,
        "cycles_of_dense": cycles_after_skipping(1.0, zeros),
        "sparse_stream": f"excluded: {why}" if why else "eligible",
    }  # fmt: skip


def _winograd(weights: Weights, shape: tuple[int, ...], stride: int) -> str:
    """Return why a weight takes no Winograd path, or "eligible"."""
    is_spatial = len(shape) in (4, 5)
    eligible, why = winograd(
        kernel=(shape[-2], shape[-1]) if is_spatial else (1, 1), stride=stride, form=weights.form,
        channels=weights.channels, depth=shape[2] if len(shape) == 5 else 1,
        unit="integer" if weights.form.startswith("int8") else "float",
    )  # fmt: skip
    return "eligible" if eligible else f"excluded: {why}"


def _summary(layout: dict[str, Any]) -> str:
    """Return the facts that decide what a weight costs, for the readable table."""
    texts = []
    if isinstance(layout["records"], list) and layout["records"]:
        texts.append(f"records of {' + '.join(str(channels) for _, channels in layout['records'])} channels by core")
    if layout["palette_budget"]:
        texts.append(f"palette of {layout['palette_budget']} on-chip bytes")
    if "zeros" in layout:
        is_masked = layout["form"].startswith("sparse")
        moved = f"{layout['moved_of_dense']:.2f} of dense bytes{'' if is_masked else ' under a mask'}"
        texts.append(f"{layout['zeros']:.1%} zeros: {moved}, {layout['cycles_of_dense']:.2f} of cycles")
        if not is_masked:
            step = " with --encode bitmask" if layout["sparse_stream"] == "eligible" else ""
            texts.append(f"sparse stream {layout['sparse_stream']}{step}")
    if not layout["winograd"].endswith("3 x 3"):
        texts.append(f"Winograd {layout['winograd']}")
    return "; ".join(texts)
