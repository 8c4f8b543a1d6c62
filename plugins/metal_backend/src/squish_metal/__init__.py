"""Declares the Metal backend; imports no implementation and no MLX."""

from __future__ import annotations

from squish_core.api import BackendInfo, hookimpl


@hookimpl
def squish_backends() -> list[BackendInfo]:
    """Return the backend of this plugin."""
    return [
        BackendInfo(
            id="metal",
            title="Apple GPU, through MLX",
            factory="squish_metal.backend:Metal",
            preference=10,
            unverified="kernels and textures not yet tried on a Mac",
        )
    ]
