"""Declares the ACME container, codec and backend; imports no implementation."""

from __future__ import annotations

from squish_core.api import BackendInfo, CodecInfo, ContainerInfo, Signature, hookimpl


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


@hookimpl
def squish_codecs() -> list[CodecInfo]:
    """The codec of this plugin."""
    return [CodecInfo(id="acme.rows", title="ACME int8 rows", factory="acme_format.codec:Rows")]


@hookimpl
def squish_backends() -> list[BackendInfo]:
    """The backend of this plugin; a low preference, so that it is used when it is named."""
    return [BackendInfo(id="acme.memory", title="f32 in memory", factory="acme_format.backend:Memory", preference=-1)]
