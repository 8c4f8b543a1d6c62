"""Mixed precision: which tensors are kept and why; a budget goes to the largest error reduction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from squish_codecs.allocate.mixed import UNCHANGED, Mixed, allot
from squish_testing import expect_error

from squish_core.api import (
    AllocationTarget,
    CodecError,
    CodecSpec,
    EncodingOption,
    ModelFacts,
    SquishError,
    TensorSpec,
    dtypes,
)

RNG = np.random.default_rng(0)
NORMAL = RNG.normal(size=(64, 128)).astype(np.float32)
OUTLIER = NORMAL.copy()
OUTLIER[5, 7] = 60.0
HEADER = 100
"""Bytes of the target beside the tensors."""


class Target(AllocationTarget):
    """Stores every tensor with 2 to 8 bits per weight, each halving the error, or unchanged; small ones are exact."""

    def options(self, specs: Sequence[TensorSpec]) -> Mapping[str, Sequence[EncodingOption]]:
        return {
            spec.name: [
                EncodingOption(None, 4 * spec.elements, 0.0),
                *(
                    EncodingOption(short(f"int{bits}"), self.nbytes(spec, bits), self.error(spec, bits))
                    for bits in BITS
                ),
            ]
            for spec in specs
        }

    def size(self, choices: Mapping[str, CodecSpec | str]) -> int:
        elements = NORMAL.size
        return HEADER + sum(
            4 * elements if isinstance(choice, str) else elements * bits(choice) // 8 + padding(choice)
            for choice in choices.values()
        )

    def nbytes(self, spec: TensorSpec, bits: int) -> int:
        return spec.elements * bits // 8

    def error(self, spec: TensorSpec, bits: int) -> float:
        return 0.0 if spec.name == "coarse" else spec.elements * 4.0**-bits


BITS = (2, 3, 4, 8)


def padding(choice: CodecSpec) -> int:
    """Bytes that the target adds to a tensor: they depend on the choice."""
    return 40 * bits(choice)


def short(name: str) -> CodecSpec:
    if name not in ("int2", "int3", "int4", "int8"):
        raise SquishError("no such name")
    return CodecSpec("affine", {"bits": int(name[3:]), "group_size": 64, "offset": "bias"})


def choose(model: dict[str, np.ndarray], **params: object) -> dict[str, CodecSpec | str]:
    specs = [
        TensorSpec(name=name, shape=array.shape, dtype=dtypes.from_numpy(array.dtype)) for name, array in model.items()
    ]

    def values(spec: TensorSpec) -> Iterator[np.ndarray]:
        yield from np.array_split(model[spec.name], 3)

    return dict(Mixed().choose(specs, params, values, short, ModelFacts(tuple(model), target=Target())))


def bits(chosen: CodecSpec | str) -> int:
    assert isinstance(chosen, CodecSpec), chosen
    return int(chosen.params["bits"])


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight", "mlp.gate.weight",
        "token_embd.weight", "output.weight", "output_norm.weight", "blk.0.ffn_gate_inp.weight",
    ],
)  # fmt: skip
def test_sensitive_names_are_kept(name: str) -> None:
    assert "sensitive" in str(choose({name: NORMAL})[name])


@pytest.mark.parametrize("embedding", ["model.embed_tokens.weight", "token_embd.weight"])
@pytest.mark.parametrize("head", [None, "lm_head.weight", "output.weight"])
def test_a_budget_includes_embeddings_that_are_the_head(embedding: str, head: str | None) -> None:
    tensors = {embedding: NORMAL, "mlp.up_proj.weight": NORMAL, **({head: NORMAL} if head else {})}
    choices = choose(tensors, bpw=4.5)
    assert isinstance(choices[embedding], str) == (head is not None)
    assert "sensitive" in str(choose(tensors, bits=4)[embedding])


@pytest.mark.parametrize("name", ["mlp.gate_proj.weight", "blk.0.ffn_gate.weight", "blk.0.attn_output.weight"])
def test_projections_are_quantized(name: str) -> None:
    assert bits(choose({name: NORMAL})[name]) == 4


def test_outliers_and_super_weights_keep_a_tensor() -> None:
    ratio = float(np.abs(OUTLIER[5]).max() / np.abs(OUTLIER[5]).mean())
    assert f"{ratio:.0f} times" in str(choose({"w": OUTLIER})["w"])
    for limit in (0, 100):
        assert bits(choose({"w": OUTLIER}, outliers=limit)["w"]) == 4
    assert bits(choose({"w": NORMAL})["w"]) == 4


def test_vectors_and_integers_are_kept() -> None:
    choices = choose({"v": NORMAL[0], "i": np.ones((4, 64), np.int32)})
    assert "vector" in str(choices["v"])
    assert "i32" in str(choices["i"])


def test_bits_go_to_the_largest_error_reduction() -> None:
    model = {"coarse": NORMAL, "a": NORMAL, "b": 100 * NORMAL}
    for bpw in (3.0, 3.7, 4.5, 6.0, 9.0):
        choices = choose(model, bpw=bpw)
        assert bits(choices["coarse"]) == 2  # no error to reduce
        assert sum(map(bits, choices.values())) <= bpw * 3
    assert bits(choices["a"]) == bits(choices["b"]) == 8


def test_a_size_holds_for_the_whole_target_and_includes_embeddings_heads_and_unchanged_tensors() -> None:
    model = {"token_embd.weight": NORMAL, "output.weight": OUTLIER, "blk.0.ffn_up.weight": NORMAL}
    sizes = {}
    for size in (12_000, 12_345, 20_000, 60_000, 100_000, 200_000):
        choices = choose(model, size=f"{size}")
        sizes[size] = Target().size(choices)
        assert sizes[size] <= size
    assert sorted(sizes.values()) == list(sizes.values())
    assert set(choices.values()) == {UNCHANGED}


def test_a_size_that_cannot_be_reached_is_refused_with_the_least_one() -> None:
    with expect_error(CodecError, code="params", expected="size=2228 or more", found="size=2000"):
        choose({"w": NORMAL}, size="2kB")
    assert bits(choose({"w": NORMAL}, size=2228)["w"]) == 2


OPTIONS = st.lists(
    st.builds(EncodingOption, st.none(), st.integers(1, 30), st.integers(0, 40).map(float)), min_size=1, max_size=5
)


@given(st.dictionaries(st.sampled_from("abcd"), OPTIONS, min_size=1), st.integers(0, 120))
def test_no_allotment_is_better_by_more_than_the_one_upgrade_that_does_not_fit(
    options: dict[str, list[EncodingOption]], budget: int
) -> None:
    least = sum(min(each.nbytes for each in found) for found in options.values())
    chosen = allot(options, budget).values()
    assert sum(each.nbytes for each in chosen) <= max(budget, least)

    def best(room: int) -> float:
        fitting = (each for each in product(*options.values()) if sum(one.nbytes for one in each) <= max(room, least))
        return min(sum(one.error for one in each) for each in fitting)

    upgrade = max(max(each.nbytes for each in found) - min(each.nbytes for each in found) for found in options.values())
    assert best(budget) <= sum(each.error for each in chosen) <= best(budget - upgrade)


def test_an_impossible_budget_is_refused() -> None:
    with expect_error(CodecError, code="params", expected="2.00 bits per weight or more", found="bpw=1.5"):
        choose({"w": NORMAL}, bpw=1.5)


@pytest.mark.parametrize(
    "params",
    [
        {"bits": 9},
        {"bits": "many"},
        {"bpw": 4, "bits": 4},
        {"bpw": 4, "size": "1GB"},
        {"size": "big"},
        {"bpw": 0},
        {"outliers": -1},
        {"other": 1},
    ],
)
def test_invalid_parameters_are_refused(params: dict[str, object]) -> None:
    with pytest.raises(CodecError):
        choose({"w": NORMAL}, **params)


def test_a_target_without_short_names_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with expect_error(CodecError, code="params", found="int5"):
        choose({"w": NORMAL}, bits=5)
