"""Checkpoints in safetensors shards: a folder with a config.json that declares the quantization."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from squish_core.api import (
    LazyAssets,
    Options,
    OutgoingTensor,
    Part,
    Refinement,
    Sink,
    TensorSpec,
    WritableContainer,
    WritePlan,
    dropped_assets,
)

from .. import writer
from ..folder import CONFIG_FILE, DECLARING, is_model_asset
from .declarations import declaration_paths, dropped_declarations
from .files import read_config, readable_by_transformers, with_config


class Checkpoint(Refinement, WritableContainer):
    """A refinement written as a checkpoint folder; `framework` is the `format` in the shards' metadata."""

    framework: ClassVar[str]

    def lower(self, tensor: OutgoingTensor, options: Options) -> list[OutgoingTensor]:
        """Return the stored tensors of a tensor."""
        raise NotImplementedError

    def declare(self, config: Mapping[str, Any], specs: Sequence[TensorSpec], options: Options) -> dict[str, Any]:
        """Return the configuration with the quantization declared; FormatError if that is impossible."""
        raise NotImplementedError

    def writes_folder(self, options: Options) -> bool:
        return True

    def plan_file(
        self, specs: Sequence[TensorSpec], meta: Mapping[str, Any], assets: Mapping[str, Part], options: Options
    ) -> WritePlan:
        """State what is dropped."""
        part = assets.get(CONFIG_FILE)
        config = read_config(b"{}" if part is None or part.data is None else bytes(part.data))
        declared = declaration_paths(self.declare(config, specs, options))
        dropped = dropped_assets(name for name in assets if name in DECLARING or not is_model_asset(name))
        undeclared = () if declared else dropped_declarations(config)
        return WritePlan(dropped=(*writer.dropped_non_text(meta), *dropped, *undeclared))

    def write(
        self,
        sink: Sink,
        tensors: Sequence[OutgoingTensor],
        meta: Mapping[str, Any],
        assets: Mapping[str, bytes],
        options: Options,
    ) -> None:
        """Write the shards, the assets and the index."""
        stored = [array for tensor in tensors for array in self.lower(tensor, options)]
        specs = [tensor.spec for tensor in tensors]
        # the source's declarations do not describe the target
        carried = LazyAssets((name for name in assets if name not in DECLARING), assets.__getitem__)
        readable = readable_by_transformers(carried, sink.notes)
        declared = with_config(readable, lambda config: self.declare(config, specs, options))
        size = {writer.MAX_SHARD_SIZE: options.get(writer.MAX_SHARD_SIZE, "5GB")}
        writer.write(sink, stored, {**meta, "format": self.framework}, declared, size, in_order=True)
