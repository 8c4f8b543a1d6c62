"""Two distributions that bring one id: what uses the id is refused, everything else works."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import toys
from attrs import evolve
from squish_cli import main
from toys import brings, installed

import squish_core as squish
from squish_core import api
from squish_core.errors import ConflictError, SquishError
from squish_core.plugins import registry as registry_module
from squish_core.plugins.registry import Registry

VALUES = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
BOX = toys.box({"dense": VALUES, "rows": toys.rows(VALUES)})
ROWS = api.CodecInfo(id="toy.rows", title="rows", factory="toys:Rows")
OTHER_BOX = toys.container_info("toy.box", api.Signature(b"OTHER"), suffixes=(".other",), can_write=True)


def refused(call: Any) -> ConflictError:
    with pytest.raises(ConflictError) as caught:
        call()
    assert caught.value.code == "conflict"
    return caught.value


def test_the_error_names_all_who_bring_the_id_and_how_to_choose() -> None:
    registry = installed(a=brings(codecs=[ROWS]), b=brings(codecs=[ROWS]))
    error = refused(lambda: registry.codec_type("toy.rows"))
    assert error.found == "dist-toys, dist-a, dist-b"
    assert "SQUISH_PLUGINS=toy.rows=dist-toys" in str(error.hint)
    assert [(each.kind, each.id, each.dists) for each in registry.conflicts] == [
        ("codec", "toy.rows", ("dist-toys", "dist-a", "dist-b"))
    ]


@pytest.mark.parametrize("kind", ["container", "codec", "backend", "encoder"])
def test_a_conflicting_id_of_any_kind_is_refused_where_it_is_used(kind: str) -> None:
    plugin_id = "toy.rows" if kind == "encoder" else "acme.x"  # an encoder is one of a codec that is there
    info = registry_module.INFOS[kind](id=plugin_id, title="x", factory="toys:Rows")
    registry = installed(a=brings(**{f"{kind}s": [info]}), b=brings(**{f"{kind}s": [info]}))
    name: Any = api.CodecSpec(plugin_id) if kind in ("codec", "encoder") else plugin_id
    refused(lambda: getattr(registry, kind)(name))


def test_the_other_ids_of_a_plugin_in_conflict_stay_usable() -> None:
    own = api.CodecInfo(id="acme.own", title="own", factory="toys:Shifted")
    registry = installed(a=brings(codecs=[ROWS, own]))
    assert registry.codec_type("acme.own").id == "acme.own"
    assert not registry.broken


def test_settings_choose_among_any_number() -> None:
    modules = {name: brings(codecs=[ROWS]) for name in "abc"}
    assert len(installed(**modules).conflicts) == 1
    registry = installed("toy.rows=dist-b", **modules)
    assert (registry.conflicts, registry.codecs["toy.rows"].dist) == ((), "dist-b")


def test_the_message_about_a_tensor_of_a_codec_in_conflict_names_who_brings_it() -> None:
    registry = installed(a=brings(codecs=[ROWS]))
    with squish.open(BOX, registry=registry) as file:
        assert np.array_equal(file["dense"].numpy(), VALUES)
        with pytest.raises(SquishError) as caught:
            file["rows"].numpy()
        assert caught.value.code == "conflict"
        assert "dist-toys" in caught.value.message
        assert file["rows"].parts()["codes"].nbytes == VALUES.size
        with pytest.raises(SquishError):
            file["rows"].load()


def test_a_backend_in_conflict_leaves_the_others() -> None:
    backend = api.BackendInfo(id="acme.fast", title="fast", factory="toys:Rows", preference=99)
    registry = installed(a=brings(backends=[backend]), b=brings(backends=[backend]))
    with squish.open(BOX, registry=registry) as file:
        chain = file["dense"].plan()
    assert chain.chosen.backend == "numpy"
    assert [(each.backend, each.code) for each in chain.refused if each.backend == "acme.fast"] == [
        ("acme.fast", "conflict")
    ]


@pytest.mark.parametrize("start", [b"TOYB", b"OTHER"])
def test_a_file_of_a_format_in_conflict_is_refused_whichever_of_both_it_is(start: bytes) -> None:
    registry = installed(a=brings(containers=[OTHER_BOX]))
    assert refused(lambda: squish.open(start + bytes(99), registry=registry)).file == "<bytes>"
    refused(lambda: squish.open(BOX, "toy.box", registry=registry))


def test_files_of_other_formats_open_beside_a_format_in_conflict() -> None:
    third = toys.container_info("toy.third", api.Signature(b"TOYBTHIRD"))
    registry = installed(a=brings(containers=[OTHER_BOX, third]))
    with pytest.raises(SquishError) as caught:
        squish.open(b"TOYBTHIRD" + bytes(99), registry=registry)
    assert caught.value.code != "conflict"


class Marked(toys.Named):  # type: ignore[misc]
    """A refinement of boxes whose metadata have the mark."""

    def refine(self, index: Any, source: Any, limits: Any, options: Any) -> Any:
        return evolve(index, format="toy.marked") if "mark" in index.meta else None


def test_a_refinement_in_conflict_stops_the_files_that_declare_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toys, "Marked", Marked, raising=False)
    info = api.ContainerInfo(id="toy.marked", title="marked", factory="toys:Marked", refines="toy.box")
    blind = evolve(info, factory="toys:Named")
    registry = installed(a=brings(containers=[info]), b=brings(containers=[info]))
    with squish.open(BOX, registry=registry) as file:
        assert file.format == "toy.box"
    marked = toys.box({"w": VALUES}, {"mark": "yes"})
    refused(lambda: squish.open(marked, registry=registry))
    refused(lambda: squish.open(BOX, "toy.marked", registry=registry))
    refused(lambda: squish.open(BOX, registry=installed(a=brings(containers=[info]), b=brings(containers=[blind]))))


def test_a_file_compressed_by_a_codec_in_conflict_is_refused() -> None:
    codecs = [
        api.CodecInfo(id="acme.z", title="z", factory="toys:Xor", kind="bytes", signature=mark)
        for mark in (b"ZZ1", b"ZZ2")
    ]
    registry = installed(a=brings(codecs=codecs[:1]), b=brings(codecs=codecs[1:]))
    for mark in (b"ZZ1", b"ZZ2"):
        refused(lambda mark=mark: squish.open(mark + bytes(9), registry=registry))
    squish.open(BOX, registry=registry).close()


@pytest.fixture
def in_conflict(monkeypatch: pytest.MonkeyPatch) -> Registry:
    registry = installed(a=brings(codecs=[ROWS]))
    monkeypatch.setattr(registry_module, "_default", registry)
    return registry


def test_doctor_lists_conflicts_and_fails(in_conflict: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("toy.rows", "dist-toys", "dist-a", "SQUISH_PLUGINS=toy.rows="))


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_plugins_lists_conflicts(option: list[str], in_conflict: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", *option]) == 0
    assert "toy.rows" in (shown := capsys.readouterr().out)
    assert "SQUISH_PLUGINS=toy.rows=" in shown


@pytest.mark.parametrize("command", [["formats"], ["codecs"], ["backends"], ["--help"]])
def test_other_commands_run_beside_a_conflict(
    command: list[str], in_conflict: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 0
