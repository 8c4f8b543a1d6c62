"""Known methods without support: descriptions and next steps."""

from __future__ import annotations

from squish_core.api import FormatError
from squish_hf.declaration import Declared

SAVE = "Load it with Transformers and {}, save the weights unquantized, and convert those."
MARLIN = "4-bit codes in an order of one CUDA kernel (Marlin)"
REPACK = "Use the original checkpoint: runtimes convert it to Marlin's order when they load it."
METHODS = {
    "aqlm": ("sums of codebook entries (AQLM)", SAVE.format("aqlm")),
    "bitnet": ("ternary weights, four in a byte (BitNet)", SAVE.format("accelerate")),
    "exl3": ("trellis-coded blocks (EXL3)", SAVE.format("exllamav3")),
    "eetq": ("8-bit rows in the order of CUDA kernels (EETQ)", SAVE.format("eetq")),
    "fouroversix": ("NVFP4 with blocks scaled to 4 or 6", SAVE.format("fouroversix")),
    "fp_quant": ("rotated MXFP4 or NVFP4 (FP-Quant)", SAVE.format("fp_quant")),
    "gguf": ("weights in a GGUF file", "Open that file."),
    "higgs": ("rotated vectors on a grid (HIGGS)", SAVE.format("flute")),
    "marlin": (MARLIN, REPACK),
    "metal": ("affine codes for Metal kernels", SAVE.format("kernels")),
    "quanto": ("codes and scales of optimum-quanto", SAVE.format("optimum-quanto")),
    "quark": ("codes and scales of AMD's Quark", SAVE.format("amd-quark")),
    "spqr": ("low-bit codes with sparse outliers (SpQR)", SAVE.format("spqr_quant")),
    "sinq": ("codes with row and column scales (SINQ)", SAVE.format("sinq")),
    "vptq": ("vector codebooks (VPTQ)", SAVE.format("vptq")),
}  # fmt: skip
"""`quant_method` -> description and next step."""


def refuse_marlin(part: str) -> FormatError:
    """Return the error for GPTQ, AWQ or compressed-tensors codes in Marlin's order."""
    return FormatError(f"unsupported {MARLIN}", part=part, code="marlin", hint=REPACK)


def reason(declared: Declared, methods: str) -> str:
    """Return why a method is not supported; `methods` lists the supported ones."""
    name = declared.method.lower()
    if name not in METHODS:
        method = repr(declared.method[:40]) if name else "no method"
        return f"unknown quantization method {method} (supported: {methods}); tensors are read as stored"
    what, step = METHODS[name]
    return f"unsupported quantization method {name}: {what}. Tensors are read as stored. {step}"
