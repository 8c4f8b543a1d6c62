"""The folder cache: bytes are right or fetched again, whatever happens to the folder."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from squish_remote.folder_cache import FolderCache

import squish_core as squish
from squish_core import api as squish_api

VALUES = np.arange(400_000, dtype="f4").reshape(400, 1000)


@pytest.fixture
def options(server: Any, tmp_path: Path) -> dict[str, Any]:
    """Options with a cache, for the server's `m.safetensors` of 1.6 MB."""
    squish.save(tmp_path / "m.safetensors", {"w": VALUES})
    server.files["m.safetensors"] = (tmp_path / "m.safetensors").read_bytes()
    return {"cache": tmp_path / "cache", "piece": 200_000}


def ranges(options: dict[str, Any]) -> list[Path]:
    """The files of the cache."""
    return sorted(options["cache"].glob("*/*.range"))


def read(server: Any, options: dict[str, Any], mode: str = "ok") -> int:
    """Read all values, and check them; returns the number of requests."""
    server.forget()
    with squish.open(server.url("m.safetensors", mode), source_options=options) as file:
        np.testing.assert_array_equal(file["w"].numpy(), VALUES)
    return len(server.requests)


def test_ranges_of_the_same_content_are_fetched_once(server: Any, options: dict[str, Any]) -> None:
    assert read(server, options) > 8
    assert read(server, options) == 1  # the first 64 KiB, whose answer is the pin
    assert not [path for path in options["cache"].rglob(".*") if path.is_file()]


def test_other_content_has_other_ranges(server: Any, options: dict[str, Any], tmp_path: Path) -> None:
    read(server, options)
    squish.save(tmp_path / "m.safetensors", {"w": -VALUES})
    server.files["m.safetensors"], server.tag = (tmp_path / "m.safetensors").read_bytes(), '"two"'
    with squish.open(server.url("m.safetensors"), source_options=options) as file:
        np.testing.assert_array_equal(file["w"].numpy(), -VALUES)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "folder"])
def test_a_damaged_range_is_fetched_again(server: Any, options: dict[str, Any], damage: str) -> None:
    whole = read(server, options)
    for path in ranges(options):
        data = bytearray(path.read_bytes())
        data[40] ^= 1
        path.unlink()
        if damage == "folder":
            path.mkdir()
        else:
            path.write_bytes({"flip": data, "cut": data[:-1], "empty": b""}[damage])
    assert read(server, options) == whole
    assert damage == "folder" or read(server, options) == 1


def test_a_cache_that_cannot_be_written_is_not_needed(
    server: Any, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert read(server, {**options, "cache": tmp_path / "file" / "below"}) > 8

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("squish_remote.folder_cache.os.replace", full)
    assert read(server, options) > 8
    assert not [path for path in options["cache"].rglob("*") if path.is_file()]


def test_the_cache_stays_below_its_size(server: Any, options: dict[str, Any]) -> None:
    options["cache_size"] = 500_000
    read(server, options)
    read(server, options)
    assert 0 < sum(path.stat().st_size for path in ranges(options)) <= 500_000


@pytest.mark.parametrize("attempt", range(15))
def test_threads_keep_the_cache_below_its_size(tmp_path: Path, attempt: int) -> None:
    """Each removes what was used longest ago, and none counts what another one removed."""
    cache, pin = FolderCache(tmp_path / "cache", 10_000), squish_api.Pin(url="s3://a/b", size=1 << 20, tag="x")

    def fill(thread: int) -> None:
        for number in range(20):
            cache.write(pin, 1000 * (100 * thread + number), memoryview(bytes(1000)))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(fill, range(8)))
    assert sum(path.stat().st_size for path in (tmp_path / "cache").glob("*/*.range")) <= 10_000


def test_a_file_without_a_tag_is_not_kept(server: Any, options: dict[str, Any]) -> None:
    assert read(server, options, "none") == read(server, options, "none") > 8
    assert not options["cache"].exists()


def test_processes_share_a_cache(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from squish_core.api import Pin\n"
        "from squish_remote.folder_cache import FolderCache\n"
        "cache, pin = FolderCache(Path(sys.argv[1]), 300_000), Pin(url='s3://a/b', size=1 << 20, tag='x')\n"
        "kept = 0\n"
        "for step in range(300):\n"
        "    number = step // 2 % 20\n"  # each range twice in a row: the second time it is there, mostly
        "    content = cache.read(pin, 1000 * number, 1000 * number + 20_000)\n"
        "    assert content is None or bytes(content) == bytes([number]) * 20_000\n"
        "    kept += content is not None\n"
        "    if content is None:\n"
        "        cache.write(pin, 1000 * number, memoryview(bytes([number]) * 20_000))\n"
        "assert kept\n"
    )
    children = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "cache")]) for _ in range(8)]
    assert [child.wait(300) for child in children] == [0] * 8
    assert not [path for path in (tmp_path / "cache").rglob(".*") if path.is_file()]
