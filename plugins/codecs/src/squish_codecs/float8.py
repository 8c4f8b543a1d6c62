"""Float8 values with one scale, or one per block of a matrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from squish_core.api import Codec, CodecError, ErrorCode, Params, Parts, Region, TensorSpec, dtypes

FLOAT8_DTYPES = ("f8_e4m3", "f8_e5m2", "f8_e4m3fnuz", "f8_e5m2fnuz")
FLOAT8_SCALES = ("f32", "bf16", "f16", "f8_e8m0")


class Float8(Codec):
    """`data * scale` in float32: `data` has the tensor's shape, `scale` is converted to float32 first. Parameters:

    block        none     none: one scalar scale; [rows, columns]: one per block of the last two axes, smaller at the
                          edges; 0 means the whole axis ([1, 0]: one per row)
    element      f8_e4m3  f8_e4m3 f8_e5m2 f8_e4m3fnuz f8_e5m2fnuz
    scale_dtype  f32      f32 bf16 f16 f8_e8m0

    Sources: uqff-formats, section 4; DeepSeek, compressed-tensors and ModelOpt checkpoints.
    """

    def parts(self, spec: TensorSpec, params: Params) -> dict[str, tuple[str, tuple[int, ...]]]:
        element, scale, block = _check_params(params)
        if block is None:
            return {"data": (element, spec.shape), "scale": (scale, ())}
        if len(spec.shape) < 2:
            raise CodecError("blocks need a matrix", found=f"shape {list(spec.shape)}", code="shape")
        grid = (-(-size // step) if step else 1 for size, step in zip(spec.shape[-2:], block))
        return {"data": (element, spec.shape), "scale": (scale, (*spec.shape[:-2], *grid))}

    def grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        return (1,) * len(spec.shape)

    def encode_grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        return (None,) * len(spec.shape)  # one scale per tensor

    def params_for(self, spec: TensorSpec, params: Params) -> Params:
        if _check_params(params)[1:] != ("f32", None):
            raise CodecError(
                "the float8 encoder supports only one f32 scale", found=repr(dict(params))[:80], code=ErrorCode.PARAMS
            )
        return params

    def encode(
        self, panel: np.ndarray, params: Params, *, activations: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """Map the largest magnitude to the largest value of the dtype; round to nearest, ties to even."""
        element = _check_params(params)[0]
        values = float8_table(element)
        most = values[np.isfinite(values)].max()
        largest = np.float32(max(panel.max(initial=0), -panel.min(initial=0)))
        if not np.isfinite(largest):
            raise CodecError("float8 cannot encode infinity and NaN with a scale", code=ErrorCode.RANGE)
        scale = largest / most or np.float32(1)
        data = np.clip(panel / scale, -most, most).astype(dtypes.to_numpy(element))
        return {"data": data, "scale": np.array(scale, np.float32)}

    def decode(self, parts: Parts, spec: TensorSpec, params: Params, *, region: Region, out: np.ndarray) -> None:
        element, _, block = _check_params(params)
        table, codes = float8_table(element), parts["data"][region].view(np.uint8)
        with np.errstate(all="ignore"):
            if block is None:
                # Scale the table of 256 values instead of every element.
                np.take(table * parts["scale"][...].astype(np.float32), codes, out=out, mode="clip")
            else:
                np.take(table, codes, out=out, mode="clip")
                # A block beyond the edge is the whole axis; sizes come from the file and may be huge.
                down, across = (0 if step >= size else step for step, size in zip(block, spec.shape[-2:]))
                _multiply(out, parts["scale"], region, (down, across))


def _multiply(out: np.ndarray, scale: Any, region: Region, block: tuple[int, int]) -> None:
    """Multiply a region by its block scales, one row of blocks at a time."""
    (*lead, rows, columns), (down, across) = region, block
    cells = [
        slice(along.start // step, -(-along.stop // step)) if step else slice(0, 1)
        for along, step in ((rows, down), (columns, across))
    ]
    wide = scale[(*lead, *cells)].astype(np.float32)
    if across:
        first = columns.start % across
        wide = np.repeat(wide, across, axis=-1)[..., first : first + out.shape[-1]]
    if down in (0, 1):
        out *= wide
        return
    for number in range(wide.shape[-2]):
        start = (cells[0].start + number) * down - rows.start
        out[..., max(start, 0) : start + down, :] *= wide[..., number : number + 1, :]


def _check_params(params: Params) -> tuple[str, str, tuple[int, int] | None]:
    """Return element, scale dtype and block; CodecError if a parameter is invalid."""
    element, scale = params.get("element", "f8_e4m3"), params.get("scale_dtype", "f32")
    block = params.get("block")
    sizes = isinstance(block, (list, tuple)) and len(block) == 2 and all(type(n) is int and n >= 0 for n in block)
    rules = [
        (element in FLOAT8_DTYPES, "element", FLOAT8_DTYPES), (scale in FLOAT8_SCALES, "scale_dtype", FLOAT8_SCALES),
        (block is None or sizes, "block", ("[rows, columns]",)),
        (set(params) <= {"element", "scale_dtype", "block"}, "parameter", ("element", "scale_dtype", "block")),
    ]  # fmt: skip
    for holds, name, legal in rules:
        if not holds:
            found = repr(dict(params))[:80]
            raise CodecError(f"invalid float8 {name}", expected=" or ".join(legal), found=found, code=ErrorCode.PARAMS)
    return element, scale, None if block is None else (block[0], block[1])


def float8_table(element: str) -> np.ndarray:
    """Return the values of all 256 codes of a float8 type.

    Parameters
    ----------
    element : str
        The dtype, such as ``"f8_e4m3"``.

    Returns
    -------
    numpy.ndarray
        f32 [256].
    """
    return np.arange(256, dtype=np.uint8).view(dtypes.to_numpy(element)).astype(np.float32)
