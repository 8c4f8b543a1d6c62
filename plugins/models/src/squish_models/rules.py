"""Rules for tensors that files fuse or stack differently from a family's rows."""

from __future__ import annotations

from collections.abc import Iterable

from squish_convert.api import Expression, Join, Permute, Rule, Stack, Transpose

from .tables import BLOCK, LAYER


def fused_attention(permute: bool) -> tuple[Rule, ...]:
    """`attn_qkv` of files with fused projections, which are only read.

    Source: llama.cpp, `--fuse-qkv` of its converter: rows of queries, keys and values, permuted before they are fused.

    Parameters
    ----------
    permute : bool
        Whether llama.cpp interleaves the rows of queries and keys within each head.

    Returns
    -------
    tuple of Rule
        For the weight and the bias.

    Examples
    --------
    >>> [rule.name for rule in fused_attention(permute=True)]
    ['blk.{n}.attn_qkv.weight', 'blk.{n}.attn_qkv.bias']
    """
    heads = ("num_attention_heads", "num_key_value_heads", None) if permute else (None, None, None)
    rules = []
    for suffix in (".weight", ".bias"):
        parts = []
        for letter, rows, number in zip("qkv", ("q_rows", "kv_rows", "kv_rows"), heads):
            module = f"{LAYER}self_attn.{letter}_proj{suffix}"
            parts.append((Permute(module, number) if number else module, rows))
        rules.append(Rule(f"{BLOCK}attn_qkv{suffix}", Join(tuple(parts)), reading=True))
    return tuple(rules)


def stacked_experts(module: str, stack: str, names: Iterable[tuple[str, str]], *, reading: bool) -> tuple[Rule, ...]:
    """Experts under one name each for gate, up and down.

    Parameters
    ----------
    module : str
        Module within a layer that has the experts.
    stack : str
        Module of the stacked experts in it, such as ``"switch_mlp"``.
    names : iterable of tuple
        (projection of the stack, an expert's projection).
    reading : bool
        Whether such tensors are only read.

    Returns
    -------
    tuple of Rule

    Examples
    --------
    >>> [rule] = stacked_experts("mlp", "switch_mlp", [("gate_proj", "gate_proj")], reading=False)
    >>> rule.name
    'model.layers.{n}.mlp.switch_mlp.gate_proj.weight'
    >>> rule.of
    Stack(of='model.layers.{n}.mlp.experts.{e}.gate_proj.weight')
    """
    return tuple(
        Rule(
            f"{LAYER}{module}.{stack}.{whole}.weight",
            Stack(f"{LAYER}{module}.experts.{{e}}.{single}.weight"),
            reading=reading,
        )
        for whole, single in names
    )


def fused_experts(
    module: str, gate: str, up: str, down: str, size: str, *, either_way: bool = False
) -> tuple[Rule, ...]:
    """Stacks without a suffix, as written by early versions of transformers 5: gate and up are fused.

    Source: llama.cpp, `modify_tensors` of `Qwen2MoeModel`.

    Parameters
    ----------
    module : str
        Module within a layer that has the experts.
    gate, up, down : str
        Projections of an expert.
    size : str
        Setting with the number of rows of gate and up.
    either_way : bool
        Whether files may have the matrices as [in, out], too, which their shape says.

    Returns
    -------
    tuple of Rule

    Examples
    --------
    >>> [rule.name for rule in fused_experts("mlp", "gate_proj", "up_proj", "down_proj", "moe_intermediate_size")]
    ['model.layers.{n}.mlp.experts.gate_up_proj', 'model.layers.{n}.mlp.experts.down_proj']
    """
    return tuple(
        Rule(
            f"{LAYER}{module}.experts.{name}",
            Stack(Transpose(matrix, by_shape=True) if either_way else matrix),
            reading=True,
        )
        for name, matrix in expert_matrices(module, gate, up, down, size).items()
    )


def expert_matrices(module: str, gate: str, up: str, down: str, size: str) -> dict[str, Expression]:
    """The matrices of an expert, of which gate and up are fused.

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
    dict
        Name of a stack -> one of its matrices.

    Examples
    --------
    >>> expert_matrices("mlp", "gate_proj", "up_proj", "down_proj", "moe_intermediate_size")["down_proj"]
    'model.layers.{n}.mlp.experts.{e}.down_proj.weight'
    """
    return {
        "gate_up_proj": _gate_up(module, gate, up, size),
        "down_proj": f"{LAYER}{module}.experts.{{e}}.{down}.weight",
    }


def fused_gguf_experts(module: str, gate: str, up: str, size: str) -> tuple[Rule, ...]:
    """`ffn_gate_up_exps` of files with fused experts: in each, the rows of the gate, then those of up.

    Parameters
    ----------
    module : str
        Module within a layer that has the experts.
    gate, up : str
        Projections of an expert.
    size : str
        Setting with the number of rows of gate and up.

    Returns
    -------
    tuple of Rule

    Examples
    --------
    >>> [rule.name for rule in fused_gguf_experts("mlp", "gate_proj", "up_proj", "moe_intermediate_size")]
    ['blk.{n}.ffn_gate_up_exps.weight']
    """
    return (Rule(f"{BLOCK}ffn_gate_up_exps.weight", Stack(_gate_up(module, gate, up, size)), reading=True),)


def _gate_up(module: str, gate: str, up: str, size: str) -> Join:
    """The rows of an expert's gate, then those of up."""
    expert = f"{LAYER}{module}.experts.{{e}}."
    return Join(((f"{expert}{gate}.weight", size), (f"{expert}{up}.weight", size)))
