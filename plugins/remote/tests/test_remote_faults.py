"""Servers that fail, lie or change: a typed error in time, or the right bytes; never a mixture, never a secret."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from obstore.exceptions import BaseError
from squish_remote.store import RequestError, Store

import squish_core as squish
from squish_core import api as squish_api
from squish_core.errors import ClosedError, FormatError, MissingFileError, SquishError
from squish_core.plugins.sources import open_target

PATIENCE = 120
"""Seconds for what takes a moment: only a fault takes as long, however loaded the machine is."""
SHORT = {"deadline": 1}
PATIENT = {"deadline": PATIENCE}
SECRET = "passw0rd"


@pytest.fixture
def values(server: Any, tmp_path: Path) -> np.ndarray:
    """400 KB of values, the server's `m.safetensors`."""
    values = np.arange(100_000, dtype="f4").reshape(100, 1000)
    squish.save(tmp_path / "m.safetensors", {"w": values})
    server.files["m.safetensors"] = (tmp_path / "m.safetensors").read_bytes()
    return values


def url(server: Any, mode: str, name: str = "m.safetensors") -> str:
    return server.url(name, mode).replace("//", f"//user:{SECRET}@") + "?signature=s3cret"


def refusal(call: Any) -> SquishError:
    """The error of a call, which holds no secret in any form."""
    with pytest.raises(SquishError) as caught:
        call()
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value.__reduce__())
    assert SECRET not in shown
    assert "s3cret" not in shown
    assert caught.value.__cause__ is None
    return caught.value


def read(server: Any, mode: str, **options: Any) -> np.ndarray:
    """The tensor, over a server in some mode."""
    with squish.open(url(server, mode), source_options={**PATIENT, **options}) as file:
        return file["w"].numpy(copy=True)


@pytest.mark.parametrize("mode", ["ignores", "short", "long", "shifts", "unsaid", "star", "gzip"])
def test_an_answer_that_is_not_the_range_is_an_error(values: Any, server: Any, mode: str) -> None:
    error = refusal(lambda: read(server, mode))
    assert (error.code, error.file) == ("byte-range", server.url("m.safetensors", mode))
    assert server.sent < 500_000 if mode != "ignores" else len(server.requests) <= 2


def test_a_small_file_is_read_whole_from_a_server_that_ignores_ranges(server: Any, tmp_path: Path) -> None:
    squish.save(tmp_path / "s.safetensors", {"w": np.ones(8, "f4")})
    server.files["s.safetensors"] = (tmp_path / "s.safetensors").read_bytes()
    with squish.open(url(server, "ignores", "s.safetensors"), source_options=PATIENT) as file:
        assert file["w"].numpy().tolist() == [1.0] * 8


@pytest.mark.parametrize(
    ("mode", "option"), [("ok", "match"), ("deaf", "match"), ("ok", "compare"), ("dated", "match")]
)
def test_a_file_that_is_replaced_is_an_error(values: Any, server: Any, tmp_path: Path, mode: str, option: str) -> None:
    with squish.open(url(server, mode), source_options={**PATIENT, "pin": option}) as file:
        squish.save(tmp_path / "other.safetensors", {"w": -values} if mode != "dated" else {"w": values[:-1]})
        server.files["m.safetensors"], server.tag = (tmp_path / "other.safetensors").read_bytes(), '"two"'
        error = refusal(lambda: squish.convert(file, tmp_path / "out.gguf"))
        assert error.code == "changed"
        assert refusal(lambda: file["w"][50:60]).code == "changed"
    assert not (tmp_path / "out.gguf").exists()
    assert ("if-match" in server.requests[-1].headers) == (option == "match" and mode != "dated")


def test_a_weak_tag_is_compared_and_not_sent(values: Any, server: Any) -> None:
    np.testing.assert_array_equal(read(server, "weak"), values)
    assert not any("if-match" in request.headers for request in server.requests)


def test_without_tag_and_time_a_note_says_what_would_not_be_noticed(values: Any, server: Any) -> None:
    with squish.open(url(server, "none"), source_options=PATIENT) as file:
        assert [(problem.code, problem.severity) for problem in file.problems] == [("unpinned", "note")]
    with squish.open(url(server, "dated"), source_options=PATIENT) as file:
        assert not file.problems
        np.testing.assert_array_equal(file["w"].numpy(), values)


def test_mirrors_with_tags_of_their_own_need_the_option(values: Any, server: Any) -> None:
    error = refusal(lambda: read(server, "balanced"))
    assert error.code == "changed"
    assert "pin=size" in (error.hint or "")
    error = refusal(lambda: read(server, "balanced", pin="compare"))
    assert "pin=size" in (error.hint or "")
    np.testing.assert_array_equal(read(server, "balanced", pin="size"), values)


@pytest.mark.parametrize("mode", ["twice503", "twice429", "twice408", "cuts-once"])
def test_a_failure_that_passes_is_retried(values: Any, server: Any, mode: str) -> None:
    np.testing.assert_array_equal(read(server, mode), values)
    assert len(server.requests) > 2


@pytest.mark.parametrize("mode", ["503", "500", "429", "silent", "stalls", "drips", "cuts"])
def test_the_message_about_a_lasting_failure_comes_by_the_deadline(values: Any, server: Any, mode: str) -> None:
    """The server stalls for much longer than the deadline."""
    threads = {thread.ident for thread in threading.enumerate() if thread.name == "squish-io"}
    start = time.monotonic()
    error = refusal(lambda: read(server, mode, **SHORT))
    assert time.monotonic() - start < PATIENCE
    assert error.code == "unreachable"
    assert "within 1 s" in error.message
    assert {thread.ident for thread in threading.enumerate() if thread.name == "squish-io"} <= threads


@pytest.mark.parametrize("status", [503, 500, 429])
def test_the_error_says_how_often_it_was_tried(
    values: Any, server: Any, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("squish_remote.store.RETRIES", 3)
    error = refusal(lambda: read(server, str(status)))
    assert (error.code, error.found) == ("unreachable", f"4 attempts, status {status}")
    assert len(server.requests) == 4


def test_attempts_without_an_answer_are_counted(server: Any) -> None:
    """The client gives up by itself, before the deadline of the whole range."""
    store = Store(server.url("", "silent").rstrip("/"), 1)
    store._deadline = PATIENCE
    with pytest.raises(RequestError) as caught:
        asyncio.run(store.range("m.safetensors", 0, 8, tag=None, version=None))
    assert (caught.value.kind, caught.value.retries) in [("unreachable", 1), ("unreachable", 2)]


def test_a_server_that_is_not_there_is_unreachable(closed_port: int) -> None:
    address = f"http://user:{SECRET}@127.0.0.1:{closed_port}/m.gguf"
    error = refusal(lambda: open_target(address, squish.registry(), SHORT))
    assert error.code == "unreachable"


def test_a_refused_connection_is_an_error_after_a_few_attempts(closed_port: int) -> None:
    start = time.monotonic()
    error = refusal(lambda: squish.open(f"http://127.0.0.1:{closed_port}/m.gguf", source_options=PATIENT))
    assert time.monotonic() - start < PATIENCE / 4
    assert (error.code, error.found) == ("unreachable", "3 attempts")
    assert "within" not in error.message


def test_a_server_that_starts_a_moment_later_is_reached(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("squish_remote.store.PAUSES", (0, 0))
    store = Store(server.url("", "ok").rstrip("/"), PATIENCE)
    attempts = []

    async def request(client: Any) -> str:
        attempts.append(client)
        if len(attempts) < 3:
            raise BaseError("... Os { code: 111, kind: ConnectionRefused, ... }")
        return "answer"

    assert asyncio.run(store._read(request)) == "answer"
    assert len(attempts) == 3


def test_a_refused_connection_is_retried_until_the_deadline_once_the_server_has_answered(
    values: Any, server: Any
) -> None:
    store = Store(server.url("", "ok").rstrip("/"), PATIENCE)
    asyncio.run(store.range("m.safetensors", 0, 8, tag=None, version=None))
    attempts = []

    async def request(client: Any) -> None:
        attempts.append(client)
        raise BaseError("... Os { code: 111, kind: ConnectionRefused, ... }")

    with pytest.raises(RequestError) as caught:
        asyncio.run(store._read(request))
    assert (caught.value.kind, attempts) == ("connection", [store._store])


@pytest.mark.parametrize(
    ("reason", "kind"),
    [("Name or service not known", "host"), ("Temporary failure in name resolution", "unreachable")],
)
def test_an_unknown_host_is_an_error_at_once(server: Any, reason: str, kind: str) -> None:
    """A lookup that fails for now is repeated."""
    store = Store(server.url("", "ok").rstrip("/"), PATIENCE)
    attempts = []

    async def request(client: Any) -> None:
        attempts.append(client)
        raise BaseError(f'error sending request ... ConnectError("dns error", Custom {{ error: "{reason}" }})')

    with pytest.raises(RequestError) as caught:
        asyncio.run(store._read(request))
    assert caught.value.kind == kind
    assert len(attempts) == (1 if kind == "host" else 2)


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, "denied"), (403, "denied"), (404, "missing"), (410, "missing"), (425, "rejected"), (400, "rejected")],
)
def test_what_will_not_pass_is_an_error_at_once(server: Any, status: int, code: str) -> None:
    error = refusal(lambda: read(server, str(status)))
    assert (error.code, len(server.requests)) == (code, 1)
    assert str(status) in str(error.found)
    assert code != "denied" or "Put user and password into the address" in (error.hint or "")
    assert isinstance(error, MissingFileError) == (code == "missing")


def test_an_address_that_expires_midway_opens_again_at_a_new_one(values: Any, server: Any, tmp_path: Path) -> None:
    with squish.open(url(server, "expiring"), source_options=PATIENT) as file:
        pin = file.source.pin
        error = refusal(lambda: squish.convert(file, tmp_path / "out.gguf"))
        assert (error.code, error.found) == ("expired", "status 403")
        assert "pin" in (error.hint or "")
    assert not list(tmp_path.glob("*out*"))
    with squish.open(evolve(pin, url=url(server, "ok")), source_options=PATIENT) as again:
        np.testing.assert_array_equal(again["w"].numpy(), values)


def test_a_pin_opens_the_same_content_or_fails(values: Any, server: Any, tmp_path: Path) -> None:
    with squish.open(url(server, "ok")) as file:
        data = json.loads(json.dumps(file.source.pin.to_dict()))
    with squish.open(squish_api.Pin(**data)) as again:  # as another process would
        np.testing.assert_array_equal(again["w"].numpy(), values)
    server.tag = '"two"'
    error = refusal(lambda: squish.open(squish_api.Pin(**data)))
    assert (error.code, error.expected, error.found) == ("changed", 'tag "one"', 'tag "two"')


@pytest.mark.parametrize(
    ("mode", "trusted", "code", "requests"),
    [("ok", True, "", 2), ("ok", False, "certificate", 0), ("elsewhere", True, "redirect", 1)],
)
def test_a_certificate_is_checked_by_the_clients_own_variables(
    values: Any, server: Any, secure_url: str, mode: str, trusted: bool, code: str, requests: int
) -> None:
    """The server redirects `elsewhere` to the same file without TLS, which is not followed."""
    server.moved_to = server.url("m.safetensors")
    program = (
        "import squish_core as squish\n"
        "try:\n"
        f"    with squish.open('{secure_url}/{mode}/m.safetensors', source_options={PATIENT}) as file:\n"
        "        assert file['w'][1, :2].tolist() == [1000, 1001]\n"
        "except squish.SquishError as error:\n"
        "    raise SystemExit(error.code)"
    )
    authority = Path(__file__).with_name("data") / "authority.pem"
    variables = {"SSL_CERT_FILE": str(authority)} if trusted else {}
    ended = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **variables}, capture_output=True, text=True
    )
    assert (ended.stderr.strip(), len(server.requests)) == (code, requests)


def test_a_redirect_is_followed_without_credentials(values: Any, server: Any) -> None:
    np.testing.assert_array_equal(read(server, "moved"), values)
    first, second = server.requests[:2]
    assert first.headers["authorization"].startswith("Basic ")
    assert "authorization" not in second.headers
    assert SECRET not in str(second)


@pytest.mark.parametrize("target", ["loop", "file:///etc/passwd", "ftp://127.0.0.1/x"])
def test_a_redirect_that_leads_nowhere_is_an_error(server: Any, target: str) -> None:
    server.moved_to = target
    error = refusal(lambda: read(server, "loop" if target == "loop" else "elsewhere"))
    assert error.code in ("redirect", "unreachable")


def test_a_size_that_cannot_be_takes_no_memory(values: Any, server: Any) -> None:
    with pytest.raises(SquishError) as caught:
        read(server, "huge")
    assert caught.value.code not in ("plugin-bug", "memory")
    server.files["empty.gguf"] = b""
    assert refusal(lambda: squish.open(url(server, "ok", "empty.gguf"), source_options=PATIENT)).code == "empty"
    server.files["cut.safetensors"] = server.files["m.safetensors"][:-1000]
    error = refusal(lambda: squish.open(url(server, "ok", "cut.safetensors"), source_options=PATIENT))
    assert isinstance(error, FormatError)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("page.gguf", b"<!doctype html><html>not found</html>"),
        ("pointer.gguf", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"),
    ],
)
def test_a_page_in_place_of_the_file_is_named(server: Any, name: str, data: bytes) -> None:
    server.files[name] = data
    assert refusal(lambda: squish.open(url(server, "ok", name), source_options=PATIENT)).code == "lookalike"


def test_a_head_that_asks_for_gigabytes_fetches_no_more_than_the_limit(server: Any) -> None:
    head = b"GGUF" + (3).to_bytes(4, "little") + (0).to_bytes(8, "little") + (1).to_bytes(8, "little")
    server.files["hostile.gguf"] = head + (1 << 40).to_bytes(8, "little") + bytes(200_000)
    limits = squish.Limits(header=100_000)
    error = refusal(lambda: squish.open(url(server, "ok", "hostile.gguf"), source_options=PATIENT, limits=limits))
    assert error.code in ("truncated", "header", "name")
    assert server.sent <= 100_000 + 64


def test_closing_ends_reads_under_way(values: Any, server: Any) -> None:
    file = squish.open(url(server, "stalls"), source_options={"deadline": 1000})
    kept = file.source.view(0, 64)
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            file["w"].numpy()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=wait) for _ in range(16)]
    for thread in threads:
        thread.start()
    server.wait_for_stalled(16)
    file.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert [type(error) for error in errors] == [ClosedError] * 16
    assert bytes(kept) == server.files["m.safetensors"][:64]
    with pytest.raises(ClosedError):
        file["w"].numpy()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_gets_an_error(values: Any, server: Any) -> None:
    with squish.open(url(server, "ok"), source_options=PATIENT) as file:
        child = os.fork()
        if child == 0:
            try:
                file["w"].numpy()
            except SquishError as error:
                os._exit(7 if error.code == "fork" else 8)
            finally:
                os._exit(9)
        deadline = time.monotonic() + PATIENCE
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert os.waitstatus_to_exitcode(ended[1]) == 7
        np.testing.assert_array_equal(file["w"].numpy(), values)


def test_requests_run_together_up_to_the_limit(server: Any, tmp_path: Path) -> None:
    tensors = {f"w{number}": np.full(50_000, number, "f4") for number in range(40)}
    squish.save(tmp_path / "m.safetensors", tensors)
    server.files["m.safetensors"], server.latency = (tmp_path / "m.safetensors").read_bytes(), 0.02
    options = {"piece": 200_000, "in_flight": 4, "memory": 2_000_000}
    with squish.open(url(server, "ok"), source_options=options) as file:
        server.forget()
        server.gather = 4
        arrays = file.numpy()
        assert server.most_in_flight == 4
        assert server.sent == 40 * 200_000
    for name, values in tensors.items():
        np.testing.assert_array_equal(arrays[name], values)


@pytest.mark.parametrize("options", [{"deadline": "never"}, {"pin": "maybe"}, {"piece": -1}, {"in_flight": 0}])
def test_an_option_that_makes_no_sense_is_refused(server: Any, options: dict[str, Any]) -> None:
    assert refusal(lambda: squish.open(url(server, "ok"), source_options=options)).code == "option"


def test_threads_share_a_source_that_reads_ahead(server: Any, tmp_path: Path) -> None:
    """What one thread announces and forgets does not end what another waits for."""
    tensors = {f"w{number}": np.full(20_000, number, "f4") for number in range(40)}
    squish.save(tmp_path / "m.safetensors", tensors)
    server.files["m.safetensors"], server.latency = (tmp_path / "m.safetensors").read_bytes(), 0.01
    results: list[Any] = []

    def work(file: squish.File) -> None:
        try:
            results.append(file.numpy())
        except BaseException as error:
            results.append(error)

    with squish.open(url(server, "ok"), source_options={"piece": 100_000, "memory": 400_000}) as file:
        threads = [threading.Thread(target=work, args=(file,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    assert len(results) == 6
    for arrays in results:
        assert not isinstance(arrays, BaseException), arrays
        for name, values in tensors.items():
            np.testing.assert_array_equal(arrays[name], values)


ENDING = """
import sys, weakref

def report():  # made before squish_remote's own finalizer, so it runs after it
    from squish_remote import store
    print(len(store._requests), flush=True)

weakref.finalize(sys, report)
import squish_core as squish

file = squish.open(sys.argv[1], source_options={"piece": 4096, "gap": 0, "in_flight": 64})
try:
    file["w"].numpy()
except squish.SquishError:
    sys.exit(7)
"""


def test_no_request_calls_back_into_a_process_that_ends(server: Any) -> None:
    """obstore's threads would abort it, and the exit status would be lost."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [1 << 20], "data_offsets": [0, 1 << 20]}}).encode()
    server.files["m.safetensors"] = len(header).to_bytes(8, "little") + header + bytes(1 << 20)
    command = [sys.executable, "-c", ENDING, server.url("m.safetensors", "expiring")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (7, "0\n"), ended.stderr
