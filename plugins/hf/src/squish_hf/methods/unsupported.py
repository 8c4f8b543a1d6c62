"""Known methods without support: descriptions and next steps."""

from __future__ import annotations

from squish_core.api import FormatError
from squish_hf.declaration import Declared

SAVE = "Load it with Transformers and {}, save the weights unquantized, and convert those."
MARLIN = "4-bit codes in an order of one CUDA kernel (Marlin)"
REPACK = "Take the checkpoint that it was made from: Marlin's order is made again when a runtime loads that one."
METHODS = {
    "aqlm": ("sums of entries of learned codebooks (AQLM)", SAVE.format("aqlm")),
    "auto-round": (
        "codes rounded by AutoRound, in one of several packings", "Export it again with AutoRound's format auto_gptq.",
    ),
    "bitnet": ("ternary weights, four in a byte (BitNet)", SAVE.format("accelerate")),
    "exl3": ("trellis-coded blocks (EXL3)", SAVE.format("exllamav3")),
    "eetq": ("8-bit rows in an order of CUDA kernels (EETQ)", SAVE.format("eetq")),
    "fouroversix": ("NVFP4 with blocks scaled to 4 or 6", SAVE.format("fouroversix")),
    "fp_quant": ("rotated MXFP4 or NVFP4 (FP-Quant)", SAVE.format("fp_quant")),
    "gguf": ("weights that lie in a GGUF file", "Open that file."),
    "higgs": ("rotated vectors on a grid (HIGGS)", SAVE.format("flute")),
    "hqq": (
        "half-quadratic quantization (HQQ): W_q, scale and zero of a layer, and its settings as tensors",
        SAVE.format("hqq"),
    ),
    "marlin": (MARLIN, REPACK),
    "metal": ("affine codes for kernels of Metal", SAVE.format("kernels")),
    "quanto": ("codes and scales of optimum-quanto", SAVE.format("optimum-quanto")),
    "quark": ("codes and scales of AMD's Quark", SAVE.format("amd-quark")),
    "spqr": ("sparse outliers beside codes of few bits (SpQR)", SAVE.format("spqr_quant")),
    "sinq": ("rows and columns scaled in turn (SINQ)", SAVE.format("sinq")),
    "torchao": ("tensor classes of torchao", SAVE.format("torchao")),
    "vptq": ("entries of learned codebooks of vectors (VPTQ)", SAVE.format("vptq")),
}  # fmt: skip
"""`quant_method` -> what it is, and the next step."""


def refuse_marlin(part: str) -> FormatError:
    """Return the error for GPTQ, AWQ or compressed-tensors codes in Marlin's order."""
    return FormatError(f"is stored as {MARLIN}", part=part, code="marlin", hint=REPACK)


def reason(declared: Declared, methods: str) -> str:
    """Return why a method is not supported; `methods` lists the supported ones."""
    name = declared.method.lower().removeprefix("intel/")
    if name not in METHODS:
        method = repr(declared.method[:40]) if name else "no method"
        return f"declares {method}, which is not known here ({methods}): the tensors are those that are stored"
    what, step = METHODS[name]
    return f"declares {name}: {what}. It is not read here, so the tensors are those that are stored. {step}"
