"""Plugins are found, kept apart, and never take each other down."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import toys
from squish_convert.compatible import encoder_for
from squish_convert.rules import expand
from squish_testing import expect_error

import squish_core as squish
from squish_core import api
from squish_core.errors import ConflictError, MissingPluginError, SquishError
from squish_core.plugins.registry import Registry


def point(name: str, load: Any, dist: str | None = None) -> Any:
    """An entry point of a distribution that loads what `load` gives, or raises it."""

    def loaded() -> Any:
        if isinstance(load, BaseException):
            raise load
        return load

    return SimpleNamespace(
        name=name, value=name, load=loaded, dist=SimpleNamespace(name=dist or f"dist-{name}", version="1.2")
    )


def good(format_id: str = "acme.good") -> Any:
    return toys.plugin(squish_containers=[toys.container_info(format_id)])


def failing() -> Any:
    def raising() -> Any:
        raise RuntimeError("boom")

    return toys.plugin(squish_codecs=raising)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (ImportError("no module named gone"), "no module named gone"),
        (SyntaxError("bad"), "bad"),
        (toys.plugin(squish_containers=["a string"]), "must return ContainerInfo, not str"),
        (toys.plugin(squish_containers=None), "NoneType"),
        (toys.plugin(squish_containers=7), "int"),
        (failing(), "boom"),
        (SimpleNamespace(__name__="old", SQUISH_API=99), "SQUISH_API 1"),
        (toys.plugin(squish_nonsense=[]), "squish_nonsense"),
    ],
    ids=["import", "syntax", "wrong type", "none", "not iterable", "raises", "api version", "unknown hook"],
)
def test_a_broken_plugin_is_one_record_and_the_others_work(broken: Any, reason: str) -> None:
    registry = toys.registry(points=[point("bad", broken), point("good", good())])
    assert [(record.dist, record.name) for record in registry.broken] == [("dist-bad", "bad")]
    assert reason in registry.broken[0].reason
    assert registry.containers["acme.good"].dist == "dist-good"


def test_a_plugin_that_fails_half_way_leaves_nothing_behind() -> None:
    half = toys.plugin(squish_containers=[toys.container_info("acme.half")], squish_codecs=["bad"])
    registry = toys.registry(points=[point("half", half)])
    assert "acme.half" not in registry.containers


def test_a_broken_plugin_is_named_by_the_error_it_explains() -> None:
    registry = toys.registry(points=[point("gguf", ImportError("no numpy"), "squish-gguf")])
    with expect_error(MissingPluginError, code="not-installed"):
        registry.container("gguf")


@pytest.mark.parametrize("chosen", ["dist-a", "dist-b"])
def test_prefer_settles_a_conflict(chosen: str) -> None:
    points = [point("a", good()), point("b", good())]
    assert toys.registry(points=points, prefer={"acme.good": chosen}).containers["acme.good"].dist == chosen
    assert toys.registry(points=points, plugins=f"acme.good={chosen}").containers["acme.good"].dist == chosen


def test_the_same_id_twice_in_one_distribution_is_refused() -> None:
    points = [point("one", good(), "acme"), point("two", good(), "acme")]
    registry = toys.registry(points=points)
    assert [(record.name, "twice" in record.reason) for record in registry.broken] == [("two", True)]


def test_one_distribution_may_bring_several_plugins() -> None:
    registry = toys.registry(points=[point("one", good("acme.a"), "acme"), point("two", good("acme.b"), "acme")])
    assert not registry.broken
    assert {registry.containers[name].dist for name in ("acme.a", "acme.b")} == {"acme"}


def test_a_refused_plugin_brings_nothing_at_all() -> None:
    registry = toys.registry(good())
    both = toys.plugin("other", squish_containers=[toys.container_info("acme.new"), toys.container_info("acme.good")])
    with pytest.raises(ConflictError):
        registry.register(both)
    assert "acme.new" not in registry.containers


@pytest.mark.parametrize(
    ("settings", "ids"),
    [
        ("-a", {"acme.b"}), ("-dist-a", {"acme.b"}), ("+a", {"acme.a"}), ("+dist-a,+b", {"acme.a", "acme.b"}),
        ("+acme.a", {"acme.a"}), ("+acme.a,+b", {"acme.a", "acme.b"}),
        (" -a , -b ", set()), ("+a,-a", set()), ("", {"acme.a", "acme.b"}),
    ],
)  # fmt: skip
def test_settings_allow_and_block(settings: str, ids: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    points = [point("a", good("acme.a")), point("b", good("acme.b"))]
    registry = Registry(plugins=settings, entry_points=lambda: points)
    assert set(registry.containers) == ids
    monkeypatch.setenv("SQUISH_PLUGINS", settings)
    assert set(Registry(entry_points=lambda: points).containers) == ids


@pytest.mark.parametrize("settings", ["+a,+bb", "-bb", "acme.a=bb"])
def test_settings_that_match_no_plugin_warn_and_list_the_installed_ones(settings: str) -> None:
    points = [point("a", good("acme.a"))]
    with pytest.warns(UserWarning, match="no plugin is called bb; installed: dist-a, squish-core"):
        registry = Registry(plugins=settings, entry_points=lambda: points)
    assert repr(registry).startswith("<Registry plugins=2 containers=1 codecs=1 backends=1 encoders=")


def test_settings_that_cannot_be_read_say_how_to_write_them() -> None:
    with expect_error(ConflictError, code="settings", found="'gguf'", hint="+name"):
        Registry(plugins="gguf")


def test_plugins_register_in_the_process() -> None:
    registry = toys.registry()
    registry.register(good())
    assert type(registry.container("acme.good")).__name__ == "Box"
    assert registry.container("acme.good").id == "acme.good"
    assert registry.container("acme.good") is registry.container("acme.good")


def test_a_plugin_that_is_refused_in_the_process_can_be_mended_and_registered() -> None:
    registry = toys.registry()
    with pytest.raises(TypeError):
        registry.register(toys.plugin("mine", squish_containers=["bad"]))
    registry.register(toys.plugin("mine", squish_containers=[toys.container_info("acme.good")]))
    assert "acme.good" in registry.containers


def test_find_filters_by_declared_fields() -> None:
    registry = toys.registry()
    assert [entry.info.id for entry in registry.find("codec", lossless=True)] == [
        "deinterleave",
        "dense",
        "heads",
        "interleave",
        "lora",
        "scale",
        "slice",
        "stack",
        "toy.xor",
        "transpose",
    ]
    assert [entry.info.id for entry in registry.find("codec", kind="bytes")] == ["toy.xor"]
    assert registry.find("encoder", id="none") == []
    with expect_error(SquishError, code="kind", found="'plugin'"):
        registry.find("plugin")
    with expect_error(SquishError, code="fact", found="lossles"):
        registry.find("codec", lossles=True)


@pytest.mark.parametrize(
    ("format_id", "installed", "install"),
    [("toy.box", True, None), ("gguf", False, "pip install squish-gguf"), ("nobody", False, None)],
)
def test_needs_says_what_to_install(format_id: str, installed: bool, install: str | None) -> None:
    need, *others = toys.registry().needs(format_id)
    assert [other.dist for other in others] == (["squish-ggml"] if format_id == "gguf" else [])
    assert (need.id, need.installed, need.install) == (format_id, installed, install)
    json.dumps(need.to_dict())


def test_needs_lists_the_codecs_that_a_format_declares_and_that_are_absent() -> None:
    info = toys.container_info("acme.box", codecs=("dense", "ggml.q4_k"))
    own, codec = toys.registry(toys.plugin("acme", squish_containers=[info])).needs("acme.box")
    assert (own.installed, codec.id, codec.kind, codec.dist) == (True, "ggml.q4_k", "codec", "squish-ggml")


@pytest.mark.parametrize("kind", ["container", "codec_type", "byte_codec", "backend"])
def test_no_lookup_raises_key_error(kind: str) -> None:
    with pytest.raises(MissingPluginError) as caught:
        getattr(toys.registry(), kind)("nobody.has")
    assert caught.value.hint


@pytest.mark.parametrize("factory", ["toys:Gone", "gone_module:X", "toys:Unimportable", "toys"])
def test_an_implementation_that_fails_to_load_is_a_typed_error(factory: str) -> None:
    info = api.ContainerInfo(id="acme.x", title="x", factory=factory)
    registry = toys.registry(toys.plugin("acme-plugin", squish_containers=[info]))
    with expect_error(MissingPluginError, code="import", hint="acme-plugin"):
        registry.container("acme.x")


def test_entries_are_json() -> None:
    registry = toys.registry()
    for table in (registry.containers, registry.codecs, registry.backends):
        json.dumps([entry.to_dict() for entry in table.values()])


_QUESTIONS = {
    "registry": "import squish_core; k = squish_core.registry()\n"
    "for t in (k.containers, k.codecs, k.backends): list(t.values())\nk.find('codec'); k.needs('gguf')",
    "import": "import squish_core, squish_core.api",
}


def imported(code: str) -> set[str]:
    """Modules that a fresh process holds after running `code`."""
    script = f"import sys\n{code}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_listing_plugins_imports_no_implementation() -> None:
    modules = imported(_QUESTIONS["registry"])
    registry = Registry()
    entries = [entry for table in (registry.containers, registry.codecs, registry.backends) for entry in table.values()]
    implementations = {entry.info.factory.partition(":")[0] for entry in entries}
    assert not modules & {"numpy", "zstandard", "cbor2", "ml_dtypes", "squish_core.file", *implementations}


def test_importing_the_package_imports_almost_nothing() -> None:
    modules = imported(_QUESTIONS["import"])
    assert not modules & {"attr", "attrs", "pluggy", "numpy", "squish_core.model"}


def test_a_codec_that_an_installed_package_lacks_is_not_an_install_hint() -> None:
    """`pip install` of what is there already would not help."""
    declared = [api.CodecInfo(id="ggml.q8_0", title="", factory="x:Y")]
    reg = Registry(entry_points=list)
    reg.register(SimpleNamespace(squish_codecs=api.hookimpl(lambda: declared)), dist="squish-ggml")
    with expect_error(MissingPluginError, code="not-installed"):
        reg.codec_type("ggml.iq2_xxs")


def test_another_distributions_encoder_is_used_or_else_the_codecs_own() -> None:
    declared = [
        api.EncoderInfo(id="dense", title="works", factory="toys:Shifted", aliases={"shifted": "dense"}),
        api.EncoderInfo(id="toy.rows", title="cannot be imported", factory="toys:Unimportable"),
    ]
    registry = toys.registry(toys.plugin(squish_encoders=declared))
    assert type(registry.encoder(api.CodecSpec("dense"))).__name__ == "Shifted"
    matrix, vector = (api.TensorSpec(name="w", shape=shape, dtype="f32") for shape in ((2, 3), (3,)))
    assert encoder_for(registry, api.CodecSpec("dense"), matrix).__name__ == "Shifted"
    assert encoder_for(registry, api.CodecSpec("dense"), vector) is registry.codec_type("dense")
    assert registry.encoder(api.CodecSpec("toy.rows")) is registry.codec(api.CodecSpec("toy.rows"))
    assert expand(api.CodecSpec("shifted"), "toy.box", registry).id == "dense"


def test_entries_are_found_by_singular_or_plural_and_have_a_short_repr() -> None:
    registry = toys.registry()
    (entry,) = registry.find("backends", id="numpy")
    assert registry.find("backend", id="numpy") == [entry]
    assert entry.id == "numpy"
    assert repr(entry).startswith("<Backend 'numpy' of squish-core")


def test_what_was_found_once_is_found_again_until_a_plugin_registers() -> None:
    registry = toys.registry()
    first = registry.find("containers", can_write=True)
    first.clear()  # the caller's own list
    assert [entry.id for entry in registry.find("containers", can_write=True)] == ["toy.box"]
    assert registry.find("containers", suffixes=[".acme"]) == []  # a list has no hash
    for _ in range(2):
        with expect_error(SquishError, code="fact", found="1"):
            registry.find("containers", can_write=1)
    registry.register(toys.plugin("mine", squish_containers=[toys.container_info("acme.new", suffixes=(".acme",))]))
    assert [entry.id for entry in registry.find("containers", suffixes=[".acme"])] == ["acme.new"]
    assert [entry.id for entry in registry.find("containers")] == ["acme.new", "toy.box"]


def test_a_table_of_plugins_stays_as_it_was_when_another_registers() -> None:
    registry = toys.registry()
    containers = registry.containers
    entries = iter(containers.items())
    registry.register(good())
    assert [name for name, _ in entries] == list(containers) == ["toy.box"]
    assert list(registry.containers) == ["toy.box", "acme.good"]


def test_lookups_in_other_threads_go_on_while_plugins_register() -> None:
    registry, done, errors = toys.registry(), threading.Event(), list[BaseException]()
    box = toys.box({"w": np.ones((2, 4), np.float32)})

    def look_up() -> None:
        try:
            while not done.is_set():
                entries = registry.find("containers")
                assert [entry.id for entry in entries] == sorted(entry.id for entry in entries)
                assert {entry.id for entry in entries} >= {"toy.box"}
                assert squish.open(box, registry=registry)["w"].numpy().sum() == 8
                assert all(registry.instance("container", entry) for entry in registry.containers.values())
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=look_up) for _ in range(3)]
    try:
        for thread in threads:
            thread.start()
        for number in range(300):
            info = toys.container_info(f"acme.{number}", api.Signature(b"ACME%d" % number))
            registry.register(toys.plugin(f"acme-{number}", squish_containers=[info]))
    finally:
        done.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert not errors
    assert len(registry.find("containers")) == 301


def test_opening_a_file_of_floats_imports_no_numpy_and_no_other_format(tmp_path: Path) -> None:
    path = tmp_path / "floats.safetensors"
    squish.save(path, {"w": np.ones((2, 64), "f4")})
    modules = imported(f"import squish_core as squish\nwith squish.open({str(path)!r}) as file: list(file)")
    others = {"squish_hf.writer", "squish_mlx.writer", "squish_uqff.write.writer", "squish_uqff.read.model"}
    assert "squish_uqff.container" in modules  # it was asked
    assert not modules & {"numpy", "regex", "squish_codecs.api", *others}


def test_a_codec_is_made_once_for_equal_parameters() -> None:
    registry = toys.registry()

    def codec(**params: object) -> object:
        return registry.codec(api.CodecSpec("toy.rows", params))

    assert codec(a=1, b=[2]) is codec(a=1, b=[2])
    assert len({id(codec(a=value)) for value in (1, 1.0, True, "1")}) == 4
    assert codec(a=object()) is not codec(a=object())  # no plain data: not kept
    first = codec(a=0)
    for number in range(1100):
        codec(a=number)
    assert len(registry._codec_cache) <= 1024
    assert codec(a=0) is not first


def test_a_codec_that_wraps_none_is_refused_an_inner_one() -> None:
    with expect_error(api.CodecError, code="wrap"):
        toys.registry().codec(api.CodecSpec("toy.rows", inner=api.CodecSpec("toy.rows")))
