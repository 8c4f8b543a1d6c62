"""The MLX refinement: maps tensors of a checkpoint to layers, and back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from attrs import evolve
from squish_safetensors.api import (
    CONFIG_FILE,
    Checkpoint,
    CheckpointFiles,
    StoredParts,
    collect_layers,
    refine_layers,
    storage_declarations,
    unmatched_override,
)

from squish_core.api import (
    CodeLayout,
    Encoding,
    ErrorCode,
    FormatError,
    Index,
    Limits,
    Options,
    OutgoingTensor,
    Problem,
    Refusal,
    Source,
    TensorSpec,
    single_value,
)
from squish_mlx.modes import AFFINE, BIASES, SCALES, WHOLE, codec_of, inferred, read_layer, read_mode, requested

KEY = "quantization"
NUMBERS = ("group_size", "bits", "mode")


def overrides(declared: Mapping[str, Any], layers: Collection[str]) -> dict[str, str]:
    """Layer -> the key of its own settings: its name, else the one key that differs only by modules around it.

    Checkpoints of vision-language models may have another prefix (`language_model.`) than their configuration.
    """
    keys = [key for key, value in declared.items() if isinstance(value, dict) or value is False]
    by_end: dict[str, list[str]] = {}
    for key in keys:
        by_end.setdefault(key.rpartition(".")[2], []).append(key)
    found = {}
    for layer in layers:
        near = [
            key
            for key in by_end.get(layer.rpartition(".")[2], ())
            if key == layer or f".{layer}".endswith(f".{key}") or f".{key}".endswith(f".{layer}")
        ]
        if layer in near or len(near) == 1:
            found[layer] = layer if layer in near else near[0]
    return found


class Mlx(Checkpoint):
    """A checkpoint with mlx-lm's `quantization` in config.json.

    Every safetensors file is examined, so the writer is imported only when it is used.
    """

    framework = "mlx"

    def refine(self, index: Index, source: Source, limits: Limits, options: Options) -> Index | None:
        files, problems = CheckpointFiles(index, source, limits), list[Problem]()
        config = files.json(CONFIG_FILE)
        declared = requested(options) if options else config.get(KEY)
        if not isinstance(declared, dict):
            return None
        layers = collect_layers(index.tensors, (SCALES, BIASES), beside=(WHOLE,), packed=("u32",))
        hf_declaration = config.get("quantization_config")
        if isinstance(hf_declaration, dict) and hf_declaration.get("quant_method") is not None:
            method = str(hf_declaration["quant_method"])[:40]
            message = f"quantization_config with method {method!r} is ignored in favor of {KEY}"
            problems.append(
                Problem(code=ErrorCode.CONTRADICTION, severity="warning", where=CONFIG_FILE, message=message)
            )
        names = overrides(declared, layers)
        problems += [
            unmatched_override(name)
            for name, value in declared.items()
            if name not in NUMBERS and isinstance(value, dict) and name not in names.values()
        ]

        def make(layer: str, parts: StoredParts) -> TensorSpec:
            override = declared.get(names.get(layer, layer))
            if override is False:
                raise FormatError(
                    "quantized, although the configuration denies it", part=CONFIG_FILE, code=ErrorCode.CONTRADICTION
                )
            own = override if isinstance(override, dict) else inferred(declared, parts)
            return read_layer(layer, parts, read_mode(own))

        refined = refine_layers(files, "mlx", "", layers, make, problems)
        from squish_safetensors.api import mark_undeclared  # of no use to the files that declare nothing

        return mark_undeclared(evolve(refined, declarations=storage_declarations(files)))

    def encodings_for(
        self, *, mode: Any = AFFINE, bits: Any = None, group_size: Any = None, **features: Any
    ) -> tuple[Encoding | Refusal, ...]:
        numbers = {"bits": bits, "group_size": group_size}
        declared = {name: int(single_value(name, value)) for name, value in numbers.items() if value is not None}
        mode = single_value("mode", mode)
        try:
            return (Encoding(codec=codec_of(read_mode({"mode": mode, **declared}))),)
        except FormatError as error:
            encoding = Encoding(codec=codec_of(read_mode({"mode": mode})))
            numbers_text = " and ".join(f"{name}={value}" for name, value in declared.items())
            why = f"no MLX model has {numbers_text} in this mode (expected {error.expected})"
            return (Refusal(encoding=encoding, code="mode", why=why),)

    def naming(self, options: Options) -> str:
        return "mlx"

    def accepts(self, spec: TensorSpec, encoding: Encoding, options: Options) -> Encoding | Refusal:
        from squish_mlx import writer

        return writer.accepts(spec, encoding)

    def accepts_codes(self, spec: TensorSpec, layout: CodeLayout, options: Options) -> Encoding | Refusal | None:
        from squish_mlx import writer

        return writer.accepts_codes(spec, layout)

    def lower(self, tensor: OutgoingTensor, options: Options) -> list[OutgoingTensor]:
        from squish_mlx import writer

        return writer.lower(tensor)

    def declare(self, config: Mapping[str, Any], specs: Sequence[TensorSpec], options: Options) -> dict[str, Any]:
        from squish_mlx import writer

        return writer.declare(config, specs)
