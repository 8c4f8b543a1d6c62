"""The Hugging Face refinement: maps tensors to layers by the declared `quant_method`."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import evolve
from squish_safetensors.api import (
    Checkpoint,
    CheckpointFiles,
    LayerReader,
    StoredParts,
    collect_layers,
    refine_layers,
    storage_declarations,
    unmatched_override,
)

from squish_core.api import (
    DENSE,
    CodeLayout,
    Encoding,
    ErrorCode,
    Index,
    Limits,
    Options,
    OutgoingTensor,
    Problem,
    Refusal,
    Source,
    SquishError,
    TensorSpec,
    single_value,
)
from squish_hf.declaration import COMFYUI, MISTRAL, Declared, declared_in, read_declaration, requested
from squish_hf.methods.method import Method
from squish_hf.methods.unsupported import reason

Read = Callable[[Declared, CheckpointFiles], Method]
METHODS = {
    "gptq": "squish_hf.methods.gptq",
    "awq": "squish_hf.methods.awq",
    "compressed-tensors": "squish_hf.methods.compressed_tensors",
    "fp8": "squish_hf.methods.fp8",
    "mxfp8": "squish_hf.methods.fp8",
    "fbgemm_fp8": "squish_hf.methods.fp8",
    "mxfp4": "squish_hf.methods.mxfp4",
    "modelopt": "squish_hf.methods.modelopt",
    "modelopt_fp4": "squish_hf.methods.modelopt",
    "bitsandbytes": "squish_hf.methods.bitsandbytes",
    "auto-round": "squish_hf.methods.auto_round",
    "intel/auto-round": "squish_hf.methods.auto_round",
    "hqq": "squish_hf.methods.hqq",
    "torchao": "squish_hf.methods.torchao",
    COMFYUI: "squish_hf.methods.comfyui",
    MISTRAL: "squish_hf.methods.mistral",
}


class HuggingFace(Checkpoint):
    """A checkpoint with a quantization declared in config.json or in the method's own file.

    Every safetensors file is examined, so the writer is imported only when it is used.
    """

    framework = "pt"

    def refine(self, index: Index, source: Source, limits: Limits, options: Options) -> Index | None:
        files = CheckpointFiles(index, source, limits)
        stated = requested(options, METHODS)
        declared, problems = (stated, []) if stated else read_declaration(files)
        if declared is None:
            return None
        if declared.method not in METHODS:
            return _as_stored(index, declared, problems)
        module = importlib.import_module(METHODS[declared.method])
        read: Read = module.read
        failure = None
        try:
            method = read(declared, files)
        except SquishError as error:
            failure, method = error, Method(
                dialect=declared.method, suffixes=module.SUFFIXES, beside=getattr(module, "BESIDE", ()),
                make=_refusing(error),
            )  # fmt: skip
        problems += method.problems
        from squish_hf.methods.column_scales import FIELDS, LOW_RANK, with_column_scales

        found = collect_layers(
            index.tensors,
            (*method.suffixes, *FIELDS),
            bases=method.bases,
            beside=(*method.beside, *LOW_RANK),
            packed=method.packed,
        )
        own = (*method.suffixes, *method.bases)  # scales of inputs alone are not a layer
        layers = {layer: parts for layer, parts in found.items() if not parts.keys().isdisjoint(own)}
        if failure and not layers:  # layers are renamed too
            code = failure.code or ErrorCode.CONFIG
            problems.append(Problem(code=code, severity="error", where=declared.where, message=str(failure)))
        make = with_column_scales(method.make, method.suffixes)
        refined = refine_layers(files, self.id, method.dialect, layers, make, problems, bases=method.bases)
        if layers or not failure:  # without layers, the declaration still describes the stored tensors
            refined = evolve(refined, declarations=storage_declarations(files))
        if declared.method == COMFYUI:
            refined = module.finish(refined)
        with contextlib.suppress(SquishError):  # an invalid pattern, already reported for the layers
            refined = evolve(refined, problems=(*refined.problems, *map(unmatched_override, method.idle(layers))))
        from squish_safetensors.api import mark_undeclared  # not needed for files that declare nothing

        return mark_undeclared(refined, stored=failure is not None and not layers)

    def encodings_for(self, *, method: Any = None, bits: Any = None, **features: Any) -> tuple[Encoding | Refusal, ...]:
        if method is None:
            return ()
        from squish_hf import writer

        return (writer.default_encoding(single_value("method", method), single_value("bits", bits)),)

    def naming(self, options: Options) -> str:
        return "hf"

    def accepts(self, spec: TensorSpec, encoding: Encoding, options: Options) -> Encoding | Refusal:
        from squish_hf import writer

        return writer.accepts(spec, encoding, options)

    def accepts_codes(self, spec: TensorSpec, layout: CodeLayout, options: Options) -> Encoding | Refusal | None:
        from squish_hf import writer

        return writer.accepts_codes(spec, layout, options)

    def tells_symmetric(self, options: Options) -> bool:
        from squish_hf import writer

        return writer.chosen(options) in (*writer.GPTQS, writer.PACKED)

    def lower(self, tensor: OutgoingTensor, options: Options) -> list[OutgoingTensor]:
        from squish_hf import writer

        return writer.lower(tensor, writer.chosen(options))

    def declare(self, config: Mapping[str, Any], specs: Sequence[TensorSpec], options: Options) -> dict[str, Any]:
        declared = declared_in(config)
        if declared and declared.method not in METHODS and all(spec.encodings[0].codec == DENSE for spec in specs):
            return dict(config)  # stored tensors are kept for readers of the method
        from squish_hf import writer

        return writer.declare(config, specs, writer.chosen(options))


def _refusing(error: SquishError) -> LayerReader:
    """Return a layer reader that refuses every layer, for an invalid declaration."""

    def make(layer: str, parts: StoredParts) -> TensorSpec:
        raise type(error)(error.message, **{name: getattr(error, name) for name in SquishError.FIELDS})

    return make


def _as_stored(index: Index, declared: Declared, problems: list[Problem]) -> Index:
    """Return the stored tensors unchanged, with a problem that gives the reason."""
    from squish_safetensors.api import mark_undeclared

    message = reason(declared, ", ".join(METHODS))
    problem = Problem(code="quant-method", severity="error", where=declared.where, message=message)
    index = evolve(index, format="hf", version=declared.method, problems=(*index.problems, *problems, problem))
    return mark_undeclared(index, stored=True)
