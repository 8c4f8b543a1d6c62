"""ACME pairs: an ACME file with the empty tensor `acme.pairs` stores int8 matrices as NAME.codes and NAME.scale."""

from __future__ import annotations

from squish_core import api

MARK = "acme.pairs"


class Pairs(api.Refinement):
    """Joins codes and scales into the tensors that they stand for."""

    def refine(
        self, index: api.Index, source: api.Source, limits: api.Limits, options: api.Options
    ) -> api.Index | None:
        if MARK not in index.tensors:
            return None
        tensors = {name: spec for name, spec in index.tensors.items() if name != MARK}
        for name in [name for name in tensors if name.endswith(".codes")]:
            base = name.removesuffix(".codes")
            if base in tensors or f"{base}.scale" not in tensors:
                problem = "appears twice" if base in tensors else "has codes and no scale"
                raise api.FormatError(f"a tensor {problem}", tensor=base, code="pair")
            tensors[base] = joined(base, tensors.pop(name), tensors.pop(f"{base}.scale"))
        return api.Index(format="acme.pairs", version=index.version, files=index.files, tensors=tensors)


def joined(name: str, codes: api.TensorSpec, scale: api.TensorSpec) -> api.TensorSpec:
    """The tensor of a pair; one whose parts do not fit each other keeps them and says why it cannot be read."""
    parts = {"codes": codes.encodings[0].parts["data"], "scale": scale.encodings[0].parts["data"]}
    stored = {role: (part.dtype, part.shape) for role, part in parts.items()}
    if len(codes.shape) != 2 or stored != {"codes": ("i8", codes.shape), "scale": ("f32", codes.shape[:1])}:
        problem = f"its codes and scale do not fit each other: {stored}"
        return api.TensorSpec(name=name, shape=codes.shape, dtype="unknown", extras=parts, problem=problem)
    encoding = api.Encoding(codec=api.CodecSpec("acme.rows"), parts=parts)
    return api.TensorSpec(name=name, shape=codes.shape, dtype="f32", encodings=(encoding,))
