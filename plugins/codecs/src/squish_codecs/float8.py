"""Float8 values with one scale, or one per block of a matrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from squish_core.api import Codec, CodecError, ErrorCode, Params, Parts, Region, TensorSpec, dtypes

from .affine.encode import step_of

FLOAT8_DTYPES = ("f8_e4m3", "f8_e5m2", "f8_e4m3fnuz", "f8_e5m2fnuz")
FLOAT8_SCALES = ("f32", "bf16", "f16", "f8_e8m0")


class Float8(Codec):
    """`data * scale` in float32: `data` has the tensor's shape, `scale` is converted to float32 first. Parameters:

    block        none     none: one scalar scale; [rows, columns]: one per block of the last two axes, smaller at the
                          edges; 0 means the whole axis ([1, 0]: one per row); in a specification 128x128, 1x0
    element      f8_e4m3  f8_e4m3 f8_e5m2 f8_e4m3fnuz f8_e5m2fnuz
    scale_dtype  f32      f32 bf16 f16 f8_e8m0

    Sources: uqff-formats, section 4; DeepSeek, compressed-tensors and ModelOpt checkpoints.
    """

    def bind(self) -> None:
        self.form = _check_params(self.params)  # element, scale dtype and block

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        element, scale, block = self.form
        if block is None:
            return {"data": (element, spec.shape), "scale": (scale, ())}
        if len(spec.shape) < 2:
            raise CodecError("blocks need a matrix", found=f"shape {list(spec.shape)}", code="shape")
        grid = (-(-size // step) if step else 1 for size, step in zip(spec.shape[-2:], block))
        return {"data": (element, spec.shape), "scale": (scale, (*spec.shape[:-2], *grid))}

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        return (1,) * len(spec.shape)

    def encode_grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        block = self.form[2]
        if block is None:
            return (None,) * len(spec.shape)  # one scale per tensor
        return (*(1,) * (len(spec.shape) - 2), block[0] or None, None)

    @classmethod
    def params_for(cls, spec: TensorSpec, options: Params) -> Params:
        text = options.get("block")
        if isinstance(text, str):
            rows, _, columns = text.partition("x")
            sizes = [int(size) if size.isdecimal() else -1 for size in (rows, columns)]
            options = {**options, "block": sizes}
        _check_params(options)
        return options

    def encode(self, panel: np.ndarray, *, activations: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Map the largest magnitude of each block to the largest value of the dtype; round to nearest, ties to even.

        Scales are rounded up to their dtype, so that no value is clipped.
        """
        element, scale_dtype, block = self.form
        values = float8_table(element)
        most = values[np.isfinite(values)].max()
        if block is None:
            largest = np.array(max(panel.max(initial=0), -panel.min(initial=0)), np.float32)
        else:
            largest = _largest(panel, block)
        if not np.isfinite(largest).all():
            raise CodecError("float8 cannot encode infinity and NaN with a scale", code=ErrorCode.RANGE)
        scale = _scales(largest / most, scale_dtype)
        steps = scale.astype(np.float32)
        if block is not None:
            for axis, step in zip((-2, -1), block):
                size = panel.shape[axis]
                steps = np.repeat(steps, min(step or size, size), axis=axis)[..., : panel.shape[-2], : panel.shape[-1]]
        data = np.clip(panel / steps, -most, most).astype(dtypes.to_numpy(element))
        return {"data": data, "scale": scale}

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        element, _, block = self.form
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


def _largest(panel: np.ndarray, block: tuple[int, int]) -> np.ndarray:
    """Return the largest magnitude of each block of the last two axes, in float32."""
    largest = np.abs(panel.astype(np.float32, copy=False))
    for axis, step in zip((-2, -1), block):
        size = panel.shape[axis]
        if size:
            largest = np.maximum.reduceat(largest, np.arange(0, size, step or size), axis=axis)
    return largest


def _scales(ideal: np.ndarray, dtype: str) -> np.ndarray:
    """Round scales up to their dtype; 0 becomes 1."""
    if dtype == "f8_e8m0":
        powers = np.exp2(np.ceil(np.log2(np.where(ideal > 0, ideal, np.float32(1)))))
        return np.asarray(np.maximum(powers, np.float32(2**-126)).astype(dtypes.to_numpy(dtype)))
    return np.asarray(step_of(ideal, dtype))


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

    Source for E4M3 and E5M2: OCP 8-bit Floating Point 1.0.

    Parameters
    ----------
    element : str
        The dtype, such as ``"f8_e4m3"``.

    Returns
    -------
    numpy.ndarray
        f32 [256].

    Examples
    --------
    >>> table = float8_table("f8_e4m3")
    >>> table.shape, float(table[0x38]), float(table[0x7E])
    ((256,), 1.0, 448.0)
    """
    return np.arange(256, dtype=np.uint8).view(dtypes.to_numpy(element)).astype(np.float32)
