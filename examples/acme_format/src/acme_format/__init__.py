"""Declares what ACME brings to Squish; imports no implementation."""

from __future__ import annotations

from squish_core.api import BackendInfo, CodecInfo, ContainerInfo, Signature, hookimpl


@hookimpl
def squish_containers() -> list[ContainerInfo]:
    """The containers of this plugin: formats, and refinements of them."""
    return [
        ContainerInfo(
            id="acme.foo",
            title="ACME foo",
            factory="acme_format.container:Foo",
            suffixes=(".acme",),
            signatures=(Signature(b"ACME"),),
            can_write=True,
        ),
        ContainerInfo(
            id="acme.pairs", title="ACME foo with int8 rows", factory="acme_format.pairs:Pairs", refines="acme.foo"
        ),
    ]


@hookimpl
def squish_codecs() -> list[CodecInfo]:
    """The codecs of this plugin, for tensors and for bytes."""
    return [
        CodecInfo(id="acme.rows", title="ACME int8 rows", factory="acme_format.codec:Rows"),
        CodecInfo(
            id="acme.runs", title="ACME run lengths", factory="acme_format.runs:Runs", kind="bytes", lossless=True
        ),
    ]


@hookimpl
def squish_backends() -> list[BackendInfo]:
    """The backend of this plugin; a low preference, so that it is used when it is named."""
    return [BackendInfo(id="acme.memory", title="f32 in memory", factory="acme_format.backend:Memory", preference=-1)]
