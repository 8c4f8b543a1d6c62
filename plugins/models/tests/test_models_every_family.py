"""What does not fit a family is refused, in every family: the error names the tensor or the setting."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
from every_family import FAMILIES, Config, arrays_of, config_of, mapped, one_of_each, paths, replaced, setting
from squish_convert.arrays import in_memory
from squish_convert.mapping.mapped import map_file, naming_of

from squish_core.errors import SquishError
from squish_core.model import Typed

NAMES = ("model_type", "architectures", "torch_dtype", "dtype")
"""Settings that say which model it is and how it is stored."""
WRONG = ("x", {}, -1)
BEFORE_LANDING = (
    "llama", "gemma3", "gpt-oss", "deepseek2", "qwen35", "lfm2_moe", "falcon_h1", "gemma4", "gpt2", "bloom", "bert",
    "modernbert",
)  # fmt: skip
"""Families with tables, code, stacks, kinds of layers, turned and fused matrices, and no decoder: each part of maps."""
IN_TURN = [pytest.param(name, marks=() if name in BEFORE_LANDING else pytest.mark.fuzz) for name in FAMILIES]
"""`make fuzz` takes the other ones."""
Arrays = Mapping[str, np.ndarray]
Shapes = dict[str, tuple[int, ...]]


def unfit(values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """What may be wrong with a tensor, and such a tensor."""
    if values.ndim > 1 and values.shape[-1] != values.shape[-2] and 1 not in values.shape[-2:]:
        yield "transposed", np.ascontiguousarray(values.swapaxes(-1, -2))
    yield "longer", np.concatenate([values, values[:1]])
    yield "dtype", np.zeros(values.shape, np.int32)


@cache
def stored(family: str) -> tuple[dict[str, np.ndarray], dict[str, Typed]]:
    """The tensors and the keys of the small model's GGUF."""
    model = mapped(arrays_of(family), config_of(family))
    return {name: model[name].numpy() for name in model}, dict(model.index.meta)


def from_gguf(arrays: Arrays, meta: Mapping[str, Any]) -> None:
    """Map a GGUF to a folder."""
    file = in_memory(arrays, dict(meta))
    list(map_file(file, "hf", {}, naming_of(file)).index.tensors.values())


def test_a_gguf_whose_lists_give_a_size_to_no_layer_is_refused() -> None:
    arrays, meta = stored("nemotron_h")
    lists = {"nemotron_h.attention.head_count_kv", "nemotron_h.feed_forward_length"}
    one = {name: values for name, values in arrays.items() if name.startswith("blk.0.") or "blk." not in name}
    keys = {**meta, "nemotron_h.block_count": Typed("u32", 1), **{name: Typed("array:i32", [0]) for name in lists}}
    error = caught(lambda: from_gguf(one, keys))
    assert error is not None
    assert (error.code, error.part, error.found) == ("config", "config.json", "None")


def test_every_family_has_a_small_model() -> None:
    assert {name for name in FAMILIES if arrays_of(name)} == set(FAMILIES)


def check_misfits(arrays: Arrays, skipped: Collection[str], map_all: Callable[[Arrays], object]) -> None:
    """Assert that no tensor can be missing or changed, and that the error names it."""
    for name in [each for each in one_of_each(arrays) if each not in skipped]:
        missing = caught(lambda without=name: map_all({key: each for key, each in arrays.items() if key != without}))
        assert code_of(missing) in ("unmapped", "config", "contradiction"), f"{name} missing: {missing}"
        for wrong, values in unfit(arrays[name]):
            error = caught(lambda other={name: values}: map_all({**arrays, **other}))
            expected = ("dtype", "values") if wrong == "dtype" else ("contradiction", "unmapped")
            assert code_of(error) in expected, f"{name} {wrong}: {error}"
            if name != EMBEDDINGS:  # other tensors contradict these
                assert named(error, name), f"{name} {wrong}: {error}"


EMBEDDINGS = "token_embd.weight"


@pytest.mark.parametrize("family", IN_TURN)
def test_a_tensor_of_a_folder_that_does_not_fit_is_refused(family: str) -> None:
    check_misfits(arrays_of(family), (), lambda arrays: mapped(arrays, config_of(family)))


@pytest.mark.parametrize("family", IN_TURN)
def test_a_tensor_of_a_gguf_that_does_not_fit_is_refused(family: str) -> None:
    arrays, meta = stored(family)
    factors = {name for name in arrays if name.startswith("rope_f")}  # settings
    # the embeddings state the number of tokens; without a head, they are the head
    other = {"output.weight"} if "output.weight" in arrays else {EMBEDDINGS}
    check_misfits(arrays, factors | other, lambda changed: from_gguf(changed, meta))


def named(error: SquishError | None, tensor: str) -> bool:
    """Whether an error is about a tensor, and says what was expected and found."""
    return error is not None and error.tensor == tensor and None not in (error.expected, error.found)


def code_of(error: SquishError | None) -> str:
    """The code of an error; empty without one."""
    return error.code if error is not None else ""


def caught(action: Any) -> SquishError | None:
    """The error of an action, None if it has none."""
    try:
        action()
    except SquishError as error:
        return error
    return None


def facts(arrays: Arrays, config: Config) -> tuple[dict[str, Any], Shapes, dict[str, Any]]:
    """What a GGUF of the model states and stores."""
    model = mapped(arrays, config)
    keys = {key: np.asarray(each.value).tolist() for key, each in model.index.meta.items() if "squish." not in key}
    constants = {name: values.tolist() for name, values in model.carried.constants.items()}
    return keys, {name: spec.shape for name, spec in model.index.tensors.items()}, constants


@pytest.mark.parametrize("family", IN_TURN)
def test_a_setting_of_the_wrong_type_is_refused_or_not_read(family: str) -> None:
    arrays, config = arrays_of(family), config_of(family)
    before = facts(arrays, config)
    for path in paths(config):
        value = setting(config, path)
        for wrong in WRONG:
            if path[-1] in NAMES or (type(wrong) is type(value) and wrong != -1):
                continue
            models: list[Any] = []
            error = caught(
                lambda models=models, path=path, wrong=wrong: models.append(
                    facts(arrays, replaced(config, path, wrong))
                )
            )
            place = f"{'.'.join(path)} = {wrong!r}"
            assert models in ([], [before]), f"{place} makes another model"
            assert models or is_about(error, path), f"{place}: {error}"


def is_about(error: SquishError | None, path: tuple[str, ...]) -> bool:
    """Whether an error names a setting, the rotation that it is part of, or the first tensor that contradicts it."""
    words = (path[-1].lstrip("_"), *(path[-2:-1] if path[-1] in ("rope_type", "type") else ()), "rope_scaling")
    is_named = error is not None and (error.tensor is not None or any(word in str(error) for word in words))
    return is_named and code_of(error) != "plugin-bug"


def place_of(error: SquishError | None) -> str | None:
    """The tensor or the setting that an error names."""
    return None if error is None else error.tensor or error.part


def shapes_of(arrays: Arrays) -> Shapes:
    return {name: values.shape for name, values in arrays.items()}


def layers_of(family: str) -> Shapes:
    """The shapes without heads, which models may lack, and the factors of the rotation, which are settings."""
    shapes = shapes_of(stored(family)[0])
    return {name: shape for name, shape in shapes.items() if not name.startswith(("output.w", "cls.", "rope_f"))}


def tensors_tell(family: str, other: str) -> bool:
    """Whether GGUFs of both families have the same keys, so that the tensors say which one it is."""

    def keys(name: str) -> dict[str, Any]:
        named = stored(name)[1].items()
        return {key: each.value for key, each in named if not key.startswith(("squish.", "general.size"))}

    return keys(family) == keys(other)


@pytest.mark.parametrize("family", IN_TURN)
def test_the_tensors_of_another_family_are_refused(family: str) -> None:
    meta, config = stored(family)[1], config_of(family)
    for other in FAMILIES:
        if layers_of(other) != layers_of(family):
            error = caught(lambda: mapped(arrays_of(other), config))  # noqa: B023 - called at once
            assert place_of(error), f"a folder of {other}: {error}"
            if not tensors_tell(family, other):
                error = caught(lambda: from_gguf(stored(other)[0], meta))  # noqa: B023 - called at once
                assert place_of(error), f"a GGUF of {other}: {error}"
