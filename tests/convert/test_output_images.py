"""The output image: a target's layout before it is written, and any range of its bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from squish_convert.api import output_image, plan_conversion
from squish_convert.image import PartExtent
from squish_convert.panels import EncodedPanels
from squish_convert.virtual import ImageReader, as_format
from toys import files_of

import squish_core as squish
from squish_core.api import UsageError
from squish_core.errors import ClosedError

RANDOM = np.random.default_rng(7)
LAYER = "model.layers.0.mlp.up_proj.weight"
ARRAYS = {
    "model.norm.weight": RANDOM.standard_normal(96, np.float32),
    LAYER: RANDOM.standard_normal((160, 256), np.float32),
    "model.layers.0.mlp.half.weight": RANDOM.standard_normal((7, 3)).astype(np.float16),
    "model.empty": np.zeros((0, 32), np.float32),
}
TARGETS = [
    ("gguf", None), ("gguf", "q8_0"), ("gguf", "q4_k"), ("safetensors", None), ("safetensors", "f16"),
    ("safetensors:max_shard_size=40KB", None), ("hf:method=gptq", "int4"), ("mlx", "q4"), ("npydir", "int8"),
    ("uqff", "q4_0"), ("ztensor:digest=none", None), ("ztensor:digest=none", "q8_0"),
    ("mlpackage", "lut4"),
]  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("image") / "model.safetensors"
    squish.save(path, ARRAYS, metadata={"format": "pt"})
    return path


@pytest.mark.parametrize(("to", "encode"), TARGETS)
def test_an_image_equals_the_written_file(source: Path, tmp_path: Path, to: str, encode: str | None) -> None:
    with squish.open(source) as file:
        target = tmp_path / f"out.{to.partition(':')[0]}"
        plan = plan_conversion(file, target, to, encode)
        image = output_image(plan, file)
        squish.convert(file, target, to, encode)
        reader = ImageReader(plan, file, image)
        files = files_of(target)
        assert {output.name: output.size for output in image.files} == {name: len(data) for name, data in files.items()}
        for output in image.files:
            assert reader.read(output, 0, output.size) == files[output.name]


@pytest.mark.parametrize(("to", "encode"), [("gguf", "q4_k"), ("safetensors", "f16"), ("mlx", "q4")])
def test_any_range_equals_the_written_bytes(source: Path, tmp_path: Path, to: str, encode: str) -> None:
    with squish.open(source) as file:
        plan = plan_conversion(file, tmp_path / "out", to, encode)
        image = output_image(plan, file)
        squish.convert(file, tmp_path / "out", to, encode)
        files = files_of(tmp_path / "out")
        reader = ImageReader(plan, file, image, cached=1)
        large = max(image.files, key=lambda output: output.size)

        @given(st.integers(0, large.size), st.integers(0, 5000))
        @settings(max_examples=200, deadline=None)
        def check(start: int, length: int) -> None:
            stop = min(start + length, large.size)
            assert reader.read(large, start, stop) == files[large.name][start:stop]

        check()


def test_a_range_of_a_copy_reads_that_range_and_a_panel_is_encoded_once(source: Path, monkeypatch: Any) -> None:
    with squish.open(source) as file:
        plan = plan_conversion(file, Path("out.gguf"), encode={LAYER: "q8_0"})
        image = output_image(plan, file)
        reader, encoded = ImageReader(plan, file, image), []
        parts = EncodedPanels.parts

        def counted(self: EncodedPanels, region: Any) -> Any:
            encoded.append(region)
            return parts(self, region)

        monkeypatch.setattr(EncodedPanels, "parts", counted)
        (output,) = image.files
        for start in range(output.size - 1, 0, -1):
            reader.read(output, start, start + 1)
        assert len(encoded) == 1


def test_the_image_is_plain_data(source: Path) -> None:
    with squish.open(source) as file:
        image = output_image(plan_conversion(file, Path("out.gguf"), encode={LAYER: "q8_0"}), file)
    data = json.loads(json.dumps(image.to_dict()))
    (head, *rest) = data["files"][0]["extents"]
    assert (head[0], len(head[2])) == (0, 64)
    assert {row[2] for row in rest if len(row) == 4} == ARRAYS.keys() - {"model.empty"}
    assert PartExtent(LAYER, "data", 160 * 8 * 34) in image.files[0].extents


@pytest.mark.parametrize("to", ["squizd", "ztensor:encoding=zstd,digest=none", "ztensor:digest=sha256"])
def test_a_target_whose_layout_depends_on_the_bytes_has_no_image(source: Path, to: str) -> None:
    with squish.open(source) as file:
        plan = plan_conversion(file, Path("out"), to, "int4" if to == "squizd" else None, only=[LAYER])
        with pytest.raises(UsageError) as caught:
            output_image(plan, file)
    assert caught.value.code == "image"


@pytest.mark.parametrize(("to", "encode"), [("gguf", "q8_0"), ("mlx", "q4"), ("npydir", "int8")])
def test_a_checkpoint_opens_as_another_format_without_being_written(
    source: Path, tmp_path: Path, to: str, encode: str
) -> None:
    squish.convert(source, tmp_path / "out", to, encode)
    with (
        squish.open(source) as file,
        squish.open(as_format(file, to, encode)) as virtual,
        squish.open(tmp_path / "out") as real,
    ):
        assert (virtual.format, list(virtual), virtual.metadata) == (real.format, list(real), real.metadata)
        for name in real:
            np.testing.assert_array_equal(virtual[name].numpy(), real[name].numpy())
        for name, opened in {"a": virtual, "b": real}.items():
            squish.convert(opened, tmp_path / f"{name}.zt", encode="f32")
    assert (tmp_path / "a.zt").read_bytes() == (tmp_path / "b.zt").read_bytes()


def test_a_virtual_file_of_an_absent_format_is_refused(source: Path) -> None:
    with squish.open(source) as file, pytest.raises(squish.SquishError) as caught:
        squish.as_format(file, "nosuch")
    assert caught.value.code == "not-installed"


@pytest.mark.parametrize("to", ["gguf", "hf"])
def test_a_virtual_file_closes_with_the_file_that_it_presents(source: Path, to: str) -> None:
    with squish.open(source) as file:
        virtual: Any = as_format(file, to)
        member = virtual.member(virtual.members()[0]) if virtual.is_dir else virtual
        first = member.read(0, 4)
        panels = member.read(member.size - 4, 4)
    assert len(first) == len(panels) == 4
    with pytest.raises(ClosedError):
        member.read(0, 4)


@pytest.mark.parametrize("to", ["mlx", "ztensor"])
@pytest.mark.parametrize("threads", ["1", "2"])
def test_parts_that_are_made_together_are_written_at_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str, threads: str
) -> None:
    values = np.random.default_rng(3).normal(size=(2100, 1024)).astype("f4")  # three panels
    tensors = {f"layers.{number}.weight": values[:, :: 1 - 2 * number] for number in range(2)}
    squish.save(tmp_path / "model.safetensors", tensors)

    def refuse() -> Any:
        raise AssertionError("a part went through a temporary file")

    monkeypatch.setenv("SQUISH_THREADS", threads)
    monkeypatch.setattr("squish_convert.streams.tempfile.TemporaryFile", refuse)
    squish.convert(tmp_path / "model.safetensors", tmp_path / "out", to, encode="int4")
    with squish.open(tmp_path / "model.safetensors") as file:
        virtual: Any = as_format(file, to, "int4")
        for output in virtual.reader.image.files:
            written = (tmp_path / "out" / output.name).read_bytes()
            assert written == virtual.reader.read(output, 0, output.size)
