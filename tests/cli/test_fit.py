"""`squish fit` of a URL reads the headers of the files there, and none of the weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import web_server
from squish_cli import main
from squish_models.api import small_config
from squish_testing import model_arrays

import squish_core as squish


def test_a_url_costs_its_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = {**small_config("llama"), "intermediate_size": 8192}
    Path("model").mkdir()
    Path("model/config.json").write_text(json.dumps(config))
    squish.save("model/model.safetensors", model_arrays("llama", config))
    sent: list[int] = []
    header = web_server.Handler.send_header

    def counted(self: web_server.Handler, name: str, value: str) -> None:
        sent.extend([int(value)] if name == "Content-Length" and self.command == "GET" else [])
        header(self, name, value)

    monkeypatch.setattr(web_server.Handler, "send_header", counted)
    with web_server.serving() as address:
        code = main(["fit", f"{address}/model/", "--memory", "1GB", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert (code, document["best"]) == (0, "as it is")
    assert 0 < sum(sent) < Path("model/model.safetensors").stat().st_size / 10
