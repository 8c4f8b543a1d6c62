"""Kernels compiled for a GPU that need not be there, and counts of their instructions."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import triton
from attrs import evolve
from squish_cuda import kernels
from squish_cuda.form import Form, planes
from squish_cuda.products import LANES, LEVELS, constants, entries, parts_of_run
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TYPES = {
    **dict.fromkeys(("high", "low", "codes"), "*i32"), **dict.fromkeys(("steps", "sums", "table"), "*fp32"),
    **dict.fromkeys(("order", "ids", "experts", "starts", "stops"), "*i64"),
    **dict.fromkeys(("x", "y", "out", "bias"), "*bf16"),
}  # fmt: skip
NUMBERS = {"f32": "*fp32", "f16": "*fp16", "bf16": "*bf16", "i8": "*i8", "i16": "*i16", "i32": "*i32"}
ALIGNED = ("runs", "columns", "height", "rows", "plane", "x_row", "y_row", "out_row", "numbers", "outers")


class Code(NamedTuple):
    """Machine code of a kernel: how often each instruction occurs, and bytes of the stack (registers that spilled)."""

    instructions: Counter[str]
    registers: int
    stack: int

    def count(self, pattern: str) -> int:
        """Instructions whose name matches."""
        return sum(number for name, number in self.instructions.items() if re.match(pattern, name))


def number_type(dtype: str | None) -> str:
    """The pointer type of stored numbers."""
    return "*i32" if dtype is None else NUMBERS.get(dtype, "*u8")


def compiled(name: str, form: Form, capability: int, **options: Any) -> Code:
    """Compile a kernel of a form, for sizes that are multiples of 16."""
    function = getattr(kernels, name)
    fused = options.pop("fused", True)
    if options.get("LEVELS") == 0:
        form = evolve(form, unit=1.0)
    settings = {**constants(form), **entries(form), **DEFAULTS[name](form), **options}
    types = {
        **TYPES, "scale": number_type(form.scale), "offset": number_type(form.offset),
        "factor": number_type(form.factor and ("f32" if form.outer[1] == 0 else "f16")),
        "offset_factor": number_type("f16" if form.offset_kind == "minimum" else None),
        "x_column": "i32",
    }  # fmt: skip
    if name == "prepare":
        types["high"] = types["low"] = "*i8" if settings["LEVELS"] else "*fp32"
    elif settings.get("LEVELS") == 0:
        types["high"] = "*fp32"
    if name == "values" and not settings["CHOSEN"]:
        types["ids"] = "i32"
    signature, constexprs, attributes = {}, {}, {}
    for index, argument in enumerate(function.arg_names):
        constant = argument.isupper() or (argument[0] == "T" and argument[1:].isdigit())
        signature[argument] = "constexpr" if constant else types.get(argument, "i32")
        if constant:
            constexprs[(index,)] = settings[argument]
        elif signature[argument][0] == "*" or argument in ALIGNED:
            attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(function, signature, constexprs, attributes)
    target = GPUTarget("cuda", capability, 32)
    return _measured(triton.compile(source, target=target, options={"num_warps": 4, "enable_fp_fusion": fused}))


DEFAULTS: dict[str, Any] = {
    "prepare": lambda form: {"ORDERED": False, "SUB": parts_of_run(form), "LEVELS": 2, "BR": 32},
    "product": lambda form: {
        "LEVELS": LEVELS["int16"] if form.has_integer_products else 0, "EXPERTS": False, "BIASED": False, "M": 1, "BN": 2,
        "BR": LANES // planes(form.bits)[0], "ASM": True,
    },
    "values": lambda form: {"CHOSEN": False, "BN": 4, "BR": 32},
    "tiles": lambda form: {
        "GROUPED": False, "BIASED": False, "WIDE": False, "BM": 16, "BN": 64,
        "BR": 8 if planes(form.bits)[0] < 4 else 4, "ASM": True,
    },
}  # fmt: skip


def _measured(kernel: Any) -> Code:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(kernel.asm["cubin"])
        tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
        ask = [str(tools / "cuobjdump"), "-sass", "-res-usage", file.name]
        text = subprocess.run(ask, capture_output=True, text=True, check=True).stdout
    names = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]+)", text)
    usage = re.search(r"REG:(\d+) STACK:(\d+)", text)
    assert usage is not None
    return Code(Counter(names), int(usage[1]), int(usage[2]))
