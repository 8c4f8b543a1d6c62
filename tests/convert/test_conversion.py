"""Converting keeps codes, encodes only what is asked, and says how exactly each tensor came over."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toys
from squish_convert import report as conversion_report
from squish_convert.execute import common_mode
from squish_convert.rules import suggest_names
from squish_testing import expect_error

import squish_core as squish
from squish_core import api
from squish_core.errors import FormatError, MissingPluginError, SquishError, TensorError, UsageError
from squish_core.plugins.registry import Registry
from squish_core.specs import parse_format, parse_spec

VALUES = np.random.default_rng(0).standard_normal((6, 10)).astype(np.float32)
MIXED = {
    "a.weight": VALUES, "b.weight": VALUES + 1, "norm": VALUES[0], "ids": np.arange(4, dtype="<i4"),
    "q": toys.rows(VALUES), "s": toys.rows(VALUES, "toy.shifted"),
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    """Convert a box of tensors into another, and give the report and the new file."""

    def convert(tensors: Any, encode: Any = None, to: str | None = "toy.box", **options: Any) -> Any:
        reg = toys.registry()
        source = squish.open(toys.box(tensors, {"k": 1}, {"t": b"asset"}), registry=reg)
        target = tmp_path / "out.box"
        planned = squish.convert(source, target, to, encode, dry_run=True, **options)
        assert not target.exists()
        assert planned.dry_run
        report = squish.convert(source, target, to, encode, **options)
        assert planned.size == report.size == target.stat().st_size
        assert planned.steps == report.steps
        return report, squish.open(target, registry=reg)

    return convert


def actions(report: Any) -> dict[str, tuple[str, str]]:
    return {step.name: (step.action, str(step.exactness)) for step in report.steps}


def test_without_a_rule_codes_are_kept(run: Any) -> None:
    report, file = run(MIXED)
    taken = actions(report)
    assert {taken[name] for name in ("a.weight", "b.weight", "norm", "ids", "q")} == {("copy", "bytes")}
    assert taken["s"] == ("repack", "values(f32)")
    assert file["s"].codec == "toy.rows"
    np.testing.assert_array_equal(file["s"].numpy(), file["q"].numpy())
    assert file.meta == {"k": 1}
    assert bytes(file.assets["t"].raw) == b"asset"


@pytest.mark.parametrize("to", ["npydir", "mlx", "uqff", "mlpackage", "safetensors:max_shard_size=1KB"])
def test_a_compressed_folder_is_refused(tmp_path: Path, to: str) -> None:
    with expect_error(UsageError, code="format", expected="model", found="model.zst"):
        squish.convert({"w": np.zeros((4, 64), np.float32)}, tmp_path / "model.zst", to)
    assert not any(tmp_path.iterdir())


def test_the_repr_of_a_report_is_one_line(run: Any) -> None:
    report, file = run(MIXED)
    source = squish.open(toys.box({**MIXED, "norm": VALUES[1], "more": VALUES}), registry=toys.registry())
    expected_text = f"<Conversion '<bytes>' -> {report.target!r} format=toy.box copy=5 repack=1 size={report.size}>"
    assert repr(report) == expected_text
    counts = "tensors=(4 bytes, 1 differs, 1 values, 1 only in a) meta=1 assets=1"
    assert repr(squish.diff(source, file)) == f"<Difference '<bytes>' {report.target!r} same=False {counts}>"
    counts = "tensors=6 digests=0 unverified=0 problems=()"
    assert repr(squish.verify(file, deep=True)) == f"<Report {file.name!r} format=toy.box ok=True deep=True {counts}>"
    damaged = squish.verify(toys.box(MIXED)[:-1], registry=toys.registry())
    assert repr(damaged).endswith("ok=False deep=False tensors=0 digests=0 unverified=0 problems=(1 error)>")


def test_the_same_codec_with_other_parameters_is_not_a_copy() -> None:
    from squish_convert.compatible import can_widen

    def stored(index: str, **params: Any) -> api.Encoding:
        parts = {"data": api.Part(dtype="f32", shape=(2, 2)), "index": api.Part(dtype=index, shape=(2, 2))}
        return api.Encoding(codec=api.CodecSpec("toy", {"index": index, **params}), parts=parts)

    assert can_widen(stored("u32"), stored("u16"))
    assert not can_widen(stored("u16"), stored("u32"))
    assert not can_widen(stored("u32", offset="zero_point"), stored("u32", offset="bias"))
    assert not can_widen(stored("u32", offset="zero_point"), stored("u16", offset="bias"))


def test_a_catch_all_rule_keeps_other_tensors_and_says_why(run: Any) -> None:
    report, file = run({"w": VALUES, "norm": VALUES[0], "ids": np.arange(4, dtype="<i4")}, "toy.rows")
    assert {name: action for name, (action, _) in actions(report).items()} == {
        "w": "encode",
        "norm": "copy",
        "ids": "copy",
    }
    notes = {step.name: step.note for step in report.steps}
    assert notes["norm"] == "kept: a vector is not quantized"
    assert notes["ids"] == "kept: only float tensors are encoded"
    assert np.abs(file["w"].numpy() - VALUES).max() <= np.abs(VALUES).max() / 127


def test_a_format_decides_what_a_catch_all_rule_means(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(self: Any, specs: Any, codec: Any, options: Any) -> Any:
        half = api.CodecSpec("dense", {"dtype": "f16"})
        return {spec.name: codec if spec.name == "w" else half for spec in specs if spec.name != "router"}

    monkeypatch.setattr(toys.Box, "choose", choose)
    tensors = dict.fromkeys(("w", "router", "embed", "named"), VALUES)
    report, file = run(tensors, ["toy.rows", "named=toy.rows"])
    assert [tensor.codec for tensor in file.values()] == ["toy.rows", "dense", "dense", "toy.rows"]
    assert [file[name].dtype for name in ("router", "embed")] == ["f32", "f16"]
    assert [step.note for step in report.steps] == [
        "",
        "kept: toy.box does not quantize it",
        "encoded as dense:dtype=f16 by the conventions of toy.box",
        "",
    ]


@pytest.mark.parametrize(("spec", "code"), [("affine:color=1", "params"), ("ggml.q8_k", "encode")])
def test_a_wrong_catch_all_rule_is_an_error_and_not_a_note(tmp_path: Path, spec: str, code: str) -> None:
    pytest.importorskip("squish_codecs")
    pytest.importorskip("squish_ggml")
    with squish.open(toys.box({"w": np.zeros((4, 256), np.float32)}), registry=installed()) as file:
        with pytest.raises(SquishError) as caught:
            squish.convert(file, tmp_path / "o.box", "toy.box", spec)
        assert caught.value.code == code
        assert not (tmp_path / "o.box").exists()


SEARCHING = ("mlx", "uqff", "squizd", "npydir", "ztensor", "mlpackage", "hf:method=awq", "hf:method=gptq")


@pytest.mark.parametrize("to", SEARCHING)
def test_encoder_only_parameters_reach_the_encoder_in_any_target(tmp_path: Path, to: str) -> None:
    pytest.importorskip("squish_codecs")
    reg = installed()
    if to.partition(":")[0] not in reg.containers:
        pytest.skip(f"{to} is not installed")
    values = np.random.default_rng(3).standard_t(4, size=(64, 128)).astype(np.float32)
    with squish.open(toys.box({"l.weight": values}), registry=reg) as file:
        unsearched, searched = (
            squish.convert(file, tmp_path / rule.replace(":", " "), to, rule) for rule in ("int4", "int4:search=mse")
        )
    assert searched.steps[0].quality.nmse < 0.97 * unsearched.steps[0].quality.nmse
    with squish.open(searched.target, registry=reg) as written:
        assert "search" not in str(written["l.weight"].spec.encodings[0].codec)
    assert searched.size == unsearched.size


def test_parameters_that_another_codec_lacks_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("squish_codecs")
    reg = installed()
    if not {"gguf", "mlx"} <= set(reg.containers):
        pytest.skip("GGUF or MLX is not installed")
    with squish.open(toys.box({"l.weight": np.ones((64, 128), np.float32)}), registry=reg) as file:
        squish.convert(file, tmp_path / "mlx", "mlx", "mx:scaling=saturating")
        with expect_error(SquishError, code="params", found="mx:scaling=saturating"):
            squish.convert(file, tmp_path / "gguf", "gguf", "mx:scaling=saturating")


def installed() -> Registry:
    return Registry(extra=[toys])


def test_a_lossy_encoding_reports_the_error_a_reader_sees(run: Any) -> None:
    report, file = run({"w": VALUES, "norm": VALUES[0]}, "toy.rows")
    step, kept = report.steps
    assert kept.quality is None
    gap = file["w"].numpy().astype("f8") - VALUES
    expected = {
        "nmse": np.square(gap).sum() / np.square(VALUES.astype("f8")).sum(), "max_error": np.abs(gap).max(),
        "snr": 10 * np.log10(np.square(VALUES.astype("f8")).sum() / np.square(gap).sum()),
    }  # fmt: skip
    expected_text = report.to_dict()["tensors"][0]
    assert {key: expected_text["quality"][key] for key in expected} == pytest.approx(expected)
    assert expected_text["bits"] == 8 * step.size / VALUES.size


class Truncating(api.Encoder):
    """An external encoder with nothing but what `api.Encoder` requires."""

    def encode(self, panel: np.ndarray, *, activations: Any = None) -> dict[str, np.ndarray]:
        scale = np.ones(len(panel), np.float32)
        return {"codes": np.trunc(panel).astype(np.int8), "scale": scale}


def test_an_encoder_need_not_measure_its_error(tmp_path: Path) -> None:
    info = api.EncoderInfo(id="toy.rows", title="truncates", factory=f"{__name__}:Truncating")
    registry = toys.registry(toys.plugin("encoders", squish_encoders=[info]))
    values = np.array([[1.5, -2.25], [3, 4]], np.float32)
    with squish.open(toys.box({"w": values}), registry=registry) as file:
        (step,) = squish.convert(file, tmp_path / "w.box", "toy.box", encode={"w": "toy.rows"}).steps
    with squish.open(tmp_path / "w.box", registry=registry) as file:
        assert file["w"].numpy().tolist() == [[1, -2], [3, 4]]
    assert step.quality.max_error == 0.5


def test_clipped_values_count_as_errors(run: Any) -> None:
    report, file = run({"w": np.float32([[1e6, 1], [2, 3]])}, "f16:overflow=saturate")
    assert (report.steps[0].quality.max_error, report.clipped) == (1e6 - 65504, 1)
    np.testing.assert_array_equal(file["w"].numpy(), np.float16([[65504, 1], [2, 3]]))
    note = f"note: 1 value of w clipped: too large for {report.steps[0].target}"
    assert note in conversion_report.conversion_lines(report)


def test_errors_of_all_tensors_are_reported_together(run: Any) -> None:
    weights = {"a": VALUES, "b": 3 * VALUES[:3], "norm": VALUES[0]}
    report, file = run(weights, "toy.rows")
    before, after = (
        np.concatenate([side[name].ravel() for name in "ab"]).astype("f8")
        for side in (weights, {name: file[name].numpy() for name in "ab"})
    )
    expected = {
        "nmse": np.square(after - before).sum() / np.square(before).sum(), "max_error": np.abs(after - before).max(),
        "cosine": before @ after / np.sqrt((before @ before) * (after @ after)),
    }  # fmt: skip
    quality = report.to_dict()["quality"]
    assert {key: quality[key] for key in expected} == pytest.approx(expected)


def test_the_report_lists_the_worst_tensors_first_and_merges_codecs(run: Any) -> None:
    scales = {f"w{i:02}": (VALUES * 2.0**-i).astype(np.float32) for i in range(20)}
    report, _ = run({**scales, "constant": np.ones((4, 6), np.float32)}, "f16")
    lines = list(conversion_report.conversion_lines(report))
    listed = [line.split() for line in lines if line.endswith(tuple(scales))]
    assert len(listed) == conversion_report.WORST
    assert [float(row[0]) for row in listed] == sorted(float(row[0]) for row in listed)
    assert listed[0][-1] == "w19"
    rest = f"all 21 tensors, {21 - conversion_report.WORST} of them not listed (--json lists all)"
    (total,) = (line for line in lines if line.endswith(rest))
    assert float(total.split()[0]) == pytest.approx(report.quality.snr, abs=0.01)
    kinds = conversion_report._short_labels(["a:x=1", "f32", *(f"b:scale={i}" for i in range(9))])
    assert (kinds["a:x=1"], kinds["b:scale=3"], kinds["f32"]) == ("a:x=1", "b", "f32")
    long = "c:bits=4,group_size=64,word=u8,order=lsb,scale_dtype=f16"
    assert conversion_report._short_labels([long]) == {long: "c:bits=4,group_size=64,..."}


@pytest.mark.parametrize(
    ("arrays", "rows"),
    [({"a": np.ones((4, 6), "f4"), "b": np.ones(6, "f4")}, []), ({"a": np.ones((4, 6), "f4"), "b": VALUES}, ["b"])],
)
def test_tensors_without_an_error_are_not_listed_as_lossy(run: Any, arrays: Any, rows: list[str]) -> None:
    lines = list(conversion_report.conversion_lines(run(arrays, "f16")[0]))
    assert [line.split()[-1] for line in lines if line.endswith((" a", " b"))] == rows
    assert any("no value differs in 2 encoded tensors" in line for line in lines) == (not rows)


@pytest.mark.parametrize(
    ("options", "pattern", "hint"),
    [
        ({"encode": {"*.weight": "keep", "*.wieght": "toy.rows"}}, "*.wieght", "Close matches: a.weight, b.weight."),
        ({"encode": ["toy.rows", "*nrom*=toy.rows"]}, "*nrom*", "Close matches: norm."),
        ({"only": ["a.*", "q_proj"]}, "q_proj", "`squish ls` lists the names"),
    ],
)
def test_a_pattern_that_no_tensor_matches_is_an_error_before_writing(
    tmp_path: Path, options: Any, pattern: str, hint: str
) -> None:
    with expect_error(UsageError, code="pattern", found=repr(pattern), hint=hint):
        squish.convert(toys.box(MIXED), tmp_path / "o.box", registry=toys.registry(), **options)
    assert list(tmp_path.iterdir()) == []


def test_a_keep_pattern_that_no_tensor_matches_is_a_warning(tmp_path: Path) -> None:
    report = squish.convert(
        toys.box(MIXED),
        tmp_path / "o.box",
        None,
        ["toy.rows", "*bias*=keep"],
        requantize=True,
        registry=toys.registry(),
    )
    assert report.unused == ("*bias*",)
    assert "warning: no tensor matches '*bias*', so this rule keeps nothing" in conversion_report.conversion_lines(
        report
    )


def test_a_keep_pattern_may_be_about_tensors_that_are_not_written(tmp_path: Path) -> None:
    rules = ["toy.rows", "norm=keep"]
    report = squish.convert(toys.box(MIXED), tmp_path / "o.box", None, rules, only="a.*", registry=toys.registry())
    assert [step.name for step in report.steps] == ["a.weight"]


@pytest.mark.parametrize("encode", [5, ["toy.rows", 4], {"*": 4}, {4: "toy.rows"}, [None], b"toy.rows"])
def test_a_rule_must_be_text(tmp_path: Path, encode: Any) -> None:
    with expect_error(SquishError, code="encode"):
        squish.convert(toys.box(MIXED), tmp_path / "o.box", None, encode, registry=toys.registry())


@pytest.mark.parametrize("encode", ["", "norm=", ":bits=4", "int4:bits", "int4:=4", "int4:bits="])
def test_a_specification_without_all_its_words_cannot_be_read(encode: str) -> None:
    with expect_error(SquishError, code="spec"):
        squish.convert(toys.box(MIXED), "o.box", None, encode, registry=toys.registry())


@pytest.mark.parametrize("text", ["a:b=8(c", "a:b=8(c))", "a:b=8)", "a:b=8(c),d=1", "a:b=1,b=2", "a(c:b=1,b=2)", "a()"])
def test_a_specification_closes_its_brackets_and_says_a_parameter_once(text: str) -> None:
    with expect_error(SquishError, code="spec"):
        parse_spec(text)


def test_an_option_of_a_format_may_have_brackets() -> None:
    reg = toys.registry(toys.plugin("mine", squish_containers=[toys.container_info("my.own", options={"draft": ""})]))
    assert parse_format("my.own:draft=/m (1)/a(2)", reg.writing_options) == ("my.own", {"draft": "/m (1)/a(2)"})


def test_the_nearest_names_are_of_different_layers() -> None:
    names = [f"blk.{layer}.{name}.weight" for layer in range(30) for name in ("ffn_up", "ffn_down", "attn_norm")]
    assert suggest_names("blk.*.ffn_donw.weight", [*names, "token_embd.weight"])[0] == "blk.0.ffn_down.weight"
    assert suggest_names("*embed*", [*names, "token_embd.weight"]) == ["token_embd.weight"]
    assert suggest_names("lm_head", names) == []


def test_the_message_about_a_rule_for_everything_that_nothing_can_take_gives_the_reason(
    run: Any, tmp_path: Path
) -> None:
    with expect_error(TensorError, code="encode", found="2 of 3 tensors with this reason") as caught:
        run({"norm": VALUES[0], "bias": VALUES[1], "ids": np.arange(4, dtype="<i4")}, "toy.rows")
    assert caught.value.message == "no tensor can be encoded as toy.rows: a vector is not quantized"
    assert list(tmp_path.iterdir()) == []
    assert len(run({"norm": VALUES[0]}, ["toy.rows", "norm=keep"])[0].steps) == 1


def test_a_named_rule_must_hold(run: Any) -> None:
    with expect_error(TensorError, code="rank", tensor="norm", found="shape [10]"):
        run({"w": VALUES, "norm": VALUES[0]}, "norm=toy.rows")


@pytest.mark.parametrize(
    ("rules", "quantized"),
    [
        (["*.weight=toy.rows"], {"a.weight", "b.weight"}),
        (["*.weight=toy.rows", "b.*=keep"], {"a.weight"}),
        (["b.*=keep", "*.weight=toy.rows"], {"a.weight", "b.weight"}),
        (["toy.rows", "a.weight=keep"], {"b.weight"}),
        ({"a.*": "toy.rows"}, {"a.weight"}),
        ("q8", {"a.weight", "b.weight"}),
        ("keep", set()),
    ],
)
def test_patterns_choose_and_the_last_match_wins(run: Any, rules: Any, quantized: set[str]) -> None:
    _, file = run({name: MIXED[name] for name in ("a.weight", "b.weight", "norm")}, rules)
    assert {name for name in file if file[name].codec == "toy.rows"} == quantized


@pytest.mark.parametrize(
    ("dtype", "exactness"), [("f32", "bytes"), ("f64", "values(f64)"), ("f16", "bounded"), ("bf16", "bounded")]
)
def test_dense_encodings_say_how_exact_they_are(run: Any, dtype: str, exactness: str) -> None:
    report, file = run({"w": VALUES}, dtype)
    assert actions(report)["w"][1] == exactness
    assert file["w"].dtype == dtype
    np.testing.assert_allclose(file["w"].numpy().astype("f8"), VALUES, rtol=2**-7)


def test_quantized_tensors_become_dense_values_on_request(run: Any) -> None:
    report, file = run({"q": toys.rows(VALUES)}, "f32")
    assert actions(report)["q"][0] == "encode"
    source = squish.open(toys.box({"q": toys.rows(VALUES)}), registry=toys.registry())
    np.testing.assert_array_equal(file["q"].numpy(), source["q"].numpy())


def test_values_of_the_other_byte_order_come_over(tmp_path: Path) -> None:
    reg = toys.registry()
    for values in (VALUES, np.arange(12, dtype="<i2").reshape(3, 4)):
        report = squish.convert(toys.box({"w": values}, byteorder=">"), tmp_path / "o.box", registry=reg)
        assert actions(report)["w"][0] == "encode"
        np.testing.assert_array_equal(squish.open(tmp_path / "o.box", registry=reg)["w"].numpy(), values)


def test_codes_with_scales_of_the_other_byte_order_are_kept(tmp_path: Path) -> None:
    reg = toys.registry()
    codec, shape, parts = toys.rows(VALUES)
    half = codec, shape, {**parts, "codes": parts["codes"] // 2}  # encoded anew, these would have other scales
    raw = toys.box({"q": half}, byteorder=">")
    report = squish.convert(raw, tmp_path / "o.box", registry=reg)
    assert actions(report)["q"] == ("widen", "values(f32)")
    written, read = squish.open(tmp_path / "o.box", registry=reg)["q"], squish.open(raw, registry=reg)["q"]
    np.testing.assert_array_equal(written.numpy(), read.numpy())
    np.testing.assert_array_equal(written.parts()["codes"].numpy(), half[2]["codes"])


def test_filtered_parts_are_copied_unfiltered(tmp_path: Path) -> None:
    reg = toys.registry()
    squish.convert(toys.box({"w": VALUES}, filters=("toy.xor",)), tmp_path / "o.box", registry=reg)
    assert (tmp_path / "o.box").read_bytes() == toys.box({"w": VALUES})


def test_large_tensors_are_encoded_panel_by_panel(run: Any) -> None:
    values = np.random.default_rng(0).standard_normal((4001, 700)).astype(np.float32)
    _, file = run({"w": values, "s": toys.rows(values, "toy.shifted")}, "w=toy.rows")
    codes = toys.Rows().encode(values)
    for name in ("w", "s"):
        for role, buffer in file[name].parts().items():
            np.testing.assert_array_equal(buffer.numpy(), codes[role])


def test_tensors_of_several_ranks_are_encoded_in_order(run: Any) -> None:
    values = np.random.default_rng(0).standard_normal((3, 500, 1200)).astype(np.float32)
    _, file = run({"w": values}, "f16")
    np.testing.assert_array_equal(file["w"].numpy(), values.astype(np.float16))


def test_a_tensor_the_target_cannot_hold_is_refused_with_a_hint(tmp_path: Path) -> None:
    tensors = {name: ("ggml.q4_0", (4,), {"blocks": np.zeros(4, "u1")}) for name in ("a", "b", "c", "d", "e", "f")}
    with expect_error(TensorError, code="refused", tensor="a", found="ggml.q4_0", hint="encode=") as caught:
        squish.convert(toys.box(tensors), tmp_path / "o.box", registry=toys.registry())
    assert [(finding.code, finding.where) for finding in caught.value.findings] == [("refused", "ggml.q4_0")]
    assert list(tmp_path.iterdir()) == []


def test_one_pattern_is_not_its_characters(run: Any) -> None:
    assert list(run(MIXED, only="*.weight")[1]) == ["a.weight", "b.weight"]


def test_a_comparison_of_named_tensors_knows_them(tmp_path: Path) -> None:
    file = squish.open(toys.box(MIXED), registry=toys.registry())
    assert [item.name for item in squish.diff(file, file, only="norm").tensors] == ["norm"]
    with expect_error(UsageError, code="name", found="nrom"):
        squish.diff(file, file, only=["nrom"])


def test_only_selects_tensors(run: Any) -> None:
    _, file = run(MIXED, only=["*.weight", "q"])
    assert list(file) == ["a.weight", "b.weight", "q"]
    with expect_error(UsageError, code="pattern", found="'nothing'"):
        run(MIXED, only=["nothing"])


def test_dropped_items_are_listed(tmp_path: Path) -> None:
    from attrs import evolve

    from squish_core import api
    from squish_core.file import File

    file = squish.open(toys.box({"w": VALUES}), registry=toys.registry())
    extra = api.Part(dtype="f32", shape=(1,), data=b"\0\0\0\0")
    spec = evolve(file.index.tensors["w"], extras={"input_scale": extra})
    index = evolve(
        file.index, tensors={"w": spec}, children={"draft": file.index}, whole=(api.Encoding(codec=api.DENSE),)
    )
    report = squish.convert(File(file.source, index, file.registry, file.limits), tmp_path / "o.box", dry_run=True)
    assert set(report.dropped) == {
        api.Dropped("child", "draft"),
        api.Dropped("encoding", "dense", "of the whole model"),
        api.Dropped("part", "input_scale", where="w"),
    }
    part = {"kind": "part", "name": "input_scale", "reason": "", "where": "w"}
    assert part in report.to_dict()["dropped"]
    assert "  w: part input_scale" in conversion_report.conversion_lines(report)


def test_a_format_that_reports_drops_as_text_is_a_plugin_bug() -> None:
    with pytest.raises(TypeError):
        api.WritePlan(dropped=("metadata k",))  # type: ignore[arg-type]


def test_the_format_follows_from_the_suffix_or_is_required(run: Any, tmp_path: Path) -> None:
    assert run({"w": VALUES}, to=None)[0].format == "toy.box"
    with expect_error(UsageError, code="format", hint="toy.box"):
        squish.convert(toys.box({}), tmp_path / "out.xyz", registry=toys.registry())
    with expect_error(UsageError, code="format", hint="Close matches: .box. Pass"):
        squish.convert(toys.box({}), tmp_path / "out.boxx", registry=toys.registry())
    with expect_error(MissingPluginError, code="not-installed", hint="pip install squish-ztensor"):
        squish.convert(toys.box({}), tmp_path / "out.zt", registry=toys.registry())


@pytest.mark.parametrize(
    ("target", "reason"),
    [("folder", "folder: is a folder, and cannot be overwritten"), ("file/o.box", "file: is not a folder")],
)
def test_a_dry_run_notes_that_the_target_cannot_be_written(target: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    report = squish.convert(
        toys.box({"w": VALUES}), tmp_path / target, "toy.box", dry_run=True, registry=toys.registry()
    )
    assert [note for note in report.notes if "the conversion itself would be refused" in note and reason in note]


@pytest.mark.parametrize(
    ("options", "kind", "fields"),
    [
        ({"to": "toy.box:color=red"}, UsageError, {"code": "option", "expected": "note", "found": "color"}),
        ({"to": "toy-box"}, MissingPluginError, {"code": "not-installed", "hint": "Close matches: toy.box"}),
        ({"to": "gguf"}, MissingPluginError, {"code": "not-installed", "hint": "pip install squish-gguf"}),
        ({"to": "toy.readonly"}, UsageError, {"code": "read-only", "hint": "toy.box"}),
        ({"encode": "int3"}, SquishError, {"code": "encode", "found": "'int3'", "hint": "`squish codecs` lists all"}),
        ({"encode": "TOY.ROW"}, SquishError, {"code": "encode", "found": "'toy.row'", "hint": "matches: toy.rows"}),
        ({"encode": "ggml.q4_k"}, MissingPluginError, {"code": "encode", "hint": "pip install squish-ggml"}),
        ({"encode": "affine:bits"}, SquishError, {"code": "spec", "found": "'affine:bits'"}),
        ({"encode": "toy.xor"}, SquishError, {"code": "encode", "found": "'toy.xor'"}),
    ],
)
def test_an_impossible_request_is_explained(tmp_path: Path, options: Any, kind: Any, fields: Any) -> None:
    readonly = toys.plugin(squish_containers=[toys.container_info("toy.readonly")])
    with expect_error(kind, **fields):
        squish.convert(toys.box({"w": VALUES}), tmp_path / "o.box", registry=toys.registry(readonly), **options)


@pytest.mark.parametrize(
    ("encode", "count"), [(["a*=f32", "f16"], 1), (["f16", "a*=f32"], 0), (["*=f16", "a*=f32"], 0)]
)
def test_a_rule_that_later_ones_override_is_noted(run: Any, encode: list[str], count: int) -> None:
    report, _ = run({"a": VALUES, "b": VALUES}, encode)
    assert len([note for note in report.notes if "has no effect" in note]) == count


@pytest.mark.parametrize("rule", ["toy.rows", "b.*=toy.rows"])
def test_a_faulty_rule_is_reported_once_without_a_tensor(run: Any, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(toys.Rows, "encode")
    with expect_error(SquishError, code="encode", tensor=None, hint="`squish codecs` lists all codecs"):
        run({"a.weight": VALUES, "b.weight": VALUES, "norm": VALUES[0]}, rule)


@pytest.mark.parametrize(
    ("rule", "found"),
    [
        ("f16:dtype=f32", "dtype"),
        ("dense:dtype=f16,x=1", "x"),
        ("dense:dtype=abc", "'abc'"),
        ("keep:x=1", "x"),
        ("q8(f16)", "toy.rows(dense:dtype=f16)"),
        ("some(toy.rows)", "some(toy.rows)"),
        ("toy.rows(some)", "toy.rows(some)"),
        ("keep(toy.rows)", "keep(toy.rows)"),
    ],
)
def test_a_rule_without_effect_is_refused(tmp_path: Path, rule: str, found: str) -> None:
    some = toys.plugin(squish_allocators=[api.AllocatorInfo(id="some", title="some", factory="toys:Rows")])
    with expect_error(SquishError, code="params", found=found):
        squish.convert(
            toys.box({"w": VALUES}), tmp_path / "o.box", encode=rule, registry=toys.registry(some), dry_run=True
        )


def test_a_file_can_be_converted_onto_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.box"
    path.write_bytes(toys.box({"w": VALUES}))
    squish.convert(path, path, encode="f16", registry=toys.registry())
    with squish.open(path, registry=toys.registry()) as file:
        np.testing.assert_array_equal(file["w"].numpy(), VALUES.astype(np.float16))


def test_progress_names_the_tensor_and_ends_at_the_total(tmp_path: Path) -> None:
    seen: list[Any] = []
    report = squish.convert(
        toys.box(MIXED), tmp_path / "o.box", registry=toys.registry(), progress=lambda *step: seen.append(step)
    )
    assert [name for name in dict.fromkeys(name for name, _, _ in seen) if name] == list(MIXED)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert seen[-1][1:] == (report.size, report.size)


def test_a_report_is_json(run: Any) -> None:
    assert json.loads(json.dumps(run(MIXED)[0].to_dict()))["tensors"][0]["action"] == "copy"


def test_a_copy_is_the_same_and_a_rounding_is_measured(tmp_path: Path) -> None:
    reg, data = toys.registry(), toys.box({"w": VALUES})
    squish.convert(data, tmp_path / "same.box", registry=reg)
    squish.convert(data, tmp_path / "half.box", encode="f16", registry=reg)
    assert squish.diff(data, tmp_path / "same.box", registry=reg).same
    difference = squish.diff(data, tmp_path / "half.box", registry=reg).tensors[0]
    assert difference.state == "differs"
    assert 0 < difference.max_error <= np.abs(VALUES).max() * 2**-11  # type: ignore[operator]
    assert squish.diff(toys.box({"w": VALUES}), toys.box({"v": VALUES}), registry=reg).same is False


@pytest.mark.parametrize(("a", "b", "max_error"), [
    (np.array([2**53 + 1], "i8"), np.array([2**53], "i8"), 1),
    (np.array([2**64 - 1], "u8"), np.array([2**64 - 2], "u8"), 1),
    (np.array([1 + 2j], "c8"), np.array([1 + 4j], "c8"), 2), (np.array([1 + 2j], "c16"), np.array([1 + 4j], "c16"), 2),
])  # fmt: skip
def test_diff_compares_integers_and_complex_numbers_exactly(a: np.ndarray, b: np.ndarray, max_error: float) -> None:
    difference = squish.diff(toys.box({"w": a}), toys.box({"w": b}), registry=toys.registry())
    assert not difference.same
    assert (difference.tensors[0].state, difference.tensors[0].max_error) == ("differs", max_error)
    assert squish.diff(toys.box({"w": a}), toys.box({"w": a}), registry=toys.registry()).same


def test_diff_sees_equal_bytes_behind_a_filter_and_a_single_one_that_differs() -> None:
    values = np.arange(5 << 20, dtype="u1").reshape(5, -1)  # more than is compared at a time without a filter
    unsearched = toys.box({"w": values, "none": values[:0]})
    packed = toys.box({"w": values, "none": values[:0]}, filters=("toy.xor",))
    reg = toys.registry()
    assert [item.state for item in squish.diff(unsearched, packed, registry=reg).tensors] == ["bytes", "bytes"]
    values[-1, -1] ^= 1
    assert [
        item.state
        for item in squish.diff(unsearched, toys.box({"w": values, "none": values[:0]}), registry=reg).tensors
    ] == ["differs", "bytes"]


@pytest.mark.skipif(sys.platform == "win32", reason="file sizes are limited by rlimits elsewhere")
def test_a_disk_that_fills_up_at_the_last_byte_is_a_typed_error(tmp_path: Path) -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    source = squish.open(toys.box({"w": VALUES}), registry=toys.registry())
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with expect_error(FormatError, code="os") as caught:
            squish.convert(source, tmp_path / "out.box", "toy.box")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.file == str(tmp_path / "out.box")
    assert not list(tmp_path.iterdir())


def test_the_mode_of_a_folder_is_what_it_and_its_files_have_in_common(tmp_path: Path) -> None:
    for name, bits in (("a", 0o664), ("b", 0o640)):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(bits)
    paths = [tmp_path / "a", tmp_path / "b", tmp_path / "gone"]
    assert common_mode(paths) == 0o640
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder").chmod(0o700)
    assert common_mode([tmp_path / "folder", *paths]) == 0o600
    assert common_mode([]) is None
