"""Declares the compiled CPU backend; loads no library."""

from __future__ import annotations

from squish_core.api import BackendInfo, hookimpl


@hookimpl
def squish_backends() -> list[BackendInfo]:
    """The backend of this plugin."""
    return [
        BackendInfo(
            id="cpu", title="compiled kernels on the CPU", factory="squish_cpu.backend:CpuBackend", preference=10
        )
    ]
