"""What `squish cache build` prints with `--json`.

Apart from the command, because only `squish schema` imports these classes.
"""

from __future__ import annotations

from attrs import frozen


@frozen
class Measured:
    """What a gate measured: mean KL divergence from the source, and the share of equal top tokens."""

    kl: float
    top1: float


@frozen
class CacheBuild:
    """A tier of a npy directory.

    Attributes
    ----------
    built, reused
        Numbers of tensors.
    size
        Bytes of the tier.
    savings_pct
        For 4-bit arrays, what they save relative to the INT8 ones, in percent.
    """

    file: str
    tier: str
    built: int
    reused: int
    size: int
    savings_pct: float | None
    gate: Measured | None
