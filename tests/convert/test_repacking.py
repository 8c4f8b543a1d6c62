"""Codes go from family to family exactly, or are refused; never through values. Keeps docs/repacking.md true."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from squish_codecs.affine import repack
from squish_testing import expect_error
from squish_testing.sources import memory_file

import squish_core as squish
from squish_core.api import Codec, CodecSpec, SquishError, TensorSpec

ROOT = Path(__file__).resolve().parents[2]
HF, MLX = (ROOT / "plugins" / name / "tests" / "data" for name in ("hf", "mlx_format"))
PAGE = ROOT / "docs" / "repacking.md"
NAME = "model.layers.0.self_attn.k_proj.weight"
SOURCES: dict[str, Path | str] = {
    "GGUF Q4_0": "gguf:q4_0",
    "GGUF Q4_1": "gguf:q4_1",
    "GGUF Q8_0": "gguf:q8_0",
    "GGUF Q4_K": "blocks q4_k",
    "GGUF Q5_K": "blocks q5_k",
    "GGUF MXFP4": "gguf:mxfp4",
    "GGUF NVFP4": "gguf:nvfp4",
    "SQUIZD INT4": "squizd:int4",
    "SQUIZD INT4, f16 scales": "squizd:int4:scale_dtype=f16",
    "SQUIZD INT4, from Q4_0": "gguf:q4_0 squizd",
    "SQUIZD INT2": "squizd:int2",
    "npy INT8": "npydir:int8",
    "npy INT8, groups of 32": "npydir:int8:group_size=32",
    "npy INT4": "npydir:int4",
    "npy INT4, symmetric": "npydir:affine:bits=4,zero=7,group_size=32",
    "npy INT4, from Q4_1": "gguf:q4_1 npydir",
    "npy INT3": "npydir:int3",
    "npy INT2": "npydir:int2",
    "npy NF4": "npydir:nf4",
    "MLX 4 bit, from Q4_0": "gguf:q4_0 mlx",
    "MLX 4 bit": MLX / "mlx-affine_b4_g64",
    "MLX 8 bit": MLX / "mlx-affine_b8_g32",
    "MLX mxfp4": MLX / "mlx-mxfp4",
    "MLX nvfp4": MLX / "mlx-nvfp4",
    "GPTQ 4 bit, symmetric": HF / "gptq-v1_w4_g128_sym",
    "GPTQ 4 bit": HF / "gptq-v1_w4_g64_asym",
    "GPTQ 3 bit": HF / "gptq-v1_w3_g32_asym",
    "GPTQ, act-order": HF / "gptq-v2_w4_g64_asym_actorder",
    "AWQ": HF / "awq-gemm_w4_g128",
    "compressed-tensors, symmetric": HF / "compressed-tensors-w4_g32_sym",
    "compressed-tensors": HF / "compressed-tensors-w4_g128_asym",
    "compressed-tensors mxfp4": HF / "compressed-tensors-mxfp4a16",
    "compressed-tensors nvfp4": HF / "compressed-tensors-nvfp4a16",
    "ModelOpt NVFP4": "modelopt:nvfp4",
    "bitsandbytes NF4": HF / "bitsandbytes-nf4_double",
}
TARGETS = {
    "GGUF": "gguf", "MLX": "mlx", "GPTQ": "hf:method=gptq", "GPTQ v2": "hf:method=gptq_v2", "AWQ": "hf:method=awq",
    "compressed-tensors": "hf:method=compressed-tensors", "UQFF": "uqff", "zTensor 2": "ztensor:wire=2",
    "SQUIZD": "squizd", "npy": "npydir",
}  # fmt: skip


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The sources; those without a checkpoint are made here from seeded values, in one conversion or two."""
    folder, files = tmp_path_factory.mktemp("sources"), {}
    values = np.random.default_rng(0).normal(size=(64, 256)).astype("<f4")
    header = {NAME: {"dtype": "F32", "shape": [64, 256], "data_offsets": [0, values.nbytes]}}
    text = json.dumps(header).encode()
    dense = folder / "plain.safetensors"
    dense.write_bytes(len(text).to_bytes(8, "little") + text + values.tobytes())
    for name, source in SOURCES.items():
        if isinstance(source, Path):
            files[name] = source
            continue
        if source.startswith("blocks "):
            files[name] = folder / f"{name}.gguf"
            squish.convert(random_blocks(source.removeprefix("blocks ")), files[name])
            continue
        files[name] = dense
        for step in source.split():
            to, _, kind = step.partition(":")
            target = folder / f"{name}.{to}"
            squish.convert(files[name], target, METHODS.get(to, to), encode=kind or None)
            files[name] = target
    return files


METHODS = {"modelopt": "hf:method=modelopt"}
"""Formats of sources that are methods of another one."""


def random_blocks(kind: str) -> squish.File:
    """A matrix of random K blocks with scales of ordinary size."""
    rng, codec = np.random.default_rng(5), CodecSpec(f"ggml.{kind}")
    spec = TensorSpec(name=NAME, shape=(64, 256), dtype="f32")
    ((_, shape),) = squish.registry().codec(codec).parts(spec).values()
    blocks = rng.integers(0, 256, shape, np.uint8)
    blocks[:, :4] = rng.uniform(1e-4, 1e-2, (64, 2)).astype("<f2").view(np.uint8)
    return memory_file(squish.registry(), {NAME: (spec, codec, {"data": blocks})})[0]


def cell(source: Path, target: Path, to: str) -> str:
    """What becomes of one tensor: how exactly it was carried, checked by value, or why it was not."""
    try:
        (step,) = squish.convert(source, target, to, only=NAME).steps
    except SquishError as error:
        if error.code not in ("refused", "act-order"):
            raise
        return "act-order" if error.code == "act-order" else "not exactly" if "do not fit" in error.message else "no"
    with squish.open(source) as old, squish.open(target) as new:
        if step.exactness.kind == "bounded":
            np.testing.assert_array_max_ulp(new[NAME].numpy(), old[NAME].numpy(), 2)
            return "rounded"
        np.testing.assert_array_equal(new[NAME].numpy(), old[NAME].numpy())
    return {"copy": "bytes", "repack": "values"}[step.action]


def test_the_matrix_of_the_docs_holds(sources: dict[str, Path], tmp_path: Path) -> None:
    rows = [["from / to", *TARGETS], ["---"] * (1 + len(TARGETS))]
    for number, (name, source) in enumerate(sources.items()):
        cells = [cell(source, tmp_path / f"{number}-{column}", to) for column, to in enumerate(TARGETS.values())]
        rows.append([name, *cells])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    before, mark, rest = PAGE.read_text().partition("<!-- matrix -->\n")
    written, end, after = rest.partition("\n<!-- end -->")
    if os.environ.get("SQUISH_WRITE_DOCS"):
        PAGE.write_text(f"{before}{mark}{table}{end}{after}")
    else:
        assert written == table, "run with SQUISH_WRITE_DOCS=1 to write the page"


def test_repacking_never_touches_values(
    sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("values were touched")

    registry = squish.registry()
    carrying = {
        name: registry.codec_type(name) for name, entry in registry.codecs.items() if entry.info.kind == "tensor"
    }
    carrying = {name: codec for name, codec in carrying.items() if codec.from_codes is not Codec.from_codes}
    for owner in {owner for codec in carrying.values() for owner in codec.__mro__}:
        for method in {"decode", "encode"} & vars(owner).keys():
            monkeypatch.setattr(owner, method, fail)
    monkeypatch.setattr(repack, "_values", fail)
    seen = set()
    pairs = [
        ("GGUF Q4_0", "hf:method=gptq"), ("GPTQ 4 bit, symmetric", "gguf"), ("GPTQ 4 bit", "mlx"), ("GGUF Q8_0", "mlx"),
        ("AWQ", "hf:method=compressed-tensors"), ("compressed-tensors", "hf:method=awq"),
        ("GPTQ 4 bit", "squizd"), ("SQUIZD INT4, from Q4_0", "ztensor"), ("SQUIZD INT4, f16 scales", "mlx"),
        ("SQUIZD INT2", "uqff"), ("compressed-tensors mxfp4", "gguf"), ("GGUF MXFP4", "mlx"), ("MLX nvfp4", "gguf"),
        ("GGUF MXFP4", "hf:method=compressed-tensors"), ("MLX nvfp4", "hf:method=compressed-tensors"),
        ("bitsandbytes NF4", "npydir"), ("ModelOpt NVFP4", "gguf"),
    ]  # fmt: skip
    for number, (name, to) in enumerate(pairs):
        (step,) = squish.convert(sources[name], tmp_path / str(number), to, only=NAME).steps
        assert (step.action, str(step.exactness)) == ("repack", "values(f32)")
        seen |= {step.origin.codec.id, step.spec.encodings[0].codec.id} & carrying.keys()
    assert seen == {
        "affine",
        "ggml.q4_0",
        "ggml.q8_0",
        "squizd.int4",
        "squizd.int2",
        "mx",
        "ggml.mxfp4",
        "ggml.nvfp4",
        "ggml.scaled_nvfp4",
        "palette",
    }


def test_a_global_scale_goes_into_gguf_and_back(sources: dict[str, Path], tmp_path: Path) -> None:
    source, blocks, back = sources["ModelOpt NVFP4"], tmp_path / "blocks.gguf", tmp_path / "back"
    squish.convert(source, blocks, only=NAME)
    (step,) = squish.convert(blocks, back, "hf:method=modelopt").steps
    assert (step.action, str(step.exactness)) == ("repack", "values(f32)")
    with squish.open(source) as first, squish.open(back) as last:
        for role, part in first[NAME].parts().items():
            assert bytes(part.raw) == bytes(last[NAME].parts()[role].raw)


def test_experts_with_global_scales_become_one_stack(tmp_path: Path) -> None:
    rng, name = np.random.default_rng(2), "blk.0.ffn_up_exps.weight"
    params = {"block_size": 16, "scale_dtype": "f8_e4m3", "global_scale": "multiply"}
    codec, parts = squish.registry().codec_type("mx"), {}
    for number in range(3):
        encoded = codec.from_params(params).encode(rng.normal(size=(8, 64)).astype(np.float32))
        parts |= {f"{number}.{role}": array for role, array in encoded.items()}
    spec = TensorSpec(name=name, shape=(3, 8, 64), dtype="f32")
    stack, _ = memory_file(squish.registry(), {name: (spec, CodecSpec("stack", {}, CodecSpec("mx", params)), parts)})
    (step,) = squish.convert(stack, tmp_path / "stack.gguf").steps
    assert (step.action, str(step.exactness)) == ("repack", "values(f32)")
    with squish.open(tmp_path / "stack.gguf") as file:
        np.testing.assert_array_equal(file[name].numpy(), stack[name].numpy())
        assert file[name].parts()["global_scale"].shape == (3,)


@pytest.mark.parametrize(("kind", "bits"), [("q4_k", 6), ("q5_k", 7)])
def test_k_blocks_go_to_mlx_with_scales_of_float32(tmp_path: Path, kind: str, bits: float) -> None:
    """d * scale and dmin * minimum are exact in float32; q * scale - minimum rounds once in both forms."""
    (step,) = squish.convert(random_blocks(kind), tmp_path / "out", "mlx").steps
    assert (step.action, str(step.exactness), step.bits) == ("repack", "values(f32)", bits)
    with squish.open(tmp_path / "out") as target:
        params = target[NAME].spec.encodings[0].codec.params
        assert (params["group_size"], params["offset"], target[NAME].parts()["scale"].dtype) == (32, "bias", "f32")


@pytest.mark.parametrize("way", ["", "ztensor:wire=2", "gguf"])
def test_gpt_oss_comes_back_byte_for_byte(way: str, tmp_path: Path) -> None:
    source = HF / "mxfp4-gptoss-experts2"
    between = tmp_path / "between"
    if way:
        squish.convert(source, between, way)
    conversion = squish.convert(between if way else source, tmp_path / "out", "hf:method=mxfp4")
    assert {step.action for step in conversion.steps} <= {"copy", "repack"}
    with squish.open(source, "safetensors") as old, squish.open(tmp_path / "out", "safetensors") as new:
        assert set(old) == set(new)
        for key in old:
            assert (old[key].dtype, old[key].shape) == (new[key].dtype, new[key].shape)
            assert old[key].numpy().tobytes() == new[key].numpy().tobytes(), key
    with squish.open(tmp_path / "out") as new:
        assert (new.format, new.problems) == ("hf", ())
    with expect_error(SquishError, code="refused", tensor="model.layers.0.self_attn.k_proj.weight", found="mx"):
        squish.convert(HF / "compressed-tensors-mxfp4a16", tmp_path / "matrices", "hf:method=mxfp4")


def test_gpt_oss_becomes_gguf_with_its_codes(tmp_path: Path) -> None:
    source, name = HF / "mxfp4-gptoss-experts2", "model.layers.0.mlp.experts.down_proj"
    squish.convert(source, tmp_path / "a.gguf", "gguf")
    with squish.open(source) as old, squish.open(tmp_path / "a.gguf") as new:
        assert {str(tensor.codec) for tensor in new.values()} == {"dense", "ggml.mxfp4"}
        for key in old:
            np.testing.assert_array_equal(new[key].numpy(), old[key].numpy())
        blocks = new[name].parts()["data"].numpy().reshape(-1, 17)
        stored = old[name].parts()
        np.testing.assert_array_equal(blocks[:, 0], np.asarray(stored["scale"].numpy()).view(np.uint8).reshape(-1))
