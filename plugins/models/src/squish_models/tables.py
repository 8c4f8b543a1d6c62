"""A family's tensors as rows of a table, and the tensors and rules for each row.

Source of the names: `tensor_mapping.py` of llama.cpp's gguf-py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attrs import evolve, frozen
from squish_convert.api import (
    Add,
    Cut,
    Expression,
    FamilyTensor,
    Int32,
    NegExp,
    Pad,
    Permute,
    Reshape,
    Rule,
    Scale,
    Stack,
    Tile,
    Transpose,
)

LAYER, BLOCK = "model.layers.{n}.", "blk.{n}."
SWITCH = ("gate_proj", "up_proj", "down_proj")
"""Projections of an expert, under the names of most families and mlx-lm."""


@frozen
class Row:
    """A weight of a family: its module in Hugging Face and in GGUF, within a layer unless it is `top`.

    `permute` names the number of heads whose rows llama.cpp interleaves, `add` is a constant that GGUF's weights have
    more. `f32`: GGUF's engine wants it in that type; `i32`: as whole numbers of 32 bits. `bias`: a bias may lie
    beside it; `biased`: one always does. With `{e}` in its name it is one of an expert, and GGUF stacks them. `kind`
    is the kind of the layers that have it, where there are several; with a tuple, they are of all these kinds.
    `tile`: GGUF has its heads in another order. `neg_exp`: Hugging Face has it as a logarithm. `scale` names the
    numbers that GGUF has multiplied its rows by. `gguf_shape`: its shape in GGUF, if it differs; with `either_shape`,
    files may have the other one. `transpose`: Hugging Face stores it as [in, out]. `pad` names the rows that it has
    in GGUF, where its first row is repeated; `cut` those that GGUF leaves out at its start. `layer` and `block`
    precede the names in a layer, `suffix` and `gguf_suffix` end the names of its weight.
    """

    hf: str
    gguf: str
    shape: tuple[str, ...]
    required: bool = True
    bias: bool = False
    biased: bool = False
    permute: str | None = None
    add: float | None = None
    f32: bool = False
    i32: bool = False
    top: bool = False
    tied_to: str | None = None
    kind: str | tuple[str, ...] = ""
    tile: Tile | None = None
    neg_exp: bool = False
    scale: str = ""
    gguf_shape: tuple[str, ...] = ()
    either_shape: bool = False
    pad: str = ""
    cut: str = ""
    transpose: bool = False
    layer: str = LAYER
    block: str = BLOCK
    suffix: str = ".weight"
    gguf_suffix: str = ".weight"

    def module(self, suffix: str) -> str:
        """The Hugging Face name."""
        return f"{'' if self.top else self.layer}{self.hf}{suffix}"

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that all layers with it have."""
        return (self.kind,) if self.kind and isinstance(self.kind, str) else tuple(self.kind)

    def sizes(self) -> Iterator[str]:
        """The sizes that its shapes and its order of heads refer to."""
        yield from (*self.shape, *self.gguf_shape, *filter(None, (self.pad, self.cut)))
        if self.tile is not None:
            parts = self.tile.parts
            yield from (self.tile.groups, *([parts] if isinstance(parts, str) else parts))
            yield from [self.tile.after] if self.tile.after else []

    def tensors(self) -> Iterator[FamilyTensor]:
        """The weight and its bias."""
        yield FamilyTensor(self.module(self.suffix), self.shape, self.required, self.tied_to, self.i32)
        if self.bias or self.biased:
            yield FamilyTensor(self.module(".bias"), self._outputs(), self.biased)

    def _outputs(self) -> tuple[str, ...]:
        """The shape of the bias: the rows of a matrix or of a stack of them, the channels of a convolution."""
        if self.transpose:
            return self.shape[-1:]
        convolves = bool(self.gguf_shape) or len(self.shape) > 3
        return self.shape[:1] if convolves else self.shape[:-1] or self.shape

    def rules(self) -> Iterator[Rule]:
        """The rules for GGUF."""
        name = f"{'' if self.top else self.block}{self.gguf}"
        vector = "f32" if self.f32 or len(self.shape) == 1 else None
        yield Rule(f"{name}{self.gguf_suffix}", self.expression(self.suffix), vector)
        if self.bias or self.biased:
            yield Rule(f"{name}.bias", self.expression(".bias"), "f32")

    def expression(self, suffix: str) -> Expression:
        """The GGUF tensor in terms of Hugging Face's."""
        expression: Expression = self.module(suffix)
        if self.permute is not None:
            expression = Permute(expression, self.permute)
        if self.add is not None and suffix == self.suffix:  # llama.cpp adds to the weights of norms, not to biases
            expression = Add(expression, self.add)
        if self.neg_exp:
            expression = NegExp(expression)
        if self.scale and suffix == self.suffix:
            expression = Scale(expression, self.scale)
        if self.i32:
            expression = Int32(expression)
        if self.tile is not None and (suffix == self.suffix or not self.tile.columns):
            expression = evolve(self.tile, of=expression)
        if self.pad:
            expression = Pad(expression, self.pad)
        if self.cut:
            expression = Cut(expression, self.cut)
        if self.gguf_shape and suffix == self.suffix:
            expression = Reshape(expression, self.gguf_shape, self.either_shape)
        if self.transpose and suffix == self.suffix:
            expression = Transpose(expression)
        return Stack(expression) if "{e}" in self.hf else expression


PREDICTING = "predicting"
"""The kind of the layers behind the last one, which predict more tokens."""


def norm(
    hf: str, gguf: str, *, top: bool = False, add: float | None = None, size: str = "hidden_size", biased: bool = False
) -> Row:
    """A vector of scales.

    Parameters
    ----------
    hf, gguf : str
        Module in Hugging Face, and its name in GGUF.
    top : bool
        Outside the layers.
    add : float, optional
        Constant that GGUF adds to the values; none by default.
    size : str
        Setting with the number of scales.
    biased : bool
        Whether a bias always lies beside it.

    Returns
    -------
    Row

    Examples
    --------
    >>> norm("input_layernorm", "attn_norm").module(".weight")
    'model.layers.{n}.input_layernorm.weight'
    """
    return Row(hf, gguf, (size,), add=add, top=top, biased=biased)


def head_norms(add: float | None = None) -> tuple[Row, Row]:
    """Norms of each head of queries and keys.

    Parameters
    ----------
    add : float, optional
        Constant that GGUF adds to the values; none by default.

    Returns
    -------
    tuple of Row
        Each with `head_dim` scales.

    Examples
    --------
    >>> [row.gguf for row in head_norms()]
    ['attn_q_norm', 'attn_k_norm']
    """
    return (
        norm("self_attn.q_norm", "attn_q_norm", size="head_dim", add=add),
        norm("self_attn.k_norm", "attn_k_norm", size="head_dim", add=add),
    )


def embeddings(add: float | None = None, *, biased: bool = False) -> tuple[Row, ...]:
    """Tensors outside the layers: embeddings, the last norm, and the head unless it is tied.

    Parameters
    ----------
    add : float, optional
        Constant that GGUF adds to the last norm; none by default.
    biased : bool
        Whether the last norm has a bias.

    Returns
    -------
    tuple of Row

    Examples
    --------
    >>> [row.gguf for row in embeddings()]
    ['token_embd', 'output_norm', 'output']
    """
    return (
        Row("model.embed_tokens", "token_embd", ("vocab_size", "hidden_size"), top=True),
        norm("model.norm", "output_norm", top=True, add=add, biased=biased),
        Row("lm_head", "output", ("vocab_size", "hidden_size"), tied_to="model.embed_tokens.weight", top=True),
    )


def pre_norm_model(attention: Iterable[Row], mlp: Iterable[Row], *, biased: bool = False) -> tuple[Row, ...]:
    """A model whose layers have one norm before attention and one before the MLP.

    Parameters
    ----------
    attention : iterable of Row
        Rows of the attention.
    mlp : iterable of Row
        Rows of the MLP, or of the router and the experts.
    biased : bool
        Whether the norms have biases.

    Returns
    -------
    tuple of Row

    Examples
    --------
    >>> len(pre_norm_model(attention(), gated_mlp()))
    12
    """
    return (
        *embeddings(biased=biased),
        norm("input_layernorm", "attn_norm", biased=biased),
        *attention,
        norm("post_attention_layernorm", "ffn_norm", biased=biased),
        *mlp,
    )


def attention(*, permute: bool = False, bias: bool = True, biased: bool = False) -> tuple[Row, ...]:
    """Separate projections of queries, keys and values, and the output.

    Parameters
    ----------
    permute : bool
        Whether llama.cpp interleaves the rows of queries and keys within each head.
    bias : bool
        Whether a bias may lie beside each projection.
    biased : bool
        Whether one always does.

    Returns
    -------
    tuple of Row

    Examples
    --------
    >>> [(row.gguf, row.permute) for row in attention(permute=True)][:3]
    [('attn_q', 'num_attention_heads'), ('attn_k', 'num_key_value_heads'), ('attn_v', None)]
    """
    heads, groups = ("num_attention_heads", "num_key_value_heads") if permute else (None, None)
    return (
        Row("self_attn.q_proj", "attn_q", ("q_rows", "hidden_size"), bias=bias, biased=biased, permute=heads),
        Row("self_attn.k_proj", "attn_k", ("kv_rows", "hidden_size"), bias=bias, biased=biased, permute=groups),
        Row("self_attn.v_proj", "attn_v", ("kv_rows", "hidden_size"), bias=bias, biased=biased),
        Row("self_attn.o_proj", "attn_output", ("hidden_size", "q_rows"), bias=bias, biased=biased),
    )


def prediction(add: float | None = None) -> tuple[Row, ...]:
    """What layers that predict more tokens have besides the tensors of any layer.

    Parameters
    ----------
    add : float, optional
        Constant that GGUF adds to the norms; none by default.

    Returns
    -------
    tuple of Row

    Examples
    --------
    >>> [row.gguf for row in prediction()][:2]
    ['nextn.eh_proj', 'nextn.enorm']
    """
    vocabulary = ("vocab_size", "hidden_size")
    rows = (
        Row("eh_proj", "nextn.eh_proj", ("hidden_size", "two_hidden")),
        norm("enorm", "nextn.enorm", add=add),
        norm("hnorm", "nextn.hnorm", add=add),
        norm("shared_head.norm", "nextn.shared_head_norm", add=add),
        Row("embed_tokens", "nextn.embed_tokens", vocabulary, required=False),
        Row("shared_head.head", "nextn.shared_head_head", vocabulary, required=False),
    )
    return tuple(evolve(row, kind=PREDICTING) for row in rows)


def gated_mlp(bias: bool = False) -> tuple[Row, ...]:
    """A gate, and projections up and down.

    Parameters
    ----------
    bias : bool
        Whether a bias may lie beside each projection.

    Returns
    -------
    tuple of Row

    Examples
    --------
    >>> [row.gguf for row in gated_mlp()]
    ['ffn_gate', 'ffn_up', 'ffn_down']
    """
    return (
        Row("mlp.gate_proj", "ffn_gate", ("intermediate_size", "hidden_size"), bias=bias),
        Row("mlp.up_proj", "ffn_up", ("intermediate_size", "hidden_size"), bias=bias),
        Row("mlp.down_proj", "ffn_down", ("hidden_size", "intermediate_size"), bias=bias),
    )


BASE_PREFIXES = {"model.": ""}
"""Prefixes of names in files of a model with a head, for families of `base_rows`."""


def base_rows(rows: Iterable[Row]) -> tuple[Row, ...]:
    """The rows of a model without a head, whose names in Hugging Face have no prefix.

    Parameters
    ----------
    rows : iterable of Row
        The rows of a model with one.

    Returns
    -------
    tuple of Row

    Examples
    --------
    >>> [row.module(".weight") for row in base_rows(gated_mlp())][:1]
    ['layers.{n}.mlp.gate_proj.weight']
    """
    return tuple(evolve(row, hf=row.hf.removeprefix("model."), layer=row.layer.removeprefix("model.")) for row in rows)


def fused_mlp() -> tuple[Row, ...]:
    """Gate and up in one projection, which GGUF calls up.

    Returns
    -------
    tuple of Row

    Examples
    --------
    >>> [(row.hf, row.gguf) for row in fused_mlp()]
    [('mlp.gate_up_proj', 'ffn_up'), ('mlp.down_proj', 'ffn_down')]
    """
    return (
        Row("mlp.gate_up_proj", "ffn_up", ("gate_up_rows", "hidden_size")),
        Row("mlp.down_proj", "ffn_down", ("hidden_size", "intermediate_size")),
    )


def router(module: str) -> Row:
    """The router, which chooses the experts of a token.

    Parameters
    ----------
    module : str
        Its module within a layer.

    Returns
    -------
    Row

    Examples
    --------
    >>> router("mlp.gate").gguf
    'ffn_gate_inp'
    """
    return Row(module, "ffn_gate_inp", ("experts", "hidden_size"), f32=True)


def experts(module: str, gate: str, up: str, down: str, size: str) -> tuple[Row, ...]:
    """The experts of a layer under the names of their projections.

    Parameters
    ----------
    module : str
        Module within a layer that has the experts.
    gate, up, down : str
        Projections of an expert.
    size : str
        Setting with the number of rows of gate and up.

    Returns
    -------
    tuple of Row

    Examples
    --------
    >>> gate, up, down = experts("mlp", *SWITCH, "moe_intermediate_size")
    >>> gate.hf, gate.gguf
    ('mlp.experts.{e}.gate_proj', 'ffn_gate_exps')
    """
    return (
        Row(f"{module}.experts.{{e}}.{gate}", "ffn_gate_exps", (size, "hidden_size")),
        Row(f"{module}.experts.{{e}}.{up}", "ffn_up_exps", (size, "hidden_size")),
        Row(f"{module}.experts.{{e}}.{down}", "ffn_down_exps", ("hidden_size", size)),
    )
