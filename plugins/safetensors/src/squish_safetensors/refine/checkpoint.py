"""Checkpoints of models in shards of safetensors: a folder whose config.json declares how the layers are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from squish_core.api import Options, OutgoingTensor, Part, Refinement, Sink, TensorSpec, WritePlan, dropped_assets

from .. import writer
from ..folder import CONFIG_FILE, DECLARING, MODEL_ASSETS
from .declarations import declaration_paths, dropped_declarations
from .layers import read_config, with_config


class Checkpoint(Refinement):
    """A refinement that is written as such a folder; `framework` is the `format` that the shards' metadata state."""

    framework: ClassVar[str]

    def lower(self, tensor: OutgoingTensor, options: Options) -> list[OutgoingTensor]:
        """What is stored of a tensor."""
        raise NotImplementedError

    def declare(self, config: Mapping[str, Any], specs: Sequence[TensorSpec], options: Options) -> dict[str, Any]:
        """The configuration with what is quantized, and how; FormatError where it cannot be stated."""
        raise NotImplementedError

    def writes_folder(self, options: Options) -> bool:
        return True

    def plan_file(
        self, specs: Sequence[TensorSpec], meta: Mapping[str, Any], assets: Mapping[str, Part], options: Options
    ) -> WritePlan:
        """What is left behind; the size is open until config.json is made."""
        part = assets.get(CONFIG_FILE)
        config = read_config(part.data if part is not None and part.data is not None else b"{}")
        declared = declaration_paths(self.declare(config, specs, options))
        lost = dropped_assets(name for name in assets if name in DECLARING or name not in MODEL_ASSETS)
        undeclared = () if declared else dropped_declarations(config)
        return WritePlan(size=None, dropped=(*writer.dropped_non_text(meta), *lost, *undeclared))

    def write(
        self, sink: Sink, tensors: Sequence[OutgoingTensor], meta: Mapping[str, Any], assets: Mapping[str, bytes],
        options: Options,
    ) -> None:  # fmt: skip
        """Write the shards, the assets and the index."""
        stored = [array for tensor in tensors for array in self.lower(tensor, options)]
        specs = [tensor.spec for tensor in tensors]
        # Those of a source say nothing of what is written.
        kept = {name: data for name, data in assets.items() if name not in DECLARING}
        declared = with_config(kept, lambda config: self.declare(config, specs, options))
        size = {writer.MAX_SHARD_SIZE: options.get(writer.MAX_SHARD_SIZE, "5GB")}
        writer.write(sink, stored, {**meta, "format": self.framework}, declared, size, in_order=True)
