"""Hypothesis strategies: codecs with every layout of groups that their parameters admit, and shapes to go with them."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import assume
from hypothesis import strategies as st

import squish_core as squish
from squish_core.api import CodecError, CodecSpec, TensorSpec

Draw = st.DrawFn
Shape = tuple[int, ...]

ROWS = (1, 1, 1, 2, 3, 16, 17, 33)
COLUMNS = (1, 2, 7, 16, 31, 32, 32, 33, 64, 64, 96, 100, 128, 160, 256, 320, 512, 2080)
FLAT_GROUPS = (0, 1, 5, 8, 16, 24, 32, 48, 64, 64, 96, 128, 256, 1024, 2048, 1 << 20)
SCALES = ("f32", "f16", "bf16", "f8_e4m3", "f8_e5m2", "f8_e8m0")
WORD_BITS = {"u8": 8, "i8": 8, "u16": 16, "i16": 16, "u32": 32, "i32": 32, "u64": 64, "i64": 64}


class Layout(NamedTuple):
    """A codec with its parameters, and a tensor that it can hold."""

    codec: CodecSpec
    shape: Shape
    dtype: str = "f32"


def layouts() -> st.SearchStrategy[Layout]:
    """Any codec with groups, blocks or tiles, in any layout."""
    return st.one_of(
        affine(),
        affine(),
        palette(),
        squizd(),
        mx(),
        zt_mx(),
        float8(),
        hqq(),
        panels(),
        masked(),
        act_order(),
        blocks(),
    ).filter(admitted)


def admitted(layout: Layout) -> bool:
    """Whether the codec's own rules admit these parameters for this shape."""
    spec = TensorSpec(name="w", shape=layout.shape, dtype=layout.dtype)
    try:
        squish.registry().codec(layout.codec).parts(spec)
    except CodecError:
        return False
    return True


def divisors(size: int) -> list[int]:
    """Group sizes that divide an axis, and 0 for one group."""
    return [0, *(step for step in range(1, size + 1) if size % step == 0)]


@st.composite
def matrices(draw: Draw) -> Shape:
    """Shapes of matrices, those with one row or one column often; and of a few stacks."""
    rows, columns = draw(st.sampled_from(ROWS)), draw(st.sampled_from(COLUMNS))
    n_experts = draw(st.sampled_from((0, 0, 0, 1, 2)))
    return (n_experts, rows, columns) if n_experts else (rows, columns)


@st.composite
def packings(draw: Draw, bits: int) -> dict[str, Any]:
    """`word` and `order`: how codes of this width lie in words."""
    word = draw(st.sampled_from(tuple(WORD_BITS)))
    n_codes, spare = divmod(WORD_BITS[word], bits)
    orders: list[st.SearchStrategy[Any]] = [st.just("lsb"), st.just("lsb"), st.just("padded")]
    if not spare:
        orders.append(st.just("msb"))
        if n_codes <= 16:
            orders.append(st.permutations(range(n_codes)).map(list))
    if WORD_BITS[word] == 32 and bits in (3, 5, 6, 7):
        orders.append(st.just("planes"))
    return {"word": word, "order": draw(st.one_of(orders))}


@st.composite
def offsets(draw: Draw) -> dict[str, Any]:
    """No offset, zero points of any dtype or biases of any dtype."""
    kind = draw(st.sampled_from(("none", "zero_point", "bias")))
    if kind == "none":
        return {"zero": draw(st.sampled_from((0, 0, 1, 8, -70000)))}
    if kind == "bias":
        return {"offset": kind, "offset_dtype": draw(st.sampled_from(SCALES))}
    dtypes = ("packed", "u8", "i8", "u16", "i16", "u32", "i32", "f32", "f16", "bf16")
    return {"offset": kind, "offset_dtype": draw(st.sampled_from(dtypes)), "zero": draw(st.sampled_from((0, 1)))}


@st.composite
def affine(draw: Draw, bits: int | None = None) -> Layout:
    """`affine`: every axis, packing, offset and dtype."""
    bits = draw(st.integers(1, 8)) if bits is None else bits
    shape = draw(matrices())
    params: dict[str, Any] = {"bits": bits, "axis": draw(st.sampled_from(("flat", "flat", -1, -2)))}
    if params["axis"] == "flat":
        params["group_size"] = draw(st.sampled_from(FLAT_GROUPS))
    else:
        params["transposed"] = draw(st.booleans())
        params["pack_axis"] = draw(st.sampled_from((-1, -2)))
        along = params["axis"] if not params["transposed"] else -3 - params["axis"]
        params["group_size"] = draw(st.sampled_from(divisors(shape[along])))
    params |= {"signed": draw(st.booleans()), "scale_dtype": draw(st.sampled_from(SCALES))}
    if draw(st.booleans()):
        params |= draw(packings(bits))
    return Layout(CodecSpec("affine", {**params, **draw(offsets())}), shape)


@st.composite
def palette(draw: Draw) -> Layout:
    """`palette`: tables that are constant or stored, one or several, with scales of their own or without."""
    bits, shape = draw(st.sampled_from((1, 2, 3, 4, 4, 4, 5, 6, 7, 8))), draw(matrices())
    params: dict[str, Any] = {"bits": bits}
    if draw(st.booleans()):
        params |= draw(packings(bits))
    if bits == 4 and draw(st.booleans()):
        params["table"] = "nf4"
    else:
        params["codebook_dtype"] = draw(st.sampled_from(("f32", "f16", "bf16", "i8", "u8")))
    kind = draw(st.sampled_from(("whole", "groups", "flat", "nested", "books", "vectors")))
    if kind == "groups":
        params |= {
            "scale_dtype": draw(st.sampled_from(SCALES)),
            "group_size": draw(st.sampled_from(divisors(shape[-1]))),
        }
    elif kind in ("flat", "nested"):
        params |= {"axis": "flat", "scale_dtype": "f32", "group_size": draw(st.sampled_from(FLAT_GROUPS))}
        if kind == "nested":
            params["nested"] = draw(st.sampled_from((1, 4, 256)))
    elif kind == "books":
        params["codebook_size"] = draw(st.sampled_from((8, 16, 32, 64)))
    elif kind == "vectors":
        params |= {"vector": draw(st.sampled_from((2, 4))), "vector_axis": draw(st.sampled_from((-1, -2)))}
    return Layout(CodecSpec("palette", params), shape)


@st.composite
def squizd(draw: Draw) -> Layout:
    """SQUIZD INT4 and INT2: groups run on over the row-major order, the last one may be short."""
    name, shape = draw(st.sampled_from(("int4", "int2"))), draw(matrices())
    size = draw(st.sampled_from(FLAT_GROUPS))
    return Layout(CodecSpec(f"squizd.{name}", {"group_size": size} if size else {}), shape)


@st.composite
def mx(draw: Draw) -> Layout:
    """`mx`: blocks along rows."""
    params = {
        "element": draw(st.sampled_from(("f4_e2m1", "f8_e4m3", "f8_e5m2"))),
        "block_size": draw(st.sampled_from((16, 32))),
        "scale_dtype": draw(st.sampled_from(("f8_e8m0", "f8_e4m3"))),
        "global_scale": draw(st.sampled_from(("none", "multiply", "divide"))),
    }
    return Layout(CodecSpec("mx", params), draw(matrices()))


@st.composite
def zt_mx(draw: Draw) -> Layout:
    """`zt.mx`: blocks along any axis."""
    shape = draw(matrices())
    axis = draw(st.integers(0, len(shape) - 1))
    dtype = draw(st.sampled_from(("f4_e2m1", "f8_e4m3", "f8_e5m2", "i8")))
    assume(dtype != "f4_e2m1" or shape[-1] % 2 == 0)
    params = {"axis": axis, "dtype": dtype, "block_size": draw(st.sampled_from(divisors(shape[axis])[1:]))}
    return Layout(CodecSpec("zt.mx", params), shape)


@st.composite
def float8(draw: Draw) -> Layout:
    """`float8`: one scale, or one for each block of any size, those at the edges smaller."""
    sizes = st.sampled_from((0, 1, 5, 16, 32, 64, 128))
    params: dict[str, Any] = {"element": draw(st.sampled_from(("f8_e4m3", "f8_e5m2", "f8_e4m3fnuz", "f8_e5m2fnuz")))}
    if draw(st.booleans()):
        params |= {
            "block": [draw(sizes), draw(sizes)],
            "scale_dtype": draw(st.sampled_from(("f32", "bf16", "f8_e8m0"))),
        }
    return Layout(CodecSpec("float8", params), draw(matrices()))


@st.composite
def hqq(draw: Draw) -> Layout:
    """`hqq`: groups that are rows or columns of a matrix of their own."""
    shape = draw(matrices().filter(lambda shape: len(shape) == 2))
    size = draw(st.sampled_from((1, 8, 16, 32, 64, 128)))
    assume(shape[0] * shape[1] % size == 0)
    params = {"bits": draw(st.sampled_from((1, 2, 3, 4, 8))), "group_size": size, "axis": draw(st.sampled_from((0, 1)))}
    return Layout(CodecSpec("hqq", params), shape)


@st.composite
def panels(draw: Draw) -> Layout:
    """`panels`: groups of a multiple of 32 columns."""
    offset = draw(st.sampled_from(({}, {"offset": "bias"}, {"zero": 8}, {"signed": True})))
    size, n_groups = draw(st.sampled_from((32, 64, 96))), draw(st.sampled_from((1, 2, 3, 7)))
    scale = draw(st.sampled_from(("f32", "f16", "bf16")))
    params = {"group_size": size, "scale_dtype": scale, **offset}
    return Layout(CodecSpec("panels", params), (draw(st.sampled_from(ROWS)), size * n_groups))


@st.composite
def masked(draw: Draw) -> Layout:
    """`masked`: tiles of zeros over another codec's values."""
    inner = draw(st.one_of(affine(), palette(), squizd(), mx(), blocks()))
    params = {"block_size": draw(st.sampled_from((1, 4, 8, 32)))}
    return Layout(CodecSpec("masked", params, inner=inner.codec), inner.shape)


@st.composite
def act_order(draw: Draw) -> Layout:
    """`hf.act_order`: columns name their groups."""
    rows, columns = draw(st.sampled_from(ROWS)) * 8, draw(st.sampled_from((32, 64, 96, 128, 256)))
    params = {
        "bits": draw(st.sampled_from((2, 3, 4, 8))), "group_size": draw(st.sampled_from(divisors(columns))), "axis": -2,
        "transposed": True, "word": "i32", "offset": "zero_point", "offset_dtype": "packed", "scale_dtype": "f16",
    }  # fmt: skip
    return Layout(CodecSpec("hf.act_order", {}, inner=CodecSpec("affine", params)), (rows, columns))


@st.composite
def blocks(draw: Draw) -> Layout:
    """Codecs whose blocks have one size: GGML's, and those of UQFF."""
    sizes = {"ggml.q4_0": 32, "ggml.q4_1": 32, "ggml.q5_0": 32, "ggml.q5_1": 32, "ggml.q8_0": 32, "ggml.q4_k": 256,
             "ggml.q5_k": 256, "ggml.q6_k": 256, "uqff.f8q8": 32}  # fmt: skip
    codec = draw(st.sampled_from(tuple(sizes)))
    columns = sizes[codec] * draw(st.sampled_from((1, 2, 3, 9)))
    return Layout(CodecSpec(codec), (draw(st.sampled_from(ROWS)), columns))
