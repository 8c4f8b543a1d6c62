"""Windows, as far as a process without its modules shows: every module imports, files are written, locked and edited.

Nothing here runs on Windows; `windows.py` says what is imitated.
"""

from __future__ import annotations

import json
import os
import re
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
POSIX_ONLY = re.compile(
    r"\bos\.(?:pwrite|pread|preadv|pwritev|sync|fchmod|fchown|chown|getuid|geteuid|getgid|sched_getaffinity|fork|"
    r"copy_file_range|sendfile|statvfs|uname|killpg|setsid|mkfifo|getloadavg|O_NOFOLLOW|O_NONBLOCK)\b"
    r"|import (?:fcntl|resource|termios|pwd|grp)\b|SIGKILL|SIGALRM|SIGPIPE|SIGHUP"
)


def run(code: str, folder: Path, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    (folder / "locks").mkdir(exist_ok=True)
    environment = os.environ | {"WINDOWS_LOCKS": str(folder / "locks"), "PYTHONPATH": str(ROOT / "tests" / "helpers")}
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


def test_what_only_posix_has_is_guarded() -> None:
    """Each use is in `io/system.py`, or in a file that asks whether the system has it."""
    unguarded = []
    for path in [*(ROOT / "squish_core").rglob("*.py"), *(ROOT / "plugins").glob("*/src/**/*.py")]:
        text = path.read_text()
        for found in sorted(set(POSIX_ONLY.findall(text))):
            name = found.rpartition(".")[2].rpartition(" ")[2]
            asks = rf"hasattr\(os, \"{name}\"\)|getattr\(os, \"{name}\"|AttributeError\b|sys\.platform == \"linux\""
            if path != ROOT / "squish_core/io/system.py" and not re.search(asks, text):
                unguarded.append(f"{path.relative_to(ROOT)}: {found}")
    assert unguarded == []


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
