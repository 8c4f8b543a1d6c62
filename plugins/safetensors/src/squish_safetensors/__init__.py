"""Declares the safetensors container; imports no implementation."""

from __future__ import annotations

from squish_core.api import ContainerInfo, Signature, hookimpl


@hookimpl
def squish_containers() -> list[ContainerInfo]:
    """The containers of this plugin."""
    return [
        ContainerInfo(
            id="safetensors",
            title="safetensors, single files and sharded sets",
            factory="squish_safetensors.container:Safetensors",
            suffixes=(".safetensors", ".safetensors.index.json"),
            signatures=(Signature(b"{", offset=8), Signature(b".safetensors", where="member")),
            can_write=True,
        )
    ]
