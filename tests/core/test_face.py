"""What a program gets from the objects of the public face is what the command line prints."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from squish_cli.app import run

import squish_core as squish
from squish_core import api
from squish_core.display import fit_all
from squish_core.model import CodecSpec, Encoding, Index

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def model(tmp_path: Path) -> Iterator[squish.File]:
    rng = np.random.default_rng(0)
    tensors = {name: rng.standard_normal((4, 64), np.float32) for name in ("a", "b")} | {"c": np.ones(3, np.float32)}
    squish.save(tmp_path / "model.gguf", tensors, encode={"a": "q8_0"})
    with squish.open(tmp_path / "model.gguf") as file:
        yield file


@pytest.mark.parametrize(
    ("words", "call"),
    [
        (["info", "{}"], lambda file: file.summary()),
        (["plan", "{}"], lambda file: file.plan()),
        (["plan", "{}", "--backend", "numpy"], lambda file: file.plan("numpy")),
        (["doctor"], lambda file: squish.diagnose()),
    ],
    ids=["info", "plan", "plan-backend", "doctor"],
)
def test_the_command_prints_the_object(
    model: squish.File, capsys: pytest.CaptureFixture[str], words: list[str], call: object
) -> None:
    result = call(model)  # type: ignore[operator]
    words = [word.format(model.path) for word in words]
    run(words)
    free_memory = [line for line in str(result).splitlines() if "free)" in line]
    shown = [line for line in capsys.readouterr().out.splitlines() if "free)" not in line]
    assert shown == [line for line in str(result).splitlines() if line not in free_memory]
    run([*words, "--json"])
    printed, data = json.loads(capsys.readouterr().out), json.loads(json.dumps(result.to_dict(), default=str))
    only_printed = {"schema", "components", "lineage", "pending_caches"} - data.keys()
    printed = {key: value for key, value in printed.items() if key not in only_printed}
    for each in (printed, data):
        each.get("machine", {}).pop("free_memory", None)
    assert printed == data
    assert result._repr_html_().startswith('<div class="squish">')


def test_the_first_file_that_is_shown_loads_no_numpy() -> None:
    code = "import sys, squish_core; squish_core.open(sys.argv[1])._repr_html_(); print('numpy' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code, DATA / "sample.safetensors"], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("False\n", "")


@pytest.mark.parametrize("name", ["gguf", "npydir", "safetensors", "squizd", "uqff", "zt"])
def test_a_summary_adds_up(name: str) -> None:
    with squish.open(DATA / f"sample.{name}") as file:
        summary = file.summary()
        assert (summary.format, summary.tensors, summary.size) == (file.format, len(file), file.size)
        assert summary.parameters == sum(tensor.size for tensor in file.values())
        assert sum(kind.size for kind in summary.codecs) == sum(tensor.nbytes for tensor in file.values())
        assert sum(ref.size for ref in summary.files) == file.size
        assert summary.metadata == file.metadata


def test_a_plan_holds_the_chain_of_each_tensor(model: squish.File) -> None:
    plan = model.plan("numpy")
    assert list(plan.chains) == list(model)
    assert (plan.mode, plan.backends, plan.errors, plan.whole) == ("fold", {"numpy": 3}, {}, None)
    assert plan.chains["a"].to_dict() == model["a"].plan("numpy").to_dict()
    assert model["a"].chain("numpy").to_dict() == model["a"].plan("numpy").to_dict()


def test_a_plan_holds_the_error_of_a_tensor_that_nothing_runs(model: squish.File) -> None:
    plan = model.plan("numpy", op="embed")
    assert list(plan.chains) == ["a", "b"]
    assert plan.errors["c"].code == "rank"
    assert "none" in str(plan)


@pytest.mark.parametrize("wrong", [{"policy": "best"}, {"op": "sing"}, {"backend": "nowhere"}])
def test_a_plan_of_a_wrong_argument_is_an_error(model: squish.File, wrong: dict[str, str]) -> None:
    with pytest.raises(squish.SquishError) as error:
        model.plan(**wrong)
    assert error.value.code in ("policy", "op", "not-installed")


class Runtime(api.Backend):
    id, whole = "runtime", True

    def probe(self) -> api.Availability:
        return api.Availability(ok=True)

    def offer(self, request: api.Request) -> api.Offer | api.Refusal:
        if request.codec is not None:
            return api.Refusal(why="takes whole models alone", backend=self.id, encoding=request.encoding)
        return api.Offer(
            backend=self.id, encoding=request.encoding, mode="delegate", ops=("linear",), storage="by its own runtime"
        )


class RuntimePlugin:
    @staticmethod
    @api.hookimpl
    def squish_backends() -> list[api.BackendInfo]:
        return [api.BackendInfo(id="runtime", title="A runtime", factory="test_face:Runtime")]

    @staticmethod
    @api.hookimpl
    def squish_codecs() -> list[api.CodecInfo]:
        return [api.CodecInfo(id="package", title="A whole model", factory="test_face:Runtime", kind="whole")]


@pytest.mark.parametrize("installed", [True, False])
def test_a_plan_tells_who_takes_the_whole_model(
    model: squish.File, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    import sys

    from attrs import evolve

    monkeypatch.setitem(sys.modules, "test_face", sys.modules[__name__])
    index: Index = evolve(model.index, whole=(Encoding(codec=CodecSpec("package"), parts={}),))
    registry = squish.Registry(extra=[RuntimePlugin()] if installed else [])
    plan = squish.File(model.source, index, registry, model.limits).plan()
    assert len(plan.chains) == 3
    if installed:
        assert isinstance(plan.whole, squish.Chain)
        assert (plan.mode, plan.whole.chosen.backend) == ("delegate", "runtime")
        assert plan.to_dict()["whole"]["chosen"]["backend"] == "runtime"
    else:
        assert isinstance(plan.whole, squish.SquishError)
        assert plan.mode != "delegate"
    assert str(plan).startswith("the whole model\n")


def test_a_benchmark_prints_what_the_command_prints() -> None:
    result = squish.benchmark(DATA / "sample.safetensors")
    assert str(result).splitlines() == fit_all(result.lines())
    assert result.to_dict()["rows"][0]["what"] == "open"


@pytest.mark.parametrize("name", ["dense", "quantized", "bf16"])
def test_dlpack_hands_out_values_that_may_be_written(tmp_path: Path, name: str) -> None:
    values = np.arange(64, dtype="f4").reshape(2, 32)
    path = tmp_path / "model.gguf"
    squish.save(path, {name: values}, encode={"dense": None, "quantized": "q8_0", "bf16": "bf16"}[name])
    stored = path.read_bytes()
    with squish.open(path) as file:
        tensor = file[name]
        decoded = tensor.numpy()
        array = torch_array(tensor)
        assert np.array_equal(array, decoded.astype("f4"))
        array[0, 0] = -1
        assert np.array_equal(tensor.numpy(), decoded)
        assert decoded[0, 0] == 0
    assert path.read_bytes() == stored


def torch_array(tensor: squish.Tensor) -> np.ndarray:
    """The array that a consumer of DLPack gets; NumPy has no bf16, so its own copy stands in for it."""
    if tensor.dtype == "bf16":
        from squish_core.io.buffer import copy_of_dlpack

        return copy_of_dlpack(tensor).astype("f4")
    assert tensor.__dlpack_device__() == (1, 0)
    return np.from_dlpack(tensor)  # type: ignore[arg-type]


def test_dlpack_without_a_copy_is_refused_where_values_must_be_decoded(model: squish.File) -> None:
    with pytest.raises(BufferError, match="must be decoded"):
        model["a"].__dlpack__(copy=False)
    with pytest.raises(BufferError, match="CPU"):
        model["a"].__dlpack__(dl_device=(2, 0))


def wide(tensor: api.TensorSpec) -> str | None:
    """q8_0 for matrices, q4_0 for those called b, nothing for the rest."""
    return None if len(tensor.shape) < 2 else "q4_0" if tensor.name == "b" else "q8_0"


def test_encode_takes_a_function_of_the_tensor(model: squish.File, tmp_path: Path) -> None:
    arrays = {"a": np.ones((2, 32), "f4"), "b": np.ones((2, 32), "f4"), "c": np.ones(3, "f4")}
    for number, source in enumerate((arrays, model)):
        report = squish.convert(source, tmp_path / f"{number}.zt", encode=wide)
        assert [step.target for step in report.steps] == ["ggml.q8_0", "ggml.q4_0", "f32"]
    report = squish.save(tmp_path / "saved.zt", arrays, encode=wide)
    assert [step.target for step in report.steps] == ["ggml.q8_0", "ggml.q4_0", "f32"]
    assert not report.unused


@pytest.mark.parametrize("answer", [3, b"q8_0", "nonsense"])
def test_a_function_must_return_a_specification_or_none(tmp_path: Path, answer: object) -> None:
    with pytest.raises(squish.UsageError) as error:
        squish.save(tmp_path / "saved.gguf", {"a": np.ones((2, 32), "f4")}, encode=lambda tensor: answer)
    assert error.value.code == "encode"
    assert not (tmp_path / "saved.gguf").exists()


def test_a_possibly_full_disk_is_a_note_if_the_size_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    target, options = tmp_path / "out.zt", "ztensor:encoding=zstd"
    roomy = squish.convert({"zeros": np.zeros(1 << 16, "f4")}, target, options, dry_run=True)
    assert (roomy.size, roomy.notes) == (None, ())
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=1000))
    for dry_run in (True, False):
        (note,) = squish.convert({"zeros": np.zeros(1 << 16, "f4")}, target, options, dry_run=dry_run).notes
        assert "about 262,144 bytes before any compression, and 1,000 bytes are free" in note
    assert target.stat().st_size < 1000


def test_a_file_system_that_reports_no_size_is_not_called_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(total=0, used=0, free=0))  # such as /proc
    assert squish.save(tmp_path / "saved.gguf", {"w": np.ones((2, 32), "f4")}).size


def test_a_target_below_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(squish.WriteError) as caught:
        squish.save(tmp_path / "file" / "saved.gguf", {"w": np.ones((2, 32), "f4")})
    assert (caught.value.code, caught.value.file) == ("file-kind", str(tmp_path / "file"))
