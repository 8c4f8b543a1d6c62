"""What a chain uses and what a file needs: each plugin by role, id, distribution and version, and its installation."""

from __future__ import annotations

import json
import pickle
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("typer")

from squish_cli import main

import squish_core as squish
from squish_core.plugins import catalog
from squish_core.plugins import registry as plugins

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run `squish needs`, optionally without some packages; gives code, out, err."""

    def needs(*words: object, without: str = "") -> Any:
        settings = ",".join(f"-squish-{name}" for name in without.split())
        monkeypatch.setattr(plugins, "_default", squish.Registry(plugins=settings))
        code = main(["needs", *map(str, words)])
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err, rows=[line.split() for line in out.splitlines()])

    return needs


@pytest.fixture(scope="module")
def zstd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A zTensor with zstd parts."""
    path = tmp_path_factory.mktemp("needs") / "model.zt"
    squish.save(path, dict.fromkeys("vw", np.ones((256, 256), np.float32)), format="ztensor:wire=2,encoding=zstd")
    return path


CHAINS = [
    ({"container": "gguf", "dtype": "q4_k"}, "container gguf, codec ggml.q4_k, backend numpy"),
    ({"container": "ztensor", "encoding": "zt.zstd-seekable"},
     "container ztensor, codec dense, byte codec zt.zstd-seekable, byte codec zstd, backend numpy"),
    ({"container": "squizd", "flags": "INT4+SPARSE"},
     "container squizd, codec masked, inner codec squizd.int4, backend numpy"),
    ({"container": "mlx", "mode": "affine"}, "container mlx, container safetensors, codec affine, backend numpy"),
]  # fmt: skip


@pytest.mark.parametrize(("question", "answer"), CHAINS, ids=[text for _, text in CHAINS])
def test_a_chain_names_its_plugins(question: dict[str, Any], answer: str) -> None:
    chain = squish.registry().resolve(backend="numpy", **question)
    assert ", ".join(f"{plugin.role} {plugin.id}" for plugin in chain.plugins) == answer
    assert all(version and distribution for _, _, distribution, version in chain.plugins)
    assert chain.to_dict()["plugins"] == [plugin._asdict() for plugin in chain.plugins]
    assert all(f"{plugin.role} {plugin.id} ({plugin.package} " in chain.explain() for plugin in chain.plugins)
    assert json.dumps(chain.to_dict())
    assert pickle.loads(pickle.dumps(chain)).plugins == chain.plugins


def test_the_install_command_of_a_chain_lists_each_package_once() -> None:
    chain = squish.registry().resolve(container="gguf", dtype="q4_k", backend="cpu")
    assert chain.install == chain.to_dict()["install"] == "pip install squish-core squish-gguf squish-ggml squish-cpu"


def test_a_chain_without_its_first_choice_names_the_next_ones_plugins() -> None:
    chain = squish.open(DATA / "sample.gguf")["blk.0.attn_norm.weight"].plan()
    other = chain.without_chosen("a reason")
    assert other.plugins[-1].id == other.chosen.backend != chain.plugins[-1].id


def test_everything_of_a_file_that_opens_is_listed(run: Any) -> None:
    answer = run(DATA / "sample.squizd", "--backend", "cpu")
    assert answer.code == 0
    assert answer.rows[0] == ["state", "role", "id", "package"]
    assert {row[0] for row in answer.rows[1:]} == {"installed"}
    assert ["installed", "backend", "cpu"] in [row[:3] for row in answer.rows]
    data = json.loads(run(DATA / "sample.squizd", "--json").out)
    assert (data["ok"], data["install"]) == (True, None)
    assert [item["role"] for item in data["plugins"]] == ["container", "codec", "codec"]


MISSING = [
    ("sample.uqff", "uqff", "missing container uqff squish-uqff"),
    ("sample.gguf", "gguf", "missing container gguf squish-gguf"),
    ("sample.gguf", "gguf ggml", "missing codec ggml squish-ggml"),
    ("sample.squizd", "codecs", "missing codec squizd.int4 squish-codecs"),
    ("sample.uqff", "ggml", "missing codec ggml.q2_k squish-ggml"),
    ("sample.gguf --backend cpu", "cpu", "missing backend cpu squish-cpu"),
    ("npydir", "zstd", "missing byte codec zstd squish-zstd"),
    ("npydir", "zstd npydir", "missing byte codec zstd squish-zstd"),
    ("int4", "codecs", "missing codec affine squish-codecs"),
    ("https://example.org/model.gguf", "remote", "missing source https squish-remote"),
    ("hf://owner/repo", "remote", "missing source hf squish-remote[hf]"),
]


@pytest.mark.parametrize(("words", "without", "row"), MISSING)
def test_what_is_missing_is_listed_with_its_package(run: Any, words: str, without: str, row: str) -> None:
    file, *options = words.split()
    target = DATA / file if file.startswith("sample.") else file
    answer = run(target, *options, without=without)
    assert answer.code == 1
    assert row.split() in answer.rows
    (command,) = (line for line in answer.out.splitlines() if line.startswith("install what is missing: pip install "))
    assert row.split()[-1] in shlex.split(command)


def test_a_missing_byte_codec_is_listed_and_plan_says_how_to_install_it(
    run: Any, zstd: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ["missing", "byte", "codec", "zstd", "squish-zstd"] in run(zstd, without="zstd").rows
    assert main(("plan", str(zstd))) == 2
    assert "Run `pip install squish-zstd`." in capsys.readouterr().out


def test_the_requirements_are_lines_for_pip(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = run(DATA / "sample.gguf", "--backend", "cpu", "--requirements", without="cpu")
    assert (answer.code, answer.out.split()) == (1, ["squish-core", "squish-gguf", "squish-cpu"])
    root = Path(__file__).parents[2]
    monkeypatch.setattr(catalog, "checkout", lambda: root)
    lines = run(DATA / "sample.gguf", "--requirements").out.splitlines()
    folders = [f"squish-{name} @ {(root / 'plugins' / name).as_uri()}" for name in ("codecs", "ggml", "gguf")]
    assert lines == [f"squish-core @ {root.as_uri()}", *folders]


@pytest.mark.parametrize(
    ("words", "code"),
    [("missing.gguf", "missing"), ("nobody", "missing"), (f"{DATA}/sample.gguf --backend nope", "not-installed")],
)
def test_what_cannot_be_answered_is_an_error(run: Any, words: str, code: str) -> None:
    answer = run(*words.split(), "--json")
    assert (answer.code, json.loads(answer.out)["error"]["code"]) == (2, code)


def test_an_installed_plugin_that_cannot_be_imported_is_broken(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "squish_cpu.backend", None)
    answer = run(DATA / "sample.gguf", "--backend", "cpu")
    assert answer.code == 1
    assert ["broken", "backend", "cpu"] in [row[:3] for row in answer.rows]


def test_the_catalog_knows_what_each_format_needs() -> None:
    registry = squish.registry()
    for name, entry in registry.containers.items():
        info = entry.info
        infos = [registry.codecs[codec].info for codec in info.codecs]
        codecs = {codec for item in infos for codec in (item.id, *item.needs)}
        packages = {registry.codecs[codec].dist for codec in codecs} - {"squish-core", entry.dist}
        facts = catalog.format_facts(name)
        assert {catalog.package_for("codec", codec) for codec in facts.get("needs", ())} == packages, name
        assert info.refines == facts.get("refines")
