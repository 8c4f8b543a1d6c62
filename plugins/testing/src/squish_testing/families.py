"""Test suite for model families: mapping round trips are exact, and every tensor is covered once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from squish_convert.arrays import in_memory
from squish_convert.convert import convert
from squish_convert.expressions import NegExp, Reshape, Tile, source_names
from squish_convert.families import CONFIG_FILE, GGUF, HF, LAYOUTS, Family, Model
from squish_convert.mapping.coverage import shape_of, sizes_at
from squish_convert.mapping.mapped import MappedFile, Naming, map_file, model_of, naming_of
from squish_convert.mapping.names import fill, members

from squish_core import dtypes
from squish_core.codes import ErrorCode
from squish_core.errors import UsageError
from squish_core.file import File
from squish_core.limits import DEFAULT
from squish_core.plugins.registry import registry

from .suite import Suite, parametrize
from .truth import refusal

Config = Mapping[str, Any]


def model_arrays(family: Family | str, config: Config, dtype: str = "bf16", seed: int = 0) -> dict[str, np.ndarray]:
    """Make seeded random weights for a `config.json`, under their Hugging Face names.

    Parameters
    ----------
    family
        The family of the model, or its id.
    config
        The content of its `config.json`.
    dtype
        Short id of the weights' dtype.
    seed
        The same seed gives the same weights.

    Returns
    -------
    dict of str to numpy.ndarray
        The tensors that the settings call for; tied and optional ones are left out.

    Examples
    --------
    >>> config = {
    ...     "model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
    ...     "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 32,
    ...     "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    ... }
    >>> model_arrays("llama", config)["model.embed_tokens.weight"].shape
    (32, 8)
    """
    if isinstance(family, str):
        return model_arrays(registry().implementation("family", family), config, dtype, seed)
    model = Model(
        name="tiny",
        layout=HF,
        meta={},
        assets={CONFIG_FILE: json.dumps(config).encode()},
        tensors={},
        vectors={},
        limits=DEFAULT,
    )
    settings = family.settings(model)
    sizes = {"layers": 0, "experts": 0, **family.sizes(settings)}
    counts = sizes_at(sizes, {})
    shapes = {tensor.name: tensor.shape for tensor in family.tensors}
    absent = family.absent(settings)
    generator = np.random.default_rng(seed)
    arrays = {}
    logarithms = _logarithms(family)
    for tensor in family.tensors:
        if family.is_tied(settings, tensor) or not tensor.required:
            continue
        layers = range(counts["layers"]) if "{n}" in tensor.name else [None]
        for layer in layers:
            shape = shape_of(tensor.name, shapes, counts if layer is None else sizes_at(sizes, {"n": layer}))
            for expert in range(counts["experts"] if "{e}" in tensor.name else 1):
                name = fill(tensor.name, {"n": layer or 0, "e": expert})
                if name not in absent:
                    values = np.asarray(generator.standard_normal(shape, np.float32))
                    values /= np.float32(np.sqrt(prod(shape[-1:])))
                    if tensor.name in logarithms:  # near 0, several have the same exponential
                        values += np.copysign(np.float32(0.25), values)
                    arrays[name] = dtypes.cast(values, dtype)
    if not any(not rule.reading for rule in family.names.get(HF, ())):
        return arrays
    with in_memory(arrays, assets=model.assets) as file:
        merged = map_file(file, HF, {}, Naming(layout=HF, family=family.id))
        return {name: merged[name].numpy() for name in merged}


def _logarithms(family: Family) -> set[str]:
    """Return the tensors that GGUF stores as negative exponentials."""
    found = set()
    for rule in family.names.get(GGUF, ()):
        expression = rule.of
        while isinstance(expression, Reshape | Tile):
            expression = expression.of
        found |= {*source_names(expression)} if isinstance(expression, NegExp) else set()
    return found


def write_model(
    folder: Path,
    family: Family | str,
    config: Config,
    *,
    dtype: str = "bf16",
    seed: int = 0,
    files: Mapping[str, bytes] | None = None,
) -> Path:
    """Write seeded random weights and files as a transformers model folder. Needs squish-safetensors.

    Parameters
    ----------
    folder
        A path that does not exist.
    family, config, dtype, seed
        As in `model_arrays`.
    files
        File name -> content, beside `config.json`.

    Returns
    -------
    pathlib.Path
        The folder.

    Examples
    --------
    >>> from pathlib import Path
    >>> config = {
    ...     "model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
    ...     "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 32,
    ...     "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    ... }
    >>> folder = write_model(Path("tiny"), "llama", config)
    >>> with squish.open(folder) as file:
    ...     len(file)
    11
    """
    arrays = model_arrays(family, config, dtype, seed)
    assets = {CONFIG_FILE: json.dumps(config, indent=2).encode(), **(files or {})}
    with in_memory(arrays, {"format": "pt"}, assets) as file:
        convert(file, folder, "safetensors:max_shard_size=1GB", rename="keep")
    return folder


DECISIVE = ("rope_theta", "rms_norm_eps", "rope_local_base_freq", "sliding_window", "tie_word_embeddings")
"""Settings that affect a model's output and have only one spelling."""


class FamilySuite(Suite):
    """Tests of a family. Override `configs` with the `config.json` of a small model for each variant."""

    kind = "family"
    family: str = ""
    layouts: ClassVar[tuple[str, ...]] = LAYOUTS

    def configs(self) -> Mapping[str, Config]:
        """Label -> config of a small model; at least one."""
        return {}

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Parametrize tests that take a config or a layout."""
        parametrize(metafunc, "config", self.configs())
        parametrize(metafunc, "layout", self.layouts)

    def implementation(self) -> Family:
        """Return the family under test."""
        return self.registry.implementation("family", self.family)

    def test_there_is_a_config(self) -> None:
        """Without a config, nothing is tested."""
        configs = self.configs()
        assert configs, f"configs() of {self.family} gives {len(configs)} models; give the config.json of at least one"

    def test_a_round_trip_is_exact(self, config: str, layout: str) -> None:
        """Mapping to a layout and back restores every name and value."""
        file = self._file(config)
        if (mapped := self._written(file, layout)) is None:
            return
        back = map_file(mapped, HF, {}, Naming(layout=GGUF if layout == GGUF else HF, family=self.family))
        assert set(back) == set(file), f"{config}: {sorted(set(back) ^ set(file))[:4]} differ through {layout}"
        for name in file:
            expected, actual = file[name].numpy(), back[name].numpy()
            assert actual.shape == expected.shape, f"{config}: {name} came back from {layout} as {actual.shape}"
            same = np.array_equal(actual.astype(np.float32), expected.astype(np.float32))
            assert same, f"{config}: {name} came back from {layout} with other values"

    def test_every_tensor_goes_to_one_place(self, config: str, layout: str) -> None:
        """The target uses every source tensor exactly once."""
        if (mapped := self._written(self._file(config), layout)) is None:
            return
        experts = mapped.mapped.setting.experts
        targets = [target for name, target in mapped.mapped.targets.items() if name not in mapped.carried.constants]
        uses = Counter(name for target in targets for name, _ in members(target.rule.of, target.numbers, experts))
        duplicates = [name for name, count in uses.items() if count > 1]
        assert not duplicates, f"{config}: {duplicates[:4]} are in several tensors of {layout}"
        lost = sorted(set(mapped.coverage.origins) - set(uses))
        assert not lost, f"{config}: {lost[:4]} are in no tensor of {layout}"

    def test_a_tensor_that_is_not_of_the_family_is_refused(self, config: str) -> None:
        """A map must not drop a tensor that it does not know."""
        name = "model.layers.0.squish_test_unknown.weight"
        file = self._file(config, {name: np.zeros((2, 2), np.float32)})
        error = refusal(lambda: self._mapped(file, GGUF), f"{config} with {name}")
        assert (error.code, error.tensor) == (ErrorCode.UNMAPPED, name), f"{config}: {error}"

    def test_a_missing_tensor_is_refused(self, config: str) -> None:
        """A map must not produce an incomplete model."""
        required = next(tensor.name for tensor in self.implementation().tensors if "{n}" in tensor.name)
        name = fill(required, {"n": 0, "e": 0})
        error = refusal(lambda: self._mapped(self._file(config, without=name), GGUF), f"{config} without {name}")
        assert (error.code, error.tensor) == (ErrorCode.UNMAPPED, name), f"{config}: {error}"

    def test_a_shape_that_contradicts_the_settings_is_refused(self, config: str) -> None:
        """The config of another model is detected before writing."""
        name = next(iter(model_arrays(self.implementation(), self.configs()[config])))
        file = self._file(config, {name: np.zeros((2, 2), np.float32)})
        error = refusal(lambda: self._mapped(file, GGUF), f"{config} with another {name}")
        assert (error.code, error.tensor) == (ErrorCode.CONTRADICTION, name), f"{config}: {error}"

    def test_settings_come_back_from_gguf(self, config: str) -> None:
        """A round trip through GGUF preserves the sizes and the settings that affect the output."""
        family, file = self.implementation(), self._file(config)
        before = family.settings(model_of(file, family, HF))
        after = family.settings(model_of(self._mapped(file, GGUF), family, GGUF))
        sizes = dict(family.sizes(before)), dict(family.sizes(after))
        assert sizes[0] == sizes[1], f"{config}: the sizes differ after GGUF"
        changed = [key for key in DECISIVE if key in before and after.get(key) != before[key]]
        assert not changed, f"{config}: after GGUF {changed[0]} is {after.get(changed[0])}, not {before[changed[0]]}"

    def _file(self, config: str, more: Mapping[str, np.ndarray] | None = None, without: str = "") -> File:
        arrays = {**model_arrays(self.implementation(), self.configs()[config]), **(more or {})}
        arrays.pop(without, None)
        assets = {CONFIG_FILE: json.dumps(self.configs()[config]).encode()}
        return in_memory(arrays, assets=assets, registry=self.registry)

    def _written(self, file: File, layout: str) -> MappedFile | None:
        """Map to a layout; None where its only engine does not have the family, which then refuses it."""
        try:
            return self._mapped(file, layout)
        except UsageError as error:
            if layout in (HF, GGUF) or error.code != ErrorCode.ENGINE:
                raise
            return None

    def _mapped(self, file: File, layout: str) -> MappedFile:
        naming = naming_of(file)
        assert naming.family == self.family, f"recognized as {naming.family!r} ({naming.reason})"
        return map_file(file, layout, {}, naming)
