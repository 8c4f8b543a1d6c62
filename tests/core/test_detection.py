"""What a file is: by its bytes first, then its name; and what it is instead."""

from __future__ import annotations

import array
import io
import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toys
from squish_testing import expect_error

import squish_core as squish
from squish_core.api import (
    AmbiguousFormatError,
    FileAccessError,
    FormatError,
    MissingFileError,
    MissingPluginError,
    Signature,
    SquishError,
    UnknownFormatError,
)
from squish_core.detect import detect
from squish_core.io.source import BytesSource
from squish_core.plugins.catalog import lookalike

EMPTY = toys.box({})
SAMPLES = Path(__file__).parents[1] / "data"


def formats(**signatures: Any) -> Any:
    """A registry with further formats: name -> signatures."""
    infos = [toys.container_info(name, *signature) for name, signature in signatures.items()]
    return toys.registry(toys.plugin(squish_containers=infos))


def test_the_signature_decides() -> None:
    assert detect(BytesSource(EMPTY, "model.gguf"), toys.registry()) == "toy.box"


def test_the_longer_signature_wins() -> None:
    registry = formats(longer=[Signature(b"TOYB\1")])
    assert detect(BytesSource(b"TOYB\1"), registry) == "longer"
    assert detect(BytesSource(b"TOYB\2"), registry) == "toy.box"


def test_signatures_of_one_format_add_up() -> None:
    registry = formats(both=[Signature(b"TO"), Signature(b"end!", where="tail", offset=-4)])
    assert detect(BytesSource(b"TOYBend!"), registry) == "both"


def test_an_end_alone_does_not_outdo_a_start() -> None:
    registry = formats(tail=[Signature(b"tail-magic", where="tail", offset=-10)])
    assert detect(BytesSource(EMPTY + b"tail-magic"), registry) == "toy.box"
    assert detect(BytesSource(b"????tail-magic"), registry) == "tail"


@pytest.mark.parametrize("size", [0, 1, 3])
def test_a_tail_signature_does_not_match_a_shorter_file(size: int) -> None:
    registry = formats(tail=[Signature(b"tail", where="tail", offset=-4)])
    with pytest.raises(SquishError):
        detect(BytesSource(b"tail"[:size]), registry)


def test_a_tie_is_ambiguous_and_names_both() -> None:
    with expect_error(AmbiguousFormatError, code="ambiguous", found="other, toy.box", hint="format="):
        detect(BytesSource(EMPTY), formats(other=[Signature(b"TOYB")]))


def test_a_tie_is_settled_by_the_suffix() -> None:
    assert detect(BytesSource(EMPTY, "a.BOX"), formats(other=[Signature(b"TOYB")])) == "toy.box"


def test_an_explicit_format_is_used_or_fails() -> None:
    registry = formats(other=[Signature(b"OTHR")])
    assert squish.open(EMPTY, "toy.box", registry=registry).format == "toy.box"
    with expect_error(FormatError, code="magic"):
        squish.open(b"OTHR", "toy.box", registry=registry)
    with expect_error(squish.MissingPluginError, code="not-installed", hint="pip install squish-gguf"):
        squish.open(EMPTY, "gguf", registry=registry)


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", r"git-lfs pointer.*git lfs pull"),
        (b"\n <!DOCTYPE html><html>", "HTML page"),
        (b"<HTML>", "HTML page"),
        (b"PK\x03\x04\0\0", r"zip archive.*never unpickles"),
        (pickle.dumps({}, 2), r"pickle.*never unpickles"),
        (pickle.dumps({}, 3), "pickle"),
        (pickle.dumps({}, 4), "pickle"),
        (pickle.dumps({}, 5), "pickle"),
        (b"\x93NUMPY\1\0", "NumPy array"),
        (b"\x1f\x8b\x08", "gunzip"),
        (b"", r"is empty \(0 bytes\)"),
        (b"GGUF\3\0\0\0", "pip install squish-gguf"),
        (b"ZTEN1000", "pip install squish-ztensor"),
        (b"\x08\0\0\0\0\0\0\0{}", "pip install squish-safetensors"),
        (b"nothing in particular", "text, not weights: 'nothing in particular'.*Read it"),
        (b"\x80\1\2\3\4\5\6\7\x08", r"first bytes b'\\x80.*toy\.box"),
        (bytes(20), "begins with zeros.*Fetch the file again"),
    ],
)
def test_the_message_about_another_file_says_what_it_is(head: bytes, text: str) -> None:
    with pytest.raises(UnknownFormatError, match=text):
        squish.open(head, registry=toys.registry())


def test_the_suffix_says_whose_error_to_show() -> None:
    with expect_error(FormatError, code="magic"):
        squish.open(BytesSource(b"damaged", "a.box"), registry=toys.registry())


def test_an_empty_file_is_called_empty_whatever_its_suffix(tmp_path: Path) -> None:
    (tmp_path / "a.box").touch()
    with expect_error(SquishError, code="empty"):
        squish.open(tmp_path / "a.box", registry=toys.registry())


def test_a_folder_is_recognized_by_its_members(tmp_path: Path) -> None:
    registry = formats(folder=[Signature(b"weights.idx", where="member")])
    with expect_error(UnknownFormatError, code="unknown", found="no files"):
        squish.open(tmp_path, registry=registry)
    (tmp_path / "weights.idx").write_bytes(b"x")
    from squish_core.io.local import open_source

    assert detect(open_source(tmp_path), registry) == "folder"


def test_a_tilde_is_a_name_like_any_other_and_the_error_says_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m.box").write_bytes(toys.box({"w": np.ones((2, 2), np.float32)}))
    registry = toys.registry()
    with expect_error(MissingFileError, code="missing", hint=".expanduser"):
        squish.open(Path("~/m.box"), registry=registry)
    with expect_error(MissingFileError, code="missing", hint="expanduser"):
        squish.convert(tmp_path / "m.box", "~/o.box", registry=registry)
    assert [path.name for path in tmp_path.iterdir()] == ["m.box"]


def test_a_missing_path_names_what_exists(tmp_path: Path) -> None:
    with expect_error(MissingFileError, code="missing", hint="exists; check the rest"):
        squish.open(tmp_path / "gone" / "deep" / "a.box", registry=toys.registry())
    with expect_error(MissingFileError, code="missing", hint="Check the name"):
        squish.open(tmp_path / "a.box", registry=toys.registry())


def test_a_format_without_a_signature_is_known_by_its_suffix(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"\x08\x0a")
    with pytest.raises(UnknownFormatError) as caught:
        squish.open(tmp_path / "model.onnx", registry=toys.registry())
    assert caught.value.code == "not-installed"
    assert "onnx" in str(caught.value.hint)


@pytest.mark.parametrize(("scheme", "package"), [("https", "squish-remote"), ("sftp", "squish-remote[fsspec]")])
def test_a_url_without_a_plugin_names_the_package_that_reads_it(
    scheme: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MissingPluginError) as caught:
        squish.open(f"{scheme}://user:secret@example.org/model.box?key=1", registry=toys.registry())
    assert (caught.value.code, caught.value.hint) == (
        "not-installed",
        f"Run `pip install '{package}'`." if "[" in package else f"Run `pip install {package}`.",
    )
    assert "secret" not in str(caught.value)
    assert "key=1" not in str(caught.value)


def test_any_buffer_opens_and_another_type_is_named(tmp_path: Path) -> None:
    for data in (bytearray(EMPTY), memoryview(EMPTY), array.array("B", EMPTY), np.frombuffer(EMPTY, np.uint8)):
        assert squish.open(data, registry=toys.registry()).format == "toy.box"
    (tmp_path / "a.box").write_bytes(EMPTY)
    with (tmp_path / "a.box").open("rb") as stream, pytest.raises(TypeError, match="not BufferedReader"):
        squish.open(stream, registry=toys.registry())
    with pytest.raises(TypeError, match=r"expected a path.*not NoneType"):
        squish.open(None, registry=toys.registry())


def test_a_folder_that_may_not_be_listed_is_a_typed_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(folder: Path) -> Any:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(os, "scandir", denied)
    with expect_error(FileAccessError, code="unreadable") as caught:
        squish.open(tmp_path, registry=toys.registry())
    assert caught.value.code == "unreadable"


def test_a_file_that_may_not_be_read_is_a_typed_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path, flags: int) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "a.box").write_bytes(EMPTY)
    monkeypatch.setattr(os, "open", denied)
    with expect_error(FileAccessError, code="unreadable"):
        squish.open(tmp_path / "a.box", registry=toys.registry())


def test_an_impossible_path_is_a_typed_error() -> None:
    for path in ("a\0b", "x" * 5000, ""):
        with pytest.raises(SquishError):
            squish.open(path, registry=toys.registry())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_a_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with expect_error(FormatError, code="file-kind", found="a pipe"):
        squish.open(tmp_path / "pipe", registry=toys.registry())


def test_a_device_is_refused() -> None:
    with expect_error(FormatError, code="file-kind", found="a device"):
        squish.open("/dev/zero", registry=toys.registry())


@pytest.mark.parametrize("target", [None, 7, object()])
def test_an_argument_other_than_path_or_bytes_is_an_error(target: Any) -> None:
    with pytest.raises((TypeError, SquishError)):
        squish.open(target, registry=toys.registry())


def test_a_folder_of_an_absent_format_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    with expect_error(UnknownFormatError, code="not-installed", hint="pip install squish-npydir"):
        squish.open(tmp_path, registry=toys.registry())


def test_a_json_file_is_called_by_its_name() -> None:
    hint = lookalike(b'{\n  "architectures": ["LlamaForCausalLM"]', text=True)
    assert hint is not None
    assert hint[0] == "JSON, not weights"


@pytest.mark.parametrize("start", ['{"version": 1, "refs": {', '{\n "version":1,\n "templates": {},\n "refs" : {'])
def test_a_reference_manifest_is_called_by_its_name(start: str) -> None:
    hint = lookalike(start.encode(), text=True)
    assert hint is not None
    assert "reference manifest" in hint[0]


@pytest.mark.parametrize(
    ("absent", "config"),
    [
        ("hf", {"quantization_config": {"quant_method": "gptq"}}),
        ("mlx", {"quantization": {"bits": 4}}),
        (None, {"quantization_config": {"bits": 4}}),
        (None, {"quantization_config": "gptq"}),
        (None, []),
        (None, "[" * 100_000),
    ],
)
def test_a_checkpoint_without_its_plugin_opens_as_stored_with_a_warning(
    tmp_path: Path, absent: str | None, config: Any
) -> None:
    (tmp_path / "model.safetensors").write_bytes(SAMPLES.joinpath("sample.safetensors").read_bytes())
    (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    for target in (tmp_path, tmp_path / "model.safetensors"):
        with squish.open(target, registry=squish.Registry(plugins="-hf,-mlx")) as file:
            messages = [problem.message for problem in file.problems if problem.code == "not-installed"]
            assert file.format == "safetensors"
            assert [f"pip install squish-{absent}" in message for message in messages] == [True] * bool(absent)
    with squish.open(tmp_path, "safetensors", registry=squish.Registry(plugins="-hf,-mlx")) as file:
        # As stored, as the format says, with a note; a config that cannot be read is an error whatever the format.
        assert [problem.code for problem in file.problems] == ["quant-method" if isinstance(config, dict) else "json"]


def test_a_refined_file_whose_plugin_is_missing_says_so() -> None:
    with squish.open(SAMPLES / "sample.uqff", registry=squish.Registry(plugins="-uqff")) as file:
        assert [(problem.severity, problem.code) for problem in file.problems] == [("warning", "not-installed")]
        assert "pip install squish-uqff" in file.problems[0].message


@pytest.mark.parametrize("name", ["model.uqff", "model.safetensors"])
@pytest.mark.parametrize(
    "tensors", [{"0": np.ones(2, np.uint8), "1": np.ones(2, np.uint8)}, {"uqff.version.major": np.ones(1, np.uint8)}]
)
def test_a_mark_in_the_names_names_the_missing_plugin(name: str, tensors: dict[str, Any], tmp_path: Path) -> None:
    squish.save(tmp_path / "model.safetensors", tensors)
    file = (tmp_path / "model.safetensors").rename(tmp_path / name)
    with squish.open(file, registry=squish.Registry(plugins="-uqff")) as opened:
        assert [(problem.severity, problem.code) for problem in opened.problems] == [("warning", "not-installed")]
        assert "pip install squish-uqff" in opened.problems[0].message


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("quantize_config.json", {"bits": 4}), ("quant_config.json", {"w_bit": 4}),
        ("hf_quant_config.json", {"quantization": {"quant_algo": "FP8"}}),
        ("config.json", {"text_config": {"quantization_config": {"quant_method": "fp8"}}}),
        ("config.json", {"compression_config": {"quant_method": "compressed-tensors"}}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("absent", ["-hf", "-hf,-safetensors,-mlx,-uqff"])
def test_the_message_names_the_plugin_of_a_declaration(name: str, content: Any, absent: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(SAMPLES.joinpath("sample.safetensors").read_bytes())
    (tmp_path / name).write_text(json.dumps(content))
    registry = squish.Registry(plugins=absent)
    if "safetensors" in absent:
        with pytest.raises(UnknownFormatError, match="hf"):
            squish.open(tmp_path, registry=registry)
        return
    with squish.open(tmp_path, registry=registry) as file:
        assert ["pip install squish-hf" in problem.message for problem in file.problems] == [True]


def test_the_message_names_a_refinement_where_its_base_is_missing_too() -> None:
    with pytest.raises(UnknownFormatError, match="pip install squish-uqff"):
        squish.open(SAMPLES / "sample.uqff", registry=squish.Registry(plugins="-uqff,-safetensors"))


def zipped(member: str, size: int = 10) -> bytes:
    """A zip archive with one stored member."""
    spool = io.BytesIO()
    with zipfile.ZipFile(spool, "w") as archive:
        archive.writestr(zipfile.ZipInfo(member), bytes(size))
    return spool.getvalue()


def sniffing(**factories: str) -> Any:
    """A registry with formats that share the signature of zip archives: name -> class of the toys."""
    infos = [
        squish.api.ContainerInfo(
            id=name, title=name, factory=f"toys:{factory}", signatures=(Signature(b"PK\3\4"),), sniffs=True
        )
        for name, factory in factories.items()
    ]
    return toys.registry(toys.plugin(squish_containers=infos))


@pytest.mark.parametrize(("member", "expected"), [("box.json", "boxes"), ("other.json", "others")])
def test_sniffing_separates_formats_with_one_signature(member: str, expected: str) -> None:
    assert detect(BytesSource(zipped(member)), sniffing(boxes="Sniffing", others="SniffingOther")) == expected


def test_a_zip_archive_that_no_format_claims_is_named_as_such() -> None:
    with pytest.raises(UnknownFormatError) as caught:
        detect(BytesSource(zipped("data.pkl")), sniffing(boxes="Sniffing", others="SniffingOther"))
    assert caught.value.code == "lookalike"


def test_a_truncated_archive_is_not_claimed() -> None:
    with pytest.raises(UnknownFormatError) as caught:
        detect(BytesSource(zipped("box.json")[:28]), sniffing(boxes="Sniffing"))
    assert caught.value.code == "lookalike"


def test_a_format_that_looked_goes_before_one_that_did_not() -> None:
    registry = sniffing(boxes="Sniffing")
    registry.register(toys.plugin("more", squish_containers=[toys.container_info("any.zip", Signature(b"PK\3\4"))]))
    assert detect(BytesSource(zipped("box.json")), registry) == "boxes"
    assert detect(BytesSource(zipped("else")), registry) == "any.zip"


def test_a_longer_signature_goes_before_sniffing() -> None:
    registry = sniffing(boxes="Sniffing")
    longer = toys.container_info("longer", Signature(zipped("box.json")[:8]))
    registry.register(toys.plugin("more", squish_containers=[longer]))
    assert detect(BytesSource(zipped("box.json")), registry) == "longer"


def test_sniffing_reads_at_most_64_kib() -> None:
    large = zipped("box.json", 1 << 20)
    assert detect(BytesSource(large), sniffing(boxes="Thrifty")) == "boxes"
    with pytest.raises(FormatError) as caught:
        detect(BytesSource(large), sniffing(boxes="Greedy"))
    assert (caught.value.code, caught.value.found) == ("plugin-bug", "65537 bytes")


def test_a_bug_in_sniffing_is_a_typed_error() -> None:
    with pytest.raises(FormatError) as caught:
        detect(BytesSource(zipped("box.json")), sniffing(boxes="Stumbling"))
    assert caught.value.code == "plugin-bug"


def test_a_file_without_the_signature_imports_no_sniffer() -> None:
    assert detect(BytesSource(EMPTY), sniffing(boxes="NoSuchClass")) == "toy.box"
