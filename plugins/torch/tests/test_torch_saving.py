"""`push_to_hub` of compressed models, against a stand-in for the hub."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import squish_torch
import torch
from tiny_models import converted, logits, tiny_llama
from transformers.utils import hub

import squish_core as squish


class Uploads:
    """A hub that keeps the files it is given."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.names = folder, set[str]()

    def create_repo(self, repo_id: str, **_: Any) -> Any:
        return SimpleNamespace(repo_id=repo_id)

    def upload(self, folder: str, repo_id: str, **_: Any) -> str:
        for path in Path(folder).rglob("*"):
            if path.is_file():
                target = self.folder / repo_id / path.relative_to(folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())
        self.names = {str(path.relative_to(self.folder / repo_id)) for path in (self.folder / repo_id).rglob("*.*")}
        return f"https://hub.test/{repo_id}"


@pytest.fixture
def uploads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Uploads:
    uploads = Uploads(tmp_path / "hub")
    card = SimpleNamespace(save=lambda path: Path(path).write_text("card"))
    monkeypatch.setattr(hub, "hf_api", lambda: uploads)
    monkeypatch.setattr(hub, "create_and_tag_model_card", lambda *_, **__: card)
    monkeypatch.setattr(
        hub.PushToHubMixin, "_upload_modified_files", lambda _, folder, repo, **options: uploads.upload(folder, repo)
    )
    return uploads


def test_push_to_hub_uploads_the_codes_of_a_file(tmp_path: Path, uploads: Uploads) -> None:
    path = converted(tiny_llama(tmp_path / "hf"), tmp_path / "m.gguf", "q4_1")
    model = squish_torch.from_pretrained(path)
    assert model.push_to_hub("me/tiny") == "https://hub.test/me/tiny"
    assert uploads.names == {"model.gguf", "README.md"}
    assert torch.equal(logits(squish_torch.from_pretrained(uploads.folder / "me/tiny/model.gguf")), logits(model))


def test_push_to_hub_uploads_a_folder_that_loads_again(tmp_path: Path, uploads: Uploads) -> None:
    squish.convert(tiny_llama(tmp_path / "hf"), tmp_path / "gptq", "hf:method=gptq", ["keep", "*_proj.weight=int4"])
    model = squish_torch.from_pretrained(tmp_path / "gptq")
    model.push_to_hub("me/tiny")
    assert {"config.json", "README.md"} <= uploads.names
    assert torch.equal(logits(squish_torch.from_pretrained(uploads.folder / "me/tiny")), logits(model))
