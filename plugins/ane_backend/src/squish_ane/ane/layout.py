"""What a planned weight becomes in the compiled program: sections, records by core, coefficient streams, Winograd."""

from __future__ import annotations

from typing import Any

from attrs import asdict

from . import facts
from .activation import BYTES, ActivationTable
from .kernel_formats import DENSE, TYPE_NUMBERS, UNITY
from .planner import Consumer, Verdict, Weights
from .structures import (
    ELEMENT_CODES,
    STREAMS,
    Descriptor,
    Lut,
    Pal,
    converts_to_half,
    cycles_after_skipping,
    group_records,
    implicit_zeros,
    winograd,
)


def compiled(
    weights: Weights, verdict: Verdict, cores: int, shape: tuple[int, ...], consumer: Consumer
) -> dict[str, Any]:
    """Return facts about a planned weight as plain data, for `squish plan --json`.

    `zeros` and its costs are here for weights under a mask; `with_zeros` adds them for others.
    """
    streams = verdict.mode == "stream"
    has_palette = streams and weights.has_palette
    kernel = weights.kernel_format if streams else UNITY if weights.form == "unity" else DENSE
    shared = verdict.generation != facts.GENERATIONS[0]
    descriptor = _descriptor(weights, verdict, 0 if shared else cores, consumer)
    budget = descriptor.sections["pal"]
    used = {
        "bias": descriptor.bias,
        "post_scale": descriptor.scale,
        "palette": descriptor.pal,
        "activation": descriptor.lut,
    }
    result: dict[str, Any] = {
        "generation": verdict.generation, "form": weights.form, "evidence": verdict.evidence, "pieces": verdict.pieces,
        "gates": {hex(gate): facts.is_set(gate, verdict.generation) for gate in facts.ROWS[weights.form].gates},
        "kernel_format": {
            "kind": kernel.kind, "numbers": list(kernel.numbers), "bit_depth": kernel.bit_depth,
            "underlying_type": kernel.underlying_type, "type_number": kernel.type_number,
        },
        "type_number": kernel.type_number, "element_type": TYPE_NUMBERS.get(weights.element or ""),
        "sections": dict(descriptor.sections),
        "tables": {name: dict(table) for name, table in descriptor.tables.items()}, "palette_budget": budget,
        "records": "shared kernel memory" if shared else [[each.offset, each.channels] for each in descriptor.ocgs],
        "record_words": [list(each.words()) for each in descriptor.ocgs],
        "streams": {name: asdict(STREAMS[name]) for name, is_used in used.items() if is_used},
        "winograd": _winograd(weights, shape, consumer.stride),
    }  # fmt: skip
    if has_palette:  # both tables share a budget, whose size is not stated
        result["kernel_format"]["palette_format"] = kernel.palette_format
        result["palette_budget_with_activation"] = budget + BYTES
    if weights.form in ELEMENT_CODES:
        code = ELEMENT_CODES[weights.form]
        result["element_code"], result["converts_to_half"] = code, converts_to_half(code)
    if consumer.activation:
        table = ActivationTable.of(consumer.activation)
        result["activation"] = {
            "function": consumer.activation,
            "domain": list(table.domain),
            "max_error": table.error(consumer.activation),
        }
    implicit = implicit_zeros(shape[2:], stride=consumer.stride, padding=consumer.padding, size=consumer.size)
    if implicit:
        result["implicit_zeros"] = implicit
    if weights.form.startswith("sparse") and weights.elements:
        result |= _zeros(weights, verdict, verdict.why if verdict.mode != "stream" else "", implicit)
    return {**result, "summary": _summary(result)}


def _descriptor(weights: Weights, verdict: Verdict, cores: int, consumer: Consumer) -> Descriptor:
    """Return the sections of a planned weight, with a record for each core; `cores` is 0 if they share memory."""
    streams = verdict.mode == "stream"
    sizes = weights.sections if streams else {"pal": 0, "scale": 0, "bias": 0, "weights": verdict.nbytes}
    pal = None
    if streams and weights.has_palette:
        kernel = weights.kernel_format
        lut_bytes = kernel.palette_lut_size(weights.codebooks, weights.vector_size)
        pal = Pal(kernel.palette_format, kernel.bit_depth, weights.codebooks, lut_bytes)
    has_records = cores and weights.channels
    return Descriptor(
        lut=Lut(TYPE_NUMBERS["f16"], 16, BYTES) if consumer.activation else None,
        pal=pal,
        ocgs=group_records(weights.channels, cores, -(-sizes["weights"] // cores)) if has_records else (),
        scale=sizes["scale"],
        bias=sizes["bias"],
        weights=sizes["weights"],
    )


def with_zeros(layout: dict[str, Any], masked: Weights, verdict: Verdict, moved: int) -> dict[str, Any]:
    """Return the facts about a weight and its counted zeros.

    `masked` and `verdict`: the same weight under a mask, as planned; `moved`: bytes moved in its present form.
    """
    why = verdict.why if verdict.mode != "stream" else ""
    if not why and verdict.nbytes >= moved:
        why = f"{moved / verdict.dense:.2f} without a mask"
    result = {**layout, **_zeros(masked, verdict, why, layout.get("implicit_zeros", 0.0))}
    return {**result, "summary": _summary(result)}


def _zeros(weights: Weights, verdict: Verdict, why: str, implicit: float) -> dict[str, Any]:
    """Return the share of zeros and its costs under a mask; `why`: the reason against a sparse stream."""
    zeros = 1 - weights.nonzero / weights.elements
    return {
        "zeros": zeros,
        "moved_of_dense": verdict.nbytes / verdict.dense,
        "cycles_of_dense": cycles_after_skipping(1.0, zeros, implicit),
        "sparse_stream": f"excluded: {why}" if why else "eligible",
    }


def _winograd(weights: Weights, shape: tuple[int, ...], stride: int) -> str:
    """Return why a weight takes no Winograd path, or "eligible"."""
    is_spatial = len(shape) in (4, 5)
    eligible, why = winograd(
        kernel=(shape[-2], shape[-1]) if is_spatial else (1, 1),
        stride=stride,
        form=weights.form,
        channels=weights.channels,
        depth=shape[2] if len(shape) == 5 else 1,
        unit="integer" if weights.form.startswith("int8") else "float",
    )
    return "eligible" if eligible else f"excluded: {why}"


def _summary(layout: dict[str, Any]) -> str:
    """Return the facts that decide what a weight costs, for the readable table."""
    texts = []
    if isinstance(layout["records"], list) and layout["records"]:
        texts.append(f"records of {' + '.join(str(channels) for _, channels in layout['records'])} channels by core")
    kernel = layout["kernel_format"]
    if kernel["kind"] != "plain" or kernel["underlying_type"] != "f16":
        name = kernel.get("palette_format", f"{kernel['kind']} {kernel['underlying_type']}")
        numbers = f" ({kernel['numbers'][0]} to {kernel['numbers'][-1]})" if kernel["kind"] != "plain" else ""
        texts.append(f"kernel format {name}{numbers}, type {layout['type_number']}")
    if layout["palette_budget"]:
        texts.append(f"palette of {layout['palette_budget']} on-chip bytes")
    if "zeros" in layout:
        is_masked = layout["form"].startswith("sparse")
        moved = f"{layout['moved_of_dense']:.2f} of dense bytes{'' if is_masked else ' under a mask'}"
        texts.append(f"{layout['zeros']:.1%} zeros: {moved}, {layout['cycles_of_dense']:.2f} of cycles")
        if not is_masked:
            step = " with --encode bitmask" if layout["sparse_stream"] == "eligible" else ""
            texts.append(f"sparse stream {layout['sparse_stream']}{step}")
    if "implicit_zeros" in layout:
        texts.append(f"{layout['implicit_zeros']:.1%} implicit zeros")
    if "activation" in layout:
        texts.append(f"activation table of {BYTES} bytes, error at most {layout['activation']['max_error']:.1g}")
    if not layout["winograd"].endswith("3 x 3"):
        texts.append(f"Winograd {layout['winograd']}")
    return "; ".join(texts)
