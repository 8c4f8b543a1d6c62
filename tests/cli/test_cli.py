"""The `squish` command line, run in this process on a toy format, so that it needs the core alone."""

from __future__ import annotations

import json
import os
import stat
import struct
import sys
from collections import UserList
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("typer")

from squish_cli import diagnosis, main
from squish_cli.listings import summarize

from squish_core.api import (
    DENSE,
    ContainerInfo,
    Encoding,
    FileRef,
    FormatError,
    Index,
    Part,
    Problem,
    Refusal,
    Segment,
    Signature,
    TensorSpec,
    WritableContainer,
    dropped_assets,
    hookimpl,
)
from squish_core.display import to_json
from squish_core.errors import ConflictError, SquishError
from squish_core.formats.write_plan import WritePlan
from squish_core.io.rollback import Rollback, write_rollback
from squish_core.plugins import registry
from squish_core.summary import abbreviate

NAMES = {"a.weight": [[1.0, 2.0], [3.0, 4.0]], "a.bias": [5.0, 6.0], "b.weight": [[7.0, 8.0], [9.0, 1.0]]}
META = {"name": "toy\nsecond line", "vocabulary": [f"w{i}" for i in range(100)]}


class Toy(WritableContainer):
    """`TOY1`, the header's length, a JSON header, f32 values."""

    def read_index(self, source: Any, limits: Any) -> Index:
        (length,) = struct.unpack("<I", source.read(4, 4, "the header's length"))
        header = json.loads(source.read(8, length, "the header"))
        tensors, offset = {}, 8 + length
        for name, shape in header["tensors"].items():
            part = Part(dtype="f32", shape=tuple(shape))
            part = Part(dtype="f32", shape=tuple(shape), segments=(Segment(0, offset, part.nbytes),))
            encoding = Encoding(codec=DENSE, parts={"data": part})
            tensors[name] = TensorSpec(name=name, shape=tuple(shape), dtype="f32", encodings=(encoding,))
            offset += part.nbytes
        problems = [Problem(code="odd", severity="warning", where=w, message="is odd") for w in header.get("odd", ())]
        return Index(
            format="toy",
            version="1",
            files=(FileRef(source.filename, source.size),),
            tensors=tensors,
            meta=header["meta"],
            problems=tuple(problems),
        )

    def encodings_for(self, **features: Any) -> tuple[Encoding, ...]:
        return (Encoding(codec=DENSE),)

    def accepts(self, spec: TensorSpec, encoding: Encoding, options: Any) -> Encoding | Refusal:
        if encoding.codec.id == "dense" and (spec.dtype == "f32" or len(spec.shape) == 1):
            return Encoding(codec=encoding.codec, parts={"data": Part(dtype=spec.dtype, shape=spec.shape)})
        return Refusal(why="toys hold matrices of f32 only")

    def plan_file(self, specs: Any, meta: Any, assets: Any, options: Any) -> WritePlan:
        return WritePlan(dropped=dropped_assets(["tokens"]))

    def write(self, sink: Any, tensors: Any, meta: Any, assets: Any, options: Any) -> None:
        sink.write(head({item.spec.name: list(item.spec.shape) for item in tensors}, dict(meta)))
        for item in tensors:
            for stream in item.parts.values():
                stream.write_to(sink)


class ToyPlugin:
    @hookimpl
    def squish_containers(self) -> list[ContainerInfo]:
        return [
            ContainerInfo(
                id="toy",
                title="a toy",
                factory="toy_format:Toy",
                suffixes=(".toy",),
                signatures=(Signature(b"TOY1"),),
                can_write=True,
                features={"dtype": ("f32",)},
                options={"wire": "version to write"},
            )
        ]


def head(shapes: dict[str, list[int]], meta: dict[str, Any], **more: Any) -> bytes:
    text = json.dumps({"tensors": shapes, "meta": meta, **more}).encode()
    return b"TOY1" + struct.pack("<I", len(text)) + text


def flat(values: Any) -> Iterator[float]:
    for value in values:
        yield from flat(value) if isinstance(value, list) else (value,)


def shape(values: Any) -> list[int]:
    return [len(values), *(shape(values[0]) if isinstance(values[0], list) else ())]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Write a toy file; gives its path."""

    def make(name: str = "model.toy", tensors: Any = NAMES, meta: Any = META, **more: Any) -> str:
        data = b"".join(struct.pack("<f", value) for values in tensors.values() for value in flat(values))
        (tmp_path / name).write_bytes(head({key: shape(v) for key, v in tensors.items()}, meta, **more) + data)
        return str(tmp_path / name)

    return make


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., registry.Registry]:
    """Make a registry of the core, the toy format and more plugins the default one."""

    def make(*extra: Any, points: Any = (), **options: Any) -> registry.Registry:
        registry_of_test = registry.Registry("", extra=[ToyPlugin(), *extra], entry_points=lambda: points, **options)
        monkeypatch.setattr(registry, "_default", registry_of_test)
        return registry_of_test

    module = ModuleType("toy_format")
    module.Toy = Toy  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "toy_format", module)
    make()
    return make


@pytest.fixture
def squish(install: Any, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run a command; gives code, out, err and, with --json, the document."""

    def run(*argv: str) -> Any:
        code = main(argv)
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err, json=json.loads(out) if "--json" in argv else None)

    return run


# ls


def test_ls_has_a_line_for_each_tensor_in_file_order(squish: Any, write: Any) -> None:
    path = write()
    ran = squish("ls", path)
    assert ran.code == 0
    assert [line.split() for line in ran.out.splitlines()] == [
        ["shape", "stored", "as", "bits", "size", "name"],
        ["[2,", "2]", "f32", "32.00", "16", "B", "a.weight"],
        ["[2]", "f32", "32.00", "8", "B", "a.bias"],
        ["[2,", "2]", "f32", "32.00", "16", "B", "b.weight"],
        *[f"3 tensors in {path}: 10 parameters, 40 B, 32.00 bits each".split()],
    ]


def test_ls_shows_only_names_that_match_a_pattern(squish: Any, write: Any) -> None:
    ran = squish("ls", write(), "a.*", "*.weight", "--json")
    assert [tensor["name"] for tensor in ran.json["tensors"]] == ["a.weight", "a.bias", "b.weight"]
    assert [tensor["name"] for tensor in squish("ls", write(), "b*", "--json").json["tensors"]] == ["b.weight"]


def test_a_pattern_that_nothing_matches_is_an_error(squish: Any, write: Any) -> None:
    ran = squish("ls", write(), "z*")
    assert (ran.code, ran.out) == (2, "")
    assert "no tensor matches" in ran.err


def test_ls_of_a_file_without_tensors_says_so(squish: Any, write: Any) -> None:
    path = write(tensors={})
    assert squish("ls", path).out == f"no tensors in {path}\n"


def test_control_and_bidi_characters_of_names_are_escaped_everywhere(squish: Any, write: Any) -> None:
    evil = "x\x1b[31m\n\u202efake"
    path, other = write(tensors={evil: [1.0]}, meta={evil: evil}, odd=[evil]), write("other.toy", {evil: [2.0]})
    for command in (
        ["ls", path],
        ["info", path],
        ["plan", path],
        ["verify", path],
        ["diff", path, other],
        ["convert", path, path + ".toy", "--encode", "int9"],
        ["convert", path, path + ".toy"],
        ["info", path, "--meta", evil],
        ["info", path, "--meta", evil[:-1]],
    ):
        ran = squish(*command)
        assert not set("\x1b\u202e") & set(ran.out + ran.err), command
    assert r"x\x1b[31m\n\u202efake" in squish("ls", path).out


# info


def test_info_sums_up_the_file(squish: Any, write: Any) -> None:
    ran = squish("info", write())
    for line in ("format      toy 1", "parameters  10 at 32.00 bits each", "  name        toy\\nsecond line"):
        assert line in ran.out.splitlines()


def test_info_shortens_long_values_and_meta_prints_one_whole(squish: Any, write: Any) -> None:
    path = write()
    assert "100 values" in squish("info", path).out
    assert squish("info", path, "--json").json["meta"]["vocabulary"] == {"length": 100}
    assert squish("info", path, "--meta", "vocabulary").out.split() == META["vocabulary"]
    assert squish("info", path, "--meta", "vocabulary", "--json").json["value"] == META["vocabulary"]
    assert squish("info", path, "--meta", "name").out == "toy\nsecond line\n"


def test_lists_of_a_format_s_own_kind_are_lists() -> None:
    assert to_json({"a": UserList([1, b"xy"])}) == {"a": [1, {"bytes": 2}]}
    assert [abbreviate(UserList(items)) for items in (["a", "b"], range(99))] == [
        "[a, b]",
        "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14...] 99 values",
    ]
    assert abbreviate(b"xyz") == "{'bytes': 3}"


def test_info_of_tensors_summarizes_their_values(squish: Any, write: Any) -> None:
    path = write(tensors={"a": [[1.0, -2.5], [0.0, float("nan")]], "b": [3.0, float("inf")]})
    assert squish("info", path, "*").out.split("\n")[1].split() == [
        "-2.5",
        "1",
        "-0.5",
        "1.472",
        "0.00%",
        "1",
        "0",
        "1",
        "a",
    ]
    lines = squish("info", path, "a").out.splitlines()
    assert [line.split()[2:] for line in lines[-2:]] == [["1", "0", "1", 40 * "#"], ["2", "1", "0", 40 * "#"]]
    (row,) = squish("info", path, "b", "--json").json["tensors"]
    assert (row["name"], row["shape"], row["max"], row["absmax"]) == ("b", [2], 3, 3)
    assert (row["infinite"], row["positive"]) == (1, {"1": 1})
    ran = squish("info", path, "a", "--meta", "name")
    assert (ran.code, "--meta and PATTERN cannot be combined" in ran.err) == (2, True)


def test_an_unknown_metadata_key_names_the_nearest(squish: Any, write: Any) -> None:
    ran = squish("info", write(), "--meta", "vocabular")
    assert ran.code == 2
    assert "Close matches: vocabulary." in ran.err


# plan


def test_plan_explains_and_groups_similar_tensors(squish: Any, write: Any) -> None:
    ran = squish("plan", write())
    assert "a.weight and 1 more like it" in ran.out
    assert "toy -> dense -> numpy" in ran.out
    assert ran.out.count("backend metal is not installed (pip install squish-metal)") == 1
    assert len(squish("plan", write(), "--json").json["tensors"]) == 3


def test_plan_needs_no_file_for_a_format_and_its_features(squish: Any) -> None:
    assert "toy with dtype=f32" in squish("plan", "--format", "toy", "--feature", "dtype=f32").out
    assert squish("plan", "--format", "toy", "--feature", "dtype=f8").code == 2
    lacking = squish("plan", "--format", "toy", "--feature", "dtype=f32", "--backend", "metal")
    assert (lacking.code, "backend 'metal'" in lacking.err) == (2, True)
    assert "expected linear, embed" in squish("plan", "--format", "toy", "--feature", "dtype=f32", "--op", "sing").err


@pytest.mark.parametrize(
    "wrong", [[], ["--format", "toy", "--feature", "dtype"], ["x.toy", "--feature", "a=b"], ["--format", "none"]]
)
def test_plan_rejects_invalid_features(squish: Any, wrong: list[str]) -> None:
    assert squish("plan", *wrong).code == 2


@pytest.mark.parametrize("wrong", [["--backend", "metal"], ["--prefer", "best"], ["a.bias", "--op", "sing"]])
def test_plan_that_nothing_can_fulfil_is_an_error(squish: Any, write: Any, wrong: list[str]) -> None:
    ran = squish("plan", write(), *wrong)
    assert ran.code == 2
    assert ran.err.startswith("error: ")


# verify


def test_verify_of_a_good_file_is_ok(squish: Any, write: Any) -> None:
    assert (
        squish("verify", write()).out.splitlines()[-1] == "not checked: the values of 3 tensors (--deep decodes them)"
    )
    ran = squish("verify", write(), "--deep", "--json")
    [file] = ran.json["files"]
    assert (ran.code, file["ok"], file["problems"]) == (0, True, [])


def test_verify_of_a_truncated_file_gives_1(squish: Any, write: Any, tmp_path: Path) -> None:
    data = Path(write()).read_bytes()
    (tmp_path / "short.toy").write_bytes(data[:-3])
    ran = squish("verify", str(tmp_path / "short.toy"))
    assert ran.code == 1
    assert "b.weight (bounds)" in ran.out
    assert not squish("verify", str(tmp_path / "short.toy"), "--json").json["files"][0]["ok"]


def test_a_warning_is_a_fault_only_with_strict(squish: Any, write: Any) -> None:
    path = write(odd=["a.bias"])
    assert squish("verify", path).code == 0
    ran = squish("verify", path, "--strict", "--json")
    assert (ran.code, [file["ok"] for file in ran.json["files"]]) == (1, [False])


def test_verify_of_several_files_tells_of_each_and_gives_the_worst_code(
    squish: Any, write: Any, tmp_path: Path
) -> None:
    good, odd, short, missing = write(), write("odd.toy", odd=["w"]), tmp_path / "short.toy", str(tmp_path / "missing")
    short.write_bytes(Path(good).read_bytes()[:-3])
    ran = squish("verify", good, str(short), odd)
    assert ran.code == 1
    assert [line.split(": ")[:2] for line in ran.out.splitlines() if line.startswith(("ok", "error:"))] == [
        ["ok", good],
        ["error", str(short)],
        ["ok", odd],
    ]
    ran = squish("verify", good, missing, odd, "--json")
    assert (ran.code, [entry["ok"] for entry in ran.json["files"]]) == (2, [True, False, True])
    assert ran.json["files"][1]["error"]["code"] == "missing"
    assert squish("verify", good, odd).code == 0


def test_verify_merges_equal_findings(squish: Any, write: Any) -> None:
    path = write(odd=[f"w{number}" for number in range(20)])
    ran = squish("verify", path)
    assert "w0, w1, w2, w3 and 16 more (odd)" in ran.out
    assert ran.out.count("is odd") == 1
    assert "20 warnings" in ran.out
    assert len(squish("verify", path, "--json").json["files"][0]["problems"]) == 20


def test_an_error_does_not_end_in_two_periods() -> None:
    assert str(SquishError("no command 'verfy'. Did you mean 'verify'?", hint="See --help.")).endswith(
        "'verify'? See --help."
    )


def test_verify_names_the_path_as_typed_and_the_shard_at_fault(tmp_path: Path) -> None:
    from squish_core.checking.verify import verify

    (tmp_path / "empty.toy").touch()
    assert verify(tmp_path / "empty.toy").file == str(tmp_path / "empty.toy")
    assert verify(b"").file == "<bytes>"


def test_verify_of_a_git_lfs_pointer_says_what_it_is(squish: Any, tmp_path: Path) -> None:
    (tmp_path / "model.toy").write_text("version https://git-lfs.github.com/spec/v1\n")
    ran = squish("verify", str(tmp_path / "model.toy"))
    assert ran.code == 1
    assert "git lfs pull" in ran.out


@pytest.mark.parametrize("command", ["ls", "info", "plan", "verify"])
def test_a_file_that_cannot_be_opened_gives_2_and_one_line(squish: Any, tmp_path: Path, command: str) -> None:
    (tmp_path / "noise.bin").write_bytes(b"\1\2\3\4" * 9)
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + bytes(60))
    for path in (tmp_path / "missing", tmp_path, tmp_path / "noise.bin", tmp_path / "model.gguf"):
        ran = squish(command, str(path))
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
        named = tmp_path / "model.gguf" if path == tmp_path else path  # the only model of the folder
        assert ran.err.startswith(f"error: {named}: ")


def test_format_is_obeyed_or_fails(squish: Any, write: Any) -> None:
    assert squish("ls", write("renamed.bin"), "--format", "toy").code == 0
    ran = squish("verify", write(), "--format", "ztensor")
    assert ran.code == 2
    assert "pip install squish-ztensor" in ran.err


# diff


def test_diff_of_equal_files_gives_0(squish: Any, write: Any) -> None:
    ran = squish("diff", write(), write("other.toy"))
    assert (ran.code, ran.out) == (0, "same: tensors: 3 identical; metadata equal; assets equal\n")


def test_diff_names_what_differs_and_gives_1(squish: Any, write: Any) -> None:
    other = {"a.weight": [[1.0, 2.0], [3.0, 4.5]], "a.bias": [5.0, 6.0], "c": [1.0]}
    paths = write(), write("other.toy", other, {"name": "another"})
    ran = squish("diff", *paths)
    assert ran.code == 1
    assert ran.out.startswith("differs: tensors: ")
    assert sorted(line.split()[0] for line in ran.out.splitlines()[2:5]) == ["differs", "only", "only"]
    assert "  vocabulary: only in a" in ran.out
    assert not squish("diff", *paths, "--json").json["same"]


def test_an_infinite_error_is_null_in_json(squish: Any, write: Any) -> None:
    ran = squish("diff", write(tensors={"x": [0.0]}), write("other.toy", {"x": [1.0]}), "--json")
    assert ran.json["tensors"][0]["nmse"] is None


# convert


def test_convert_writes_and_reports(squish: Any, write: Any, tmp_path: Path) -> None:
    ran = squish("convert", write(), str(tmp_path / "out.toy"), "--only", "a.*")
    assert ran.code == 0
    assert [line.split() for line in ran.out.splitlines()[1:]] == [
        ["action", "tensors", "size", "bits", "exactness", "stored", "as"],
        ["copy", "2", "24", "B", "32.00", "bytes", "f32"],
        ["not", "carried", "over:"],
        ["asset", "tokens"],
    ]
    assert "wrote" in ran.out
    assert [tensor["name"] for tensor in squish("ls", str(tmp_path / "out.toy"), "--json").json["tensors"]] == [
        "a.weight",
        "a.bias",
    ]


def test_a_dry_run_writes_nothing(squish: Any, write: Any, tmp_path: Path) -> None:
    ran = squish("convert", write(), str(tmp_path / "out.toy"), "--dry-run")
    assert ran.out.startswith("would write")
    assert squish("convert", write(), str(tmp_path / "out.toy"), "--dry-run", "--json").json["dry_run"]
    assert not (tmp_path / "out.toy").exists()


def test_convert_notes_kept_tensors(squish: Any, write: Any, tmp_path: Path) -> None:
    ran = squish("convert", write(), str(tmp_path / "out.toy"), "--encode", "f16", "--dry-run")
    assert "note: kept: toy cannot hold it: toys hold matrices of f32 only (2 tensors: a.weight, ...)" in ran.out


def test_a_rule_that_nothing_can_take_is_an_error(squish: Any, write: Any, tmp_path: Path) -> None:
    ran = squish("convert", write(), str(tmp_path / "out.toy"), "--encode", "f16", "--only", "*.weight")
    assert ran.code == 2
    assert "no tensor can be encoded as dense:dtype=f16: toy cannot hold it: toys hold matrices of f32" in ran.err
    assert not (tmp_path / "out.toy").exists()


@pytest.mark.parametrize(
    "wrong", [["--to", "toy:color=red"], ["--to", "squizd"], ["--encode", "int9"], ["--only", "z*"],
              ["--encode", "a.*=f16"]]
)  # fmt: skip
def test_a_conversion_that_cannot_be_leaves_the_old_file(squish: Any, write: Any, wrong: list[str]) -> None:
    old = write("out.toy", {"old": [1.0]})
    before = Path(old).read_bytes()
    assert squish("convert", write(), old, *wrong).code == 2
    assert Path(old).read_bytes() == before


def test_a_folder_that_cannot_be_written_is_an_error_not_a_traceback(squish: Any, write: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ran = squish("convert", write(), str(tmp_path / "file" / "out.toy"))
    assert ran.code == 2
    assert "is not a folder" in ran.err


def test_folders_above_a_target_are_made_and_removed_if_nothing_is_written(
    squish: Any, write: Any, tmp_path: Path
) -> None:
    assert squish("convert", write(), str(tmp_path / "new" / "deep" / "out.toy")).code == 0
    assert (tmp_path / "new" / "deep" / "out.toy").is_file()
    assert squish("convert", write(), str(tmp_path / "other" / "deep" / "out.toy"), "--encode", "b=f16").code == 2
    assert squish("convert", write(), str(tmp_path / "other" / "out.toy"), "--dry-run").code == 0
    assert not (tmp_path / "other").exists()


# formats, codecs, backends, plugins


def test_listings_import_no_implementation(squish: Any, install: Any) -> None:
    installed = install()
    for command in ("formats", "codecs", "backends", "plugins"):
        assert squish(command).code == 0
        assert squish(command, "--json").json
    assert not installed._instances


def test_formats_lists_installed_and_missing_ones(squish: Any) -> None:
    ran = squish("formats")
    assert "toy  read, write  a toy  .toy" in ran.out
    assert "not installed: gguf (pip install squish-gguf)" in ran.out


def test_formats_with_an_id_lists_options_and_features(squish: Any) -> None:
    lines = squish("formats", "toy").out.splitlines()
    assert "--to toy:wire=    version to write" in lines
    assert "--feature dtype=  f32" in lines
    assert "pip install squish-gguf" in squish("formats", "gguf").err


def test_codecs_shows_the_short_names(squish: Any) -> None:
    assert "bf16" in squish("codecs").out


# doctor and plugins


class Point:
    """An entry point of a plugin that fails to import."""

    name, value = "broken", "broken_plugin"

    def __init__(self, dist: str = "squish-broken") -> None:
        self.dist = SimpleNamespace(name=dist, version="1.0")

    def load(self) -> Any:
        raise ImportError("No module named 'left_out'")


class Commands:
    """A plugin with a command."""

    calls = 0

    @hookimpl
    def squish_commands(self, app: Any) -> None:
        Commands.calls += 1

        @app.command()
        def hello(fail: bool = False) -> None:
            """Say hello."""
            if fail:
                raise FormatError("no hello here")
            print("hello")


class Group:
    """A plugin with a command that has commands."""

    @hookimpl
    def squish_commands(self, app: Any) -> None:
        import typer

        group = typer.Typer(no_args_is_help=True)
        group.command("one")(lambda: None)
        group.command("other")(lambda: None)
        app.add_typer(group, name="group")


class BadCommands:
    @hookimpl
    def squish_commands(self, app: Any) -> None:
        raise RuntimeError("no commands today")


@pytest.mark.parametrize(
    ("command", "package"),
    [("cache build", "squish-npydir"), ("check-model", "squish-models"), ("refs", "squish-remote")],
)
def test_a_command_of_an_absent_package_says_what_to_install(
    squish: Any, install: Any, command: str, package: str
) -> None:
    words = command.split()
    ran = squish(*words, "x", "--json")
    assert (ran.code, ran.json["error"]["type"]) == (2, "MissingPluginError")
    line = f"error: the command {command!r} is not installed. Run `pip install {package}`. [not-installed]\n"
    assert squish(*words).err == line
    install(points=[Point(package)])
    assert f"{package} is broken: ImportError: No module named 'left_out'" in squish(*words).err


def test_help_tells_each_command_in_a_whole_sentence(squish: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_default", registry.Registry(""))
    monkeypatch.setenv("COLUMNS", "80")
    for command in ([], ["cache"]):
        listing = squish(*command, "--help").out.partition("Commands:")[2]
        assert listing
        assert "..." not in listing


def test_doctor_of_a_sound_installation_gives_0(squish: Any) -> None:
    ran = squish("doctor")
    assert ran.code == 0
    assert "  ok      numpy: CPU" in ran.out
    assert "pip install squish-gguf" in ran.out
    assert squish("doctor", "--json").json["machine"]["cores"] > 0


def test_doctor_shows_the_number_of_threads(squish: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUISH_THREADS", "3")
    assert squish("doctor", "--json").json["threads"] == {"workers": 3, "setting": "3", "problem": None}
    assert "threads      3 (SQUISH_THREADS=3)" in squish("doctor").out
    monkeypatch.setenv("SQUISH_THREADS", "many")
    ran = squish("doctor", "--json")
    assert (ran.code, ran.json["ok"], ran.json["threads"]["workers"]) == (1, False, None)
    assert "found 'many'" in ran.json["threads"]["problem"]
    assert squish("doctor").code == 1


def test_doctor_names_a_broken_plugin_and_why(squish: Any, install: Any) -> None:
    install(points=[Point()])
    ran = squish("doctor")
    assert ran.code == 1
    assert "  broken  squish-broken\n          ImportError: No module named 'left_out'" in ran.out
    assert "broken" in squish("plugins").out
    assert squish("formats").code == 0


def test_doctor_finds_an_implementation_that_cannot_be_imported(squish: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "toy_format")
    ran = squish("doctor", "--json")
    assert ran.code == 1
    assert any("toy_format" in reason for plugin in ran.json["plugins"] for reason in plugin["reasons"])


def test_of_a_large_family_only_the_number_is_listed() -> None:
    family = [f"ggml.q{number}_0" for number in range(7)]
    assert summarize({"codecs": [*family, "affine"]}) == "codecs affine ggml.* (7)"
    assert summarize({"codecs": family[:2]}) == "codecs ggml.q0_0 ggml.q1_0"
    assert summarize({"families": ["acme.lm"]}) == "family acme.lm"
    assert summarize({"codecs": [f"codec{number}" for number in range(9)]}).count("codec") == 10


def part(folder: Path, name: str, size: int = 3) -> Path:
    path = folder / f".{name}.{'0' * 16}.part"
    path.write_bytes(bytes(size))
    return path


def test_doctor_lists_and_removes_the_temporaries_of_dead_writers(squish: Any, tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    (tmp_path / "inner").mkdir()
    gone = [part(tmp_path / "inner", "b.toy", 5000), part(tmp_path, "a.toy")]
    os.utime(gone[0], (1000, 1000))
    with part(tmp_path, "c.toy").open("rb") as live:
        fcntl.flock(live, fcntl.LOCK_EX)
        ran = squish("doctor", str(tmp_path), "--json")
        rows = {row["file"]: row for row in ran.json["temporaries"]}
        assert [(rows[str(path)]["state"], rows[str(path)]["size"]) for path in gone] == [("dead", 5000), ("dead", 3)]
        assert rows[str(gone[0])]["age"] > 1e9 > 1000 > rows[str(gone[1])]["age"]
        assert rows[str(gone[0])]["target"] == str(tmp_path / "inner" / "b.toy")
        text = squish("doctor", str(tmp_path)).out
        assert all(str(path) in text for path in gone)
        assert str(live.name) not in text
        ran = squish("doctor", str(tmp_path), "--clean", "--json")
        assert sorted(row["state"] for row in ran.json["temporaries"]) == ["live", "removed", "removed"]
        assert (ran.code, [path.exists() for path in gone], os.path.exists(live.name)) == (0, [False, False], True)
    assert squish("doctor", str(tmp_path), "--clean").code == 0
    assert squish("doctor", str(tmp_path)).out == "nothing here was left by an interrupted write\n"


def test_doctor_reports_files_it_could_not_remove(squish: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = part(tmp_path, "a.toy")

    def refused(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("squish_core.io.system.unlink", refused)
    ran = squish("doctor", str(tmp_path), "--clean", "--json")
    (row,) = ran.json["temporaries"]
    assert (ran.code, ran.json["ok"], row["state"], row["error"]) == (1, False, "dead", "Permission denied")
    assert path.exists()


def test_doctor_names_torn_appends_and_leaves_them(squish: Any, tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"old")
    with path.open("r+b") as file:
        write_rollback(path, Rollback.of(file.fileno()), 0o644)
        file.seek(0, os.SEEK_END)
        file.write(bytes(50))
    assert squish("doctor", str(tmp_path), "--json").json["torn_appends"] == [{"file": str(path), "size": 50}]
    assert "--recover" in squish("doctor", str(tmp_path), "--clean").out
    assert path.stat().st_size == 53


@pytest.mark.parametrize("words", [["--clean"], ["gone"], ["FILE"]])
def test_doctor_looks_into_folders_only(squish: Any, write: Any, words: list[str]) -> None:
    ran = squish("doctor", *(write() if word == "FILE" else word for word in words), "--json")
    assert (ran.code, ran.json["error"]["code"]) == (
        2,
        {"--clean": "usage", "gone": "missing", "FILE": "file-kind"}[words[0]],
    )


def test_convert_reports_the_leftovers_it_removed(squish: Any, write: Any, tmp_path: Path) -> None:
    source, left = write(), part(tmp_path, "out.toy")
    ran = squish("convert", source, str(tmp_path / "out.toy"), "--json")
    assert [left.name in note for note in ran.json["notes"]] == [True]
    assert not left.exists()
    part(tmp_path, "out.toy")
    assert f"note: removed {left.name} (3 bytes)" in squish("convert", source, str(tmp_path / "out.toy")).out


def test_convert_keeps_the_targets_permissions_or_takes_the_sources(squish: Any, write: Any, tmp_path: Path) -> None:
    source, target = Path(write()), tmp_path / "out.toy"
    source.chmod(0o600)
    assert squish("convert", str(source), str(target)).code == 0
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    source.chmod(0o644)
    assert squish("convert", str(source), str(target)).code == 0
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_doctor_survives_settings_that_cannot_be_read(squish: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable() -> Any:
        raise ConflictError("plugin settings cannot be read")

    monkeypatch.setattr(registry, "registry", unreadable)
    monkeypatch.setattr(diagnosis, "installed", unreadable)
    assert squish("doctor").code == 1
    assert squish("formats").code == 2


def test_a_plugin_adds_a_command(squish: Any, install: Any) -> None:
    install(Commands())
    assert squish("hello").out == "hello\n"
    assert "Say hello." in squish("--help").out
    ran = squish("hello", "--fail")
    assert (ran.code, ran.err) == (2, "error: no hello here\n")


def test_a_built_in_command_loads_no_plugin_commands(squish: Any, install: Any) -> None:
    install(Commands())
    Commands.calls = 0
    squish("formats")
    assert Commands.calls == 0


def test_failing_plugin_commands_are_shown_by_doctor_and_stop_nothing_else(squish: Any, install: Any) -> None:
    install(BadCommands(), Commands())
    assert squish("hello").code == 0
    ran = squish("doctor")
    assert ran.code == 1
    assert "its commands failed: RuntimeError: no commands today" in ran.out


# errors and exit codes


@pytest.mark.parametrize("wrong", [["nonsense"], ["ls"], ["ls", "x", "--color"], ["convert", "a"]])
def test_a_wrong_command_line_gives_2_and_one_line(squish: Any, wrong: list[str]) -> None:
    ran = squish(*wrong)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert ran.err.startswith("error: ")


def test_a_group_without_a_command_says_so(squish: Any, install: Any) -> None:
    install(Group())
    ran = squish("group")
    assert (ran.code, ran.err) == (
        2,
        "error: `squish group` needs a command (expected one, other). See `squish group --help`. [usage]\n",
    )


def test_errors_are_json_documents_too(squish: Any, tmp_path: Path) -> None:
    ran = squish("ls", str(tmp_path / "missing.toy"), "--json")
    assert ran.code == 2
    assert ran.json["error"]["code"] == "missing"
    assert ran.json["error"]["file"] == str(tmp_path / "missing.toy")
    assert squish("ls", "--color", "--json").json["error"]["code"] == "usage"


def test_an_interrupt_gives_130(squish: Any, write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("squish_core.verify", interrupted)
    ran = squish("verify", write())
    assert (ran.code, ran.out, ran.err) == (130, "", "interrupted\n")


def test_no_arguments_print_the_help(squish: Any) -> None:
    assert squish().out == squish("--help").out
    assert squish("--version").out.startswith("squish-core ")


@pytest.mark.parametrize("command", ["ls", "info", "plan", "verify", "diff", "convert", "formats", "doctor"])
def test_the_help_of_each_command_has_an_example(squish: Any, command: str) -> None:
    ran = squish(command, "--help")
    assert ran.code == 0
    assert f"\n    squish {command}" in ran.out.partition("Example")[2]
    assert "--json" in ran.out


@pytest.mark.parametrize(("no_color", "colored"), [("", True), ("1", False)])
def test_color_is_for_terminals_and_no_color_is_honored(
    squish: Any, write: Any, monkeypatch: pytest.MonkeyPatch, no_color: str, colored: bool
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert ("\x1b[32mok" in squish("verify", write()).out) is colored
