"""Float8 values with one scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from squish_core.api import Codec, CodecError, Params, Parts, Region, TensorSpec

if TYPE_CHECKING:
    import numpy as np

LARGEST = 448


class Float8(Codec):
    """`data * scale` in float32: `data` f8_e4m3 of the tensor's shape, `scale` f32 without axes.

    Source: uqff-formats, section 4.
    """

    def parts(self, spec: TensorSpec, params: Params) -> dict[str, tuple[str, tuple[int, ...]]]:
        return {"data": ("f8_e4m3", spec.shape), "scale": ("f32", ())}

    def grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        return (1,) * len(spec.shape)

    def encode_grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        return (None,) * len(spec.shape)  # one scale for all

    def params_for(self, spec: TensorSpec, params: Params) -> Params:
        if params:
            raise CodecError("float8 takes no parameters", found=", ".join(params), code="params")
        return params

    def encode(
        self, panel: np.ndarray, params: Params, *, stats: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """The largest magnitude becomes the largest value of the dtype; the nearest codes, ties to even."""
        import ml_dtypes
        import numpy as np

        largest = np.float32(max(panel.max(initial=0), -panel.min(initial=0)))
        if not np.isfinite(largest):
            raise CodecError("infinities and NaN have no scaled float8 form", code="values")
        scale = largest / np.float32(LARGEST) or np.float32(1)
        data = np.clip(panel / scale, -LARGEST, LARGEST).astype(ml_dtypes.float8_e4m3fn)
        return {"data": data, "scale": np.array(scale, np.float32)}

    def decode(self, parts: Parts, spec: TensorSpec, params: Params, *, region: Region, out: np.ndarray) -> None:
        import numpy as np

        # One multiplication for each of the 256 codes: the same products, and a table look-up for the rest.
        with np.errstate(over="ignore", invalid="ignore"):
            table = e4m3_values() * np.float32(parts["scale"][...])
        np.take(table, parts["data"][region].view(np.uint8), out=out, mode="clip")


def e4m3_values() -> np.ndarray:
    """The values of all 256 codes, f32 [256]."""
    import ml_dtypes
    import numpy as np

    return np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
