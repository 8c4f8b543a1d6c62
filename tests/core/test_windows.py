"""Windows, as far as a process without its modules shows: every module imports, files are written, locked and edited.

Nothing here runs on Windows; `windows.py` says what is imitated.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the imitation reads /proc")

PURE = ("codecs", "ggml", "gguf", "hf", "mlx_format", "models", "npydir", "onnx", "remote", "safetensors", "squizd",
        "uqff", "zstd", "ztensor")  # fmt: skip
"""Plugins without compiled code or a framework."""


def run(code: str, folder: Path, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    (folder / "locks").mkdir(exist_ok=True)
    environment = os.environ | {
        "WINDOWS_LOCKS": str(folder / "locks"),
        "SQUISH_CACHE": str(folder / "cache"),
        "PYTHONPATH": str(ROOT / "tests" / "helpers"),
    }
    code = f"import windows\n{textwrap.dedent(code)}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert not check or done.returncode == 0, done.stderr
    return done


def modules() -> list[str]:
    packages = [ROOT / "squish_core", *(path for name in PURE for path in (ROOT / "plugins" / name / "src").glob("*"))]
    names = []
    for package in packages:
        for path in sorted(package.rglob("*.py")) if package.is_dir() else ():
            names.append(".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__"))
    return [name for name in names if not name.endswith("__main__")]


def test_every_module_imports_without_posix_modules(tmp_path: Path) -> None:
    names = modules()
    assert len(names) > 300
    code = f"""
    import importlib, sys
    names = {names!r}
    missing = []
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing.append(error.name)
        except BaseException as error:
            if type(error).__name__ != "Skipped":
                raise
    posix = {{"fcntl", "resource", "termios", "pwd", "grp"}}
    assert not posix & set(missing), missing
    """
    run(code, tmp_path)


def test_a_file_is_opened_converted_and_edited(tmp_path: Path) -> None:
    run(
        """
        import numpy as np, squish_core as squish
        squish.save("a.safetensors", {"w": np.ones((64, 64), "f4"), "v": np.ones(8, "f4")})
        squish.convert("a.safetensors", "a.gguf", encode="q8_0")
        squish.convert("a.safetensors", "d", "npydir", encode="int8")
        squish.convert("a.safetensors", "a.zt")
        squish.convert("a.zt", "b.zt", overwrite=True)
        squish.convert("a.safetensors", "b.zt", overwrite=True)
        assert squish.verify("d").ok and squish.verify("b.zt", deep=True).ok
        from squish_cli import main
        assert main(["edit", "b.zt", "--set", "note=hello"]) == 0
        with squish.open("a.gguf") as file:
            assert np.allclose(file["w"].numpy(), 1, atol=1e-3)
        assert windows.offsets and min(windows.offsets) >= 1 << 62
        """,
        tmp_path,
    )
    left = [path.name for path in tmp_path.rglob(".*") if path.name != ".manifest_ready"]
    assert left == []


FORMATS = {
    "gguf ü.gguf": ("gguf", "q8_0", "gguf"),
    "hf ü": ("hf:method=gptq", "int4:group_size=32", None),
    "mlx ü": ("mlx", "int4:group_size=32", "hf"),
    "npydir ü": ("npydir", "int8", None),
    "onnx ü": ("onnx", "int4:group_size=32", None),
    "safetensors ü": ("safetensors", None, None),
    "squizd ü.squizd": ("squizd", "int4", None),
    "uqff ü": ("uqff", "q8_0", "hf"),
    "ztensor ü.zt": ("ztensor", None, None),
}
"""Name -> format, encoding, and names of the tensors where a default would ask for a tokenizer."""


def test_a_model_is_converted_to_each_format_checked_edited_and_cached(tmp_path: Path) -> None:
    """A small model with the tensors of SmolLM2; its name is not in ASCII, nor is its metadata."""
    run(
        f"""
        import json, numpy as np, squish_core as squish
        from pathlib import Path
        from squish_core.api import cached_folder, machine_memory, peak_memory, workers
        from squish_cli import main
        draw, wide, vocabulary = np.random.default_rng(0), 64, 96
        tensors = {{"model.embed_tokens.weight": (vocabulary, wide), "model.norm.weight": (wide,)}}
        for layer in range(2):
            for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"):
                tensors[f"model.layers.{{layer}}.{{name}}.weight"] = (wide, wide)
            for name, shape in {{"gate": (128, wide), "up": (128, wide), "down": (wide, 128)}}.items():
                tensors[f"model.layers.{{layer}}.mlp.{{name}}_proj.weight"] = shape
            for name in ("input", "post_attention"):
                tensors[f"model.layers.{{layer}}.{{name}}_layernorm.weight"] = (wide,)
        model = Path("Größe 模型")
        model.mkdir()
        values = {{name: draw.standard_normal(shape).astype("f2") for name, shape in tensors.items()}}
        squish.save(model / "model.safetensors", values)
        (model / "config.json").write_text(json.dumps({{
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": wide, "intermediate_size": 128,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": vocabulary,
            "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 128, "tie_word_embeddings": True,
            "torch_dtype": "float16", "_name_or_path": "模型"}}), encoding="utf-8")
        for name, (form, encode, rename) in {FORMATS!r}.items():
            target = Path(name)
            for _ in range(2):  # the second run replaces the first one's file
                if target.is_dir():
                    __import__("shutil").rmtree(target)
                squish.convert(model, target, form, encode=encode, rename=rename)
            for maps in (True, False):
                with squish.open(target, mmap=maps) as file:
                    assert len(file) and all(np.isfinite(each.numpy()).all() for each in file.values()), form
                del file
            assert squish.verify(target, deep=True).ok, form
        assert main(["diff", str(model), "ztensor ü.zt"]) == 0
        assert main(["edit", "ztensor ü.zt", "--set", "note=模型"]) == 0
        with squish.open("ztensor ü.zt") as file:
            assert "模型" in str(file.metadata)
        assert main(["doctor", "--json"]) == 0
        folder = cached_folder("demo", "one", lambda path: path.mkdir())
        assert main(["cache", "list"]) == 0
        assert main(["cache", "clear"]) == 0 and not folder.exists()
        assert workers() >= 1 and machine_memory()[0] is None and peak_memory() is None
        """,
        tmp_path,
    )
    assert not [path.name for path in tmp_path.rglob(".*.part")]


def test_two_edits_wait_for_each_other_and_lose_nothing(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"")
    code = """
    import time, sys
    from pathlib import Path
    from squish_convert.append import appended_file, locked_file
    for _ in range(20):
        with locked_file(Path("f")) as lock, appended_file(lock) as sink:
            sink.write(sys.argv[1].encode() if len(sys.argv) > 1 else b"x")
            time.sleep(0.002)
    """
    (tmp_path / "locks").mkdir()
    environment = os.environ | {"WINDOWS_LOCKS": str(tmp_path / "locks"), "PYTHONPATH": str(ROOT / "tests" / "helpers")}
    command = [sys.executable, "-c", f"import windows\n{textwrap.dedent(code)}"]
    writers = [subprocess.Popen([*command, letter], cwd=tmp_path, env=environment) for letter in "ab"]
    assert [writer.wait(120) for writer in writers] == [0, 0]
    assert sorted((tmp_path / "f").read_bytes()) == sorted(b"a" * 20 + b"b" * 20)


def test_a_lock_that_is_not_released_is_an_error(tmp_path: Path) -> None:
    done = run(
        """
        import json
        from pathlib import Path
        from squish_core.errors import WriteError
        from squish_convert.append import locked_file
        Path("f").write_bytes(b"one")
        with locked_file(Path("f")):
            assert Path("f").read_bytes() == b"one"  # the lock is not on the data
            try:
                with locked_file(Path("f"), seconds=0.1):
                    raise AssertionError
            except WriteError as error:
                print(json.dumps(error.code))
        with locked_file(Path("f"), seconds=0):
            pass
        """,
        tmp_path,
    )
    assert json.loads(done.stdout) == "locked"


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_temporaries_are_locked_while_their_writer_lives_and_removed_afterwards(kind: str, tmp_path: Path) -> None:
    code = f"""
    import os, time
    from pathlib import Path
    from squish_core.io.atomic import atomic_file, atomic_folder
    from squish_core.io.atomic import temporaries, remove_dead
    kind = {kind!r}
    write = atomic_file if kind == "file" else atomic_folder
    with write(Path("t")) as sink:
        (temporary,) = temporaries(Path())
        assert temporary.state == "live", temporary
        assert remove_dead(Path("t")) == []
        if kind == "folder":
            with sink.member("x") as member:
                member.write(b"1")
        else:
            sink.write(b"1")
    assert list(temporaries(Path())) == []
    assert [path.name for path in Path("t").iterdir()] == ["x"] if kind == "folder" else Path("t").read_bytes() == b"1"
    try:
        with write(Path("u")):
            raise KeyError
    except KeyError:
        pass
    assert list(temporaries(Path())) == []
    with write(Path("v")):  # killed
        os._exit(3)
    """
    assert run(code, tmp_path, check=False).returncode == 3
    run(
        """
        import os, time
        from pathlib import Path
        from squish_core.io.atomic import temporaries, remove_dead
        (left,) = temporaries(Path())
        assert left.state == "dead", left
        assert remove_dead(Path("v")) == []  # its writer may be about to rename it
        for path in (left.path, *left.path.rglob("*")):
            os.utime(path, (time.time() - 60,) * 2)
        assert len(remove_dead(Path("v"))) == 1
        assert list(temporaries(Path())) == []
        """,
        tmp_path,
    )


def test_a_target_that_is_mapped_is_not_replaced_and_the_error_says_so(tmp_path: Path) -> None:
    done = run(
        """
        import json, numpy as np, squish_core as squish
        from squish_core.io import system
        system.PATIENCE = 0.05
        squish.save("a.safetensors", {"w": np.ones((64, 64), "f4")})
        with squish.open("a.safetensors") as file:
            array = file["w"].numpy()
            try:
                squish.save("a.safetensors", {"w": np.zeros((64, 64), "f4")})
            except squish.SquishError as error:
                print(json.dumps([error.code, str(error)]))
            assert (array == 1).all()
        del array, file
        squish.save("a.safetensors", {"w": np.zeros((64, 64), "f4")})
        """,
        tmp_path,
    )
    code, message = json.loads(done.stdout)
    assert code == "unwritable"
    assert "cannot be replaced or renamed while it is open" in message
    assert not list(tmp_path.glob(".*part"))


def test_a_job_runs_and_its_ranges_are_written(tmp_path: Path) -> None:
    run(
        """
        import numpy as np, os
        from squish_core.io import system
        fd = os.open("f", os.O_RDWR | os.O_CREAT)
        system.write_at(fd, memoryview(b"world"), 6)
        system.write_at(fd, memoryview(b"hello "), 0)
        os.close(fd)
        assert open("f", "rb").read() == b"hello world"
        assert system.user_name()
        assert system.peak_memory() is None
        system.sync_files(__import__("pathlib").Path())
        from pathlib import Path
        from squish_convert.job.staging import Staging
        from squish_core.errors import WriteError
        staging = Staging(Path("t"), "0" * 16, is_folder=True)
        staging.create({"x": 3, "sub/y": 0}, None)
        try:
            Staging(Path("t"), "0" * 16, is_folder=True).lock()
            raise AssertionError
        except WriteError as error:
            assert error.code == "locked"
        staging.publish()
        staging.remove()
        assert sorted(path.name for path in Path("t").rglob("*")) == ["sub", "x", "y"]
        """,
        tmp_path,
    )
    assert not list(tmp_path.glob(".*"))
