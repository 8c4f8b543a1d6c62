"""What `dir()`, `__all__` and the documentation say of the public names agrees."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import squish_core as squish
from squish_core import api
from squish_core.dtypes import NAMES, DType

API = Path(api.__file__)


@pytest.mark.parametrize("module", [squish, api], ids=["squish_core", "api"])
def test_dir_lists_the_public_names(module: object) -> None:
    assert dir(module) == sorted(module.__all__)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", squish.__all__)
def test_every_public_name_loads_and_is_documented(name: str) -> None:
    value = getattr(squish, name)
    assert name == "__version__" or value.__doc__


def test_the_api_declares_every_name_to_type_checkers() -> None:
    declared = {
        alias.asname
        for node in ast.walk(ast.parse(API.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }
    assert declared == set(api.__all__)


@pytest.mark.parametrize("backwards", [False, True])
def test_no_submodule_takes_the_place_of_a_public_name(backwards: bool) -> None:
    """Importing a submodule binds its name in the package, over a function of that name."""
    names = [info.name for info in pkgutil.walk_packages(squish.__path__, "squish_core.")]
    names = [name for name in names if not name.endswith("__main__")]
    code = (
        "import importlib, sys, types\n"
        f"for name in {sorted(names, reverse=backwards)!r}: importlib.import_module(name)\n"
        "import squish_core\n"
        "taken = [n for n in squish_core.__all__ if isinstance(getattr(squish_core, n), types.ModuleType)]\n"
        "assert not taken, taken"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("module", "old", "new"), [("squish_core", "stream", "iter_layers"), ("squish_core.api", "Refused", "Refusal")]
)
def test_an_old_name_works_with_a_warning(module: str, old: str, new: str) -> None:
    home = importlib.import_module(module)
    with pytest.warns(DeprecationWarning, match=f"is now {new}"):
        assert getattr(home, old) is getattr(home, new)


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[squish.File]:
    squish.save(tmp_path / "saved.safetensors", {"w": np.arange(64, dtype="f4").reshape(2, 32)})
    with squish.open(tmp_path / "saved.safetensors") as file:
        yield file


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (lambda file: file.file(0), lambda file: file.source_for(0)),
        (lambda file: file.originals(), lambda file: file.without_caches()),
        (lambda file: file["w"].readable(), lambda file: file["w"].bound.encoding),
        (
            lambda file: {role: array.part for role, array in file["w"].arrays(file["w"].bound.encoding).items()},
            lambda file: dict(file["w"].bound.encoding.parts),
        ),
    ],
    ids=["File.file", "File.originals", "Tensor.readable", "Tensor.arrays"],
)
def test_an_old_method_works_with_a_warning(
    saved: squish.File, old: Callable[[squish.File], object], new: Callable[[squish.File], object]
) -> None:
    with pytest.warns(DeprecationWarning, match="is now"):
        value = old(saved)
    assert value == new(saved)


def test_a_family_with_an_old_attribute_works_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="other_modalities"):
        family = type("OldFamily", (api.Family,), {"beside": ("visual.*",)})
    assert family.other_modalities == ("visual.*",)


class OldBackend(api.Backend):
    """A backend as the guide described it before requests held the codec."""

    id = "old"

    def probe(self) -> api.Availability:
        return api.Availability(ok=True)

    def offer(self, request: api.Request) -> api.Offer | api.Refusal:
        encoding = request.encoding
        with pytest.warns(DeprecationWarning, match="Request.codec"):
            registry = request.registry
        with pytest.warns(DeprecationWarning, match="Request.op"):
            ops = (request.use.op,)
        assert registry.missing(encoding) is None
        assert registry.codec(encoding.codec) is request.codec
        with pytest.warns(DeprecationWarning, match="storage="):
            offer = api.Offer(backend=self.id, encoding=encoding, mode="fold", ops=ops, layout="decoded")
        with pytest.warns(DeprecationWarning, match=r"Offer\.storage"):
            assert offer.layout == offer.storage == "decoded"
        return offer

    def load(self, chain: api.Chain, parts: api.Parts, registry: api.Registry) -> object:  # type: ignore[override]
        array = np.empty(chain.spec.shape, "f4")
        registry.codec(chain.chosen.encoding.codec).decode(
            parts, chain.spec, {}, region=api.full(array.shape), out=array
        )
        return array

    def linear(self, handle: np.ndarray, x: np.ndarray) -> np.ndarray:
        return x @ handle.T


class OldPlugin:
    @staticmethod
    @api.hookimpl
    def squish_backends() -> list[api.BackendInfo]:
        return [api.BackendInfo(id="old", title="Old", factory="test_surface:OldBackend")]


def test_a_backend_with_the_old_signatures_works_with_warnings(
    saved: squish.File, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "test_surface", sys.modules[__name__])
    registry = squish.Registry(extra=[OldPlugin()], entry_points=tuple)
    file = squish.File(saved.source, saved.index, registry, saved.limits)
    with pytest.warns(DeprecationWarning, match=r"load\(chain, parts, registry\) is now load\(chain, bound\)"):
        weight = file["w"].load("old")
    assert weight.linear(np.ones(32, "f4")).tolist() == [sum(range(32)), sum(range(32, 64))]


def test_a_sink_copies_a_stored_array_with_a_warning(saved: squish.File, tmp_path: Path) -> None:
    target = tmp_path / "copied"
    with api.atomic_file(target) as sink, pytest.warns(DeprecationWarning, match=r"Sink.copy\(\*run\)"):
        sink.copy(saved["w"].bound.parts["data"])
    assert target.read_bytes() == np.arange(64, dtype="f4").tobytes()


def test_a_request_by_its_old_arguments_works_with_warnings(saved: squish.File) -> None:
    spec = saved["w"].spec
    encoding = spec.encodings[0]
    with pytest.warns(DeprecationWarning, match=r"Request\(op="), pytest.warns(DeprecationWarning, match="codec="):
        request = api.Request(spec=spec, encoding=encoding, use=api.Use(op="embed"), registry=saved.registry)
    assert request == api.Request(spec=spec, encoding=encoding, codec=saved.registry.codec("dense"), op="embed")


def test_codes_by_their_old_arguments_work_with_a_warning() -> None:
    codes = np.arange(64, dtype=np.uint8).reshape(2, 32) % 16
    arrays = {"shape": (2, 32), "group": (1, 32), "scale": np.ones((2, 1), "f2"), "unpack": lambda: codes}
    with pytest.warns(DeprecationWarning, match="layout="):
        old = api.Codes(bits=4, signed=False, offset=np.ones((2, 1), "f4"), offset_kind="zero_point", **arrays)
    assert old.layout == api.CodeLayout(
        bits=4, group=(1, 32), scale_dtype="f16", offset_kind="zero_point", offset_dtype="f32"
    )
    np.testing.assert_array_equal(old.values, codes)
    with pytest.raises(TypeError, match="layout="):
        api.Codes(**arrays)


def test_a_file_by_its_old_argument_works_with_a_warning(saved: squish.File) -> None:
    with pytest.warns(DeprecationWarning, match=r"File\(registry=\)"):
        file = squish.File(saved.source, saved.index, known=saved.registry, limits=saved.limits)
    np.testing.assert_array_equal(file["w"].numpy(), saved["w"].numpy())
    with pytest.raises(TypeError, match="registry="):
        squish.File(saved.source, saved.index)


def test_the_old_record_of_an_operation_still_works() -> None:
    assert api.Use(op="embed").op == "embed"


@pytest.mark.parametrize("name", sorted(api._RENAMED))
def test_an_old_name_of_the_plugin_interface_works_with_a_warning(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"is now {api._RENAMED[name]}"):
        assert getattr(api, name) is getattr(api, api._RENAMED[name])


@pytest.mark.parametrize("base", [api.Codec, api.ByteCodec, api.Container])
def test_an_old_name_of_a_method_works_with_a_warning(base: type[api.Codec]) -> None:
    for old, new in base.renamed.items():
        with pytest.warns(DeprecationWarning, match=f"Plugin.{old} is now {new}"):
            plugin = type("Plugin", (base,), {old: lambda self: "overridden"})()
        assert getattr(plugin, new)() == "overridden"
        plugin = base()
        with pytest.warns(DeprecationWarning, match=f"{base.__name__}.{old} is now {new}"):
            assert getattr(plugin, old) == getattr(plugin, new)


@pytest.mark.parametrize("with_statistics", [True, False])
def test_a_codec_with_the_old_argument_stats_still_encodes(with_statistics: bool) -> None:
    with pytest.warns(DeprecationWarning, match=r"Old\.encode\(stats=\) is now encode\(activations=\)"):
        old: Any = type("Old", (api.Codec,), {"encode": lambda self, panel, params, *, stats=None: {"stats": stats}})
    activations = np.ones(3, np.float32) if with_statistics else None
    stats = type("Newer", (old,), {})().encode(None, {}, activations=activations)["stats"]  # without a second warning
    assert stats["activations"] is activations if with_statistics else stats is None


class OldEncoder:
    """An encoder with the signature before `activations=`."""

    def encode(self, panel: np.ndarray, params: api.Params, *, stats: Any = None) -> dict[str, np.ndarray]:
        return {"mean": stats["activations"]}


def test_an_encoder_with_the_old_argument_stats_still_encodes() -> None:
    class Plugin:
        @staticmethod
        @api.hookimpl
        def squish_encoders() -> list[api.EncoderInfo]:
            return [api.EncoderInfo(id="old.rows", title="Old", factory=f"{__name__}:OldEncoder")]

    registry = squish.Registry(extra=[Plugin()], entry_points=tuple)
    with pytest.warns(DeprecationWarning, match=r"OldEncoder\.encode"):
        encoder = registry.encoder(api.CodecSpec("old.rows"))
    activations = np.ones(3, np.float32)
    assert encoder.encode(np.ones((1, 3)), {}, activations=activations)["mean"] is activations


@pytest.mark.parametrize("name", NAMES)
def test_numpy_gets_the_right_dtype_or_fails(name: str) -> None:
    dtype = DType(name)
    assert dtype == name
    assert hash(dtype) == hash(name)
    assert f"{dtype}" == str(dtype) == name
    if dtype.bits % 8:
        with pytest.raises(TypeError, match="packed"):
            np.empty(2, dtype)  # type: ignore[call-overload]
    else:
        array = np.empty(2, dtype)  # type: ignore[call-overload]
        assert array.dtype == dtype.dtype
        assert array.itemsize == dtype.itemsize == dtype.bits // 8


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (squish.UsageError, ValueError),
        (squish.MissingFileError, FileNotFoundError),
        (squish.FileAccessError, OSError),
        (squish.WriteError, OSError),
        (squish.RangeError, IndexError),
    ],
)
def test_errors_are_the_builtin_ones_too(error: type[squish.SquishError], builtin: type[Exception]) -> None:
    assert issubclass(error, builtin)
    assert issubclass(error, squish.SquishError)


@pytest.mark.parametrize(
    "instance", [api.Sink(None, None, None), api.open_source(b""), squish.Registry(entry_points=tuple)]
)
def test_old_attribute_names_work_with_a_warning(
    instance: api.Sink | api.Source | api.Registry,
) -> None:
    for old, new in instance.renamed.items():
        with pytest.warns(DeprecationWarning, match=f"{old} is now {new}"):
            assert getattr(instance, old) == getattr(instance, new)


def test_a_policy_among_the_codecs_is_an_allocator_with_a_warning() -> None:
    class Plugin:
        @staticmethod
        @api.hookimpl
        def squish_codecs() -> list[api.CodecInfo]:
            return [api.CodecInfo(id="old.policy", title="Old", factory="old:Policy", kind="policy")]

    with pytest.warns(DeprecationWarning, match="is now AllocatorInfo"):
        registry = squish.Registry(extra=[Plugin()], entry_points=tuple)
    assert "old.policy" in registry.allocators
    assert "old.policy" not in registry.codecs


def test_the_old_names_of_the_extremes_work_with_a_warning(saved: squish.File) -> None:
    statistics = saved["w"].statistics()
    with pytest.warns(DeprecationWarning, match="is now Statistics.min"):
        assert statistics.least == statistics.min == 0
    with pytest.warns(DeprecationWarning, match="is now Statistics.max"):
        assert statistics.greatest == statistics.max == 63
