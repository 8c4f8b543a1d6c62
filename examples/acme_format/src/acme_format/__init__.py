"""Declares the ACME container; imports no implementation."""

from __future__ import annotations

from squish_core.api import ContainerInfo, Signature, hookimpl


@hookimpl
def squish_containers() -> list[ContainerInfo]:
    """The container of this plugin."""
    return [
        ContainerInfo(
            id="acme.foo",
            title="ACME foo",
            factory="acme_format.container:Foo",
            suffixes=(".acme",),
            signatures=(Signature(b"ACME"),),
            can_write=True,
        )
    ]
