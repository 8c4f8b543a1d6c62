"""The core's own codecs, backend and scheduler, declared like a plugin's."""

from __future__ import annotations

from squish_core.plugins.hookspecs import BackendInfo, CodecInfo, SchedulerInfo, hookimpl


@hookimpl
def squish_codecs() -> list[CodecInfo]:
    """The dense codec with its short names for `--encode`, and those that permute, cut, stack,
    interleave and transpose."""
    return [
        CodecInfo(
            id="dense",
            title="unencoded arrays",
            factory="squish_core.codecs.dense:Dense",
            lossless=True,
            aliases={name: f"dense:dtype={name}" for name in ("f64", "f32", "f16", "bf16", "f8_e4m3", "f8_e5m2")},
        ),
        CodecInfo(
            id="deinterleave", title="rows that alternate with those of others in a tensor of another codec",
            factory="squish_core.codecs.interleave:Deinterleave", lossless=True,
        ),
        CodecInfo(
            id="interleave", title="tensors of another codec whose rows alternate",
            factory="squish_core.codecs.interleave:Interleave", lossless=True,
        ),
        CodecInfo(
            id="heads", title="another codec with the rows of each head permuted",
            factory="squish_core.codecs.heads:Heads", lossless=True,
        ),
        CodecInfo(
            id="slice", title="rows of a tensor of another codec, or one tensor of a stack",
            factory="squish_core.codecs.slice:Slice", lossless=True,
        ),
        CodecInfo(
            id="stack", title="tensors of another codec, stacked along a new first axis",
            factory="squish_core.codecs.stack:Stack", lossless=True,
        ),
        CodecInfo(
            id="transpose", title="another codec with the last two axes swapped",
            factory="squish_core.codecs.transpose:Transpose", lossless=True,
        ),
    ]  # fmt: skip


@hookimpl
def squish_backends() -> list[BackendInfo]:
    """The NumPy backend."""
    return [BackendInfo(id="numpy", title="NumPy on the CPU", factory="squish_core.backends.numpy:NumpyBackend")]


@hookimpl
def squish_schedulers() -> list[SchedulerInfo]:
    """The process pool."""
    return [
        SchedulerInfo(
            id="local", title="processes on this machine", factory="squish_core.schedulers.local:LocalScheduler"
        )
    ]
