"""Parts of every form in packages."""

import numpy as np

import squish_core as squish
from squish_core.api import CodecSpec, TensorSpec

FORMS = {
    "int4 blocks": ("affine", {"bits": 4, "group_size": 32, "scale_dtype": "f16"}),
    "int4 channel": ("affine", {"bits": 4, "scale_dtype": "f16"}),
    "uint4 packed zero points": ("affine", {
        "bits": 4, "group_size": 32, "axis": "flat", "offset": "zero_point", "offset_dtype": "packed",
        "scale_dtype": "f16"}),
    "int8 channel": ("affine", {"bits": 8, "scale_dtype": "f16"}),
    "uint8 zero points": ("affine", {"bits": 8, "group_size": 32, "offset": "zero_point", "scale_dtype": "f16"}),
    "uint8 channel zero points": ("affine", {"bits": 8, "offset": "zero_point", "scale_dtype": "f16"}),
    "int8 channel zero points": ("affine", {"bits": 8, "signed": True, "offset": "zero_point", "scale_dtype": "f16"}),
    "seven bits": ("affine", {"bits": 7, "offset": "zero_point", "scale_dtype": "f16"}),
    "constant zero": ("affine", {"bits": 5, "zero": 16, "scale_dtype": "f16"}),
    "GPTQ": ("affine", {"bits": 4, "group_size": 32, "transposed": True, "axis": -2, "word": "i32",
                        "offset": "zero_point", "offset_dtype": "packed", "scale_dtype": "f16", "zero": 1}),
    "two bits": ("affine", {"bits": 2, "group_size": 32, "scale_dtype": "f16"}),
    "float32 scales": ("affine", {"bits": 4, "group_size": 32}),
    "palette": ("palette", {"bits": 4, "codebook_dtype": "f16"}),
    "palette by rows": ("palette", {"bits": 4, "axis": "flat", "codebook_dtype": "f16", "codebook_size": 1024}),
    "palette of vectors": ("palette", {
        "bits": 4, "axis": "flat", "codebook_dtype": "f16", "vector": 2, "vector_axis": -2}),
    "one bit": ("palette", {"bits": 1, "codebook_dtype": "f16"}),
    "sparse": ("bitmask", {"dtype": "f16", "kept": "run"}),
    "sparse palette": ("bitmask", {"dtype": "f16", "kept": "run", "bits": 4}),
    "sparse int8": ("bitmask", {"dtype": "i8", "kept": "run", "scale": "f16"}),
    "sparse float32": ("bitmask", {"dtype": "f32", "kept": "run"}),
    "int4 boxes": ("boxes", {"bits": 4, "signed": True, "grid": [16, 4], "scale_dtype": "f16"}),
    "uint4 boxes with zero points": ("boxes", {
        "bits": 4, "grid": [1, 4], "scale_dtype": "f16", "offset_dtype": "packed"}),
    "palette by boxes": ("boxes", {"bits": 4, "books": [4, 8], "codebook_dtype": "f16"}),
    "dense": ("dense", {}),
}  # fmt: skip
OLD = {
    "int4 channel", "sparse", "sparse float32", "int8 channel", "uint8 channel zero points", "int8 channel zero points",
    "seven bits", "constant zero", "palette", "dense", "one bit",
}  # fmt: skip


def stored(codec_id, params, shape, chance, **replacements):
    """Random parts of a codec; scales and codebooks are f16 between 1/2 and 2."""
    codec, spec = squish.registry().codec_type(codec_id), TensorSpec(name="w", shape=shape, dtype="f32")
    if codec_id == "bitmask":  # mask and values must be consistent
        values = chance.standard_normal(shape).astype(np.float16) * (chance.random(shape) > 0.6)
        params = codec.from_params(params).fit_params(lambda: iter([values]), spec)
        return spec, CodecSpec(codec_id, params), codec.from_params(params).encode(values)
    parts = {}
    for role, (dtype, size) in codec.from_params(params).parts(spec).items():
        kind = squish.api.dtypes.to_numpy(dtype)
        if role in ("scale", "codebook") or kind.kind == "f":
            parts[role] = (0.5 + 1.5 * chance.random(size)).astype(np.float16).astype(kind)
        else:
            parts[role] = chance.integers(0, 256, (*size[:-1], size[-1] * kind.itemsize), np.uint8).view(kind)
    return spec, CodecSpec(codec_id, params), {**parts, **replacements}
