"""The sources of this plugin, by the kit's suite: a web server, and a file system of fsspec."""

from __future__ import annotations

from typing import Any

import fsspec
import pytest
from squish_testing import SourceSuite

pytestmark = pytest.mark.alone

FILES = {"model.gguf": bytes(range(256)) * 1200, "config.json": b"{}", "part two.bin": b"second"}


class TestHttp(SourceSuite):
    source = "http"
    secret = "passw0rd"

    @pytest.fixture(autouse=True)
    def _server(self, server: Any) -> None:
        server.files |= FILES
        self._base = server.url("").replace("//", f"//user:{self.secret}@")

    def files(self) -> dict[str, bytes]:
        return FILES

    def url(self, name: str) -> str:
        return f"{self._base}{name}?signature={self.secret}"

    def options(self) -> dict[str, Any]:
        return {"deadline": 5, "piece": 50_000}


class TestFsspec(SourceSuite):
    source = "fsspec"

    @pytest.fixture(autouse=True)
    def _files(self) -> None:
        memory = fsspec.filesystem("memory")
        for name, content in FILES.items():
            memory.pipe_file(f"/kit/{name}", content)

    def files(self) -> dict[str, bytes]:
        return FILES

    def url(self, name: str) -> str:
        return f"memory://kit/{name}"
