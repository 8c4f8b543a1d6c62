"""Mixed precision: which tensors are kept and why; bits go to the largest error reduction."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from squish_codecs.allocate.mixed import Mixed
from squish_codecs.api import Affine
from squish_testing import expect_error

from squish_core.api import CodecError, CodecSpec, ModelFacts, SquishError, TensorSpec, dtypes

RNG = np.random.default_rng(0)
NORMAL = RNG.normal(size=(64, 128)).astype(np.float32)
OUTLIER = NORMAL.copy()
OUTLIER[5, 7] = 60.0
COARSE = RNG.choice([-1.0, 1.0, 3.0, 5.0], size=(64, 128)).astype(np.float32)
"""Four values: two bits hold them exactly."""


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

    return dict(Mixed().choose(specs, params, values, short, ModelFacts(tuple(model))))


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
    model = {"coarse": COARSE, "a": NORMAL, "b": 100 * NORMAL}
    for bpw in (3.0, 3.7, 4.5, 6.0, 9.0):
        choices = choose(model, bpw=bpw, outliers=0)
        assert bits(choices["coarse"]) == 2  # no error to reduce
        taken = 0
        for name, codec in choices.items():
            assert isinstance(codec, CodecSpec)
            spec = TensorSpec(name=name, shape=model[name].shape, dtype="f32")
            taken += 8 * sum(dtypes.nbytes(*part) for part in Affine.from_params(codec.params).parts(spec).values())
        assert taken <= bpw * 3 * NORMAL.size
    assert bits(choices["a"]) == bits(choices["b"]) == 8  # errors are relative to each tensor's energy


def test_an_impossible_budget_is_refused() -> None:
    with expect_error(CodecError, code="params", expected="3.00 bits per weight or more", found="bpw=1.5"):
        choose({"w": NORMAL}, bpw=1.5)


@pytest.mark.parametrize(
    "params", [{"bits": 9}, {"bits": "many"}, {"bpw": 4, "bits": 4}, {"bpw": 0}, {"outliers": -1}, {"other": 1}]
)
def test_invalid_parameters_are_refused(params: dict[str, object]) -> None:
    with pytest.raises(CodecError):
        choose({"w": NORMAL}, **params)


def test_a_target_without_short_names_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with expect_error(CodecError, code="params", found="int5"):
        choose({"w": NORMAL}, bits=5)
