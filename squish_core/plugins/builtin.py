"""The core's own codec, backend and scheduler, declared like a plugin's.

A module of its own, because a plugin is a module: the registry registers it like those of other distributions.
"""

from __future__ import annotations

from squish_core.plugins.hookspecs import BackendInfo, CodecInfo, SchedulerInfo, hookimpl


@hookimpl
def squish_codecs() -> list[CodecInfo]:
    """Return the dense codec, with its short names for `--encode`."""
    return [
        CodecInfo(
            id="dense",
            title="unencoded arrays",
            factory="squish_core.codecs.dense:Dense",
            lossless=True,
            aliases={name: f"dense:dtype={name}" for name in ("f64", "f32", "f16", "bf16", "f8_e4m3", "f8_e5m2")},
        ),
    ]


@hookimpl
def squish_backends() -> list[BackendInfo]:
    """Return the NumPy backend."""
    return [BackendInfo(id="numpy", title="NumPy on the CPU", factory="squish_core.backends.numpy:NumpyBackend")]


@hookimpl
def squish_schedulers() -> list[SchedulerInfo]:
    """Return the process pool."""
    return [
        SchedulerInfo(
            id="local", title="processes on this machine", factory="squish_core.schedulers.local:LocalScheduler"
        )
    ]
