"""Declares the GGUF container; imports no implementation."""

from __future__ import annotations

from squish_core.api import ContainerInfo, Signature, hookimpl


@hookimpl
def squish_containers() -> list[ContainerInfo]:
    """The containers of this plugin."""
    return [
        ContainerInfo(
            id="gguf",
            title="GGUF v2 and v3",
            factory="squish_gguf.container:Gguf",
            suffixes=(".gguf",),
            signatures=(Signature(b"GGUF"),),
            can_write=True,
        )
    ]
