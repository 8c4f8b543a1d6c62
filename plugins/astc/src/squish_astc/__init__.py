"""Declares the ASTC codec; imports no implementation."""

from __future__ import annotations

from squish_core.api import CodecInfo, hookimpl


@hookimpl
def squish_codecs() -> list[CodecInfo]:
    """Return the codec of this plugin."""
    return [CodecInfo(id="astc", title="ASTC textures, one channel", factory="squish_astc.codec:Astc")]
