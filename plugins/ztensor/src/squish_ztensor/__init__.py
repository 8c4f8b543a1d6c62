"""Declares the zTensor container; imports no implementation."""

from __future__ import annotations

from squish_core.api import ContainerInfo, Signature, hookimpl


@hookimpl
def squish_containers() -> list[ContainerInfo]:
    """The containers of this plugin."""
    return [
        ContainerInfo(
            id="ztensor",
            title="zTensor 1.1",
            factory="squish_ztensor.container:Ztensor",
            suffixes=(".zt",),
            signatures=(Signature(b"ZTEN1000"), Signature(b"ZTEN1000", where="tail", offset=-8)),
            can_write=True,
        )
    ]
