"""Declares the CUDA backend; imports no implementation, no torch and no Triton."""

from __future__ import annotations

from squish_core.api import BackendInfo, hookimpl


@hookimpl
def squish_backends() -> list[BackendInfo]:
    """The backend of this plugin."""
    return [
        BackendInfo(
            id="cuda",
            title="NVIDIA GPU, through Triton",
            factory="squish_cuda.backend:Cuda",
            preference=10,
            unverified="not yet run on a GPU: kernels run in Triton's interpreter, and compile for sm_80 to sm_120",
        )
    ]
