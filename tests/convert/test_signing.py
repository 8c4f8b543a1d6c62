"""Signatures by OpenSSF model signing: of files and folders, by this key, of these bytes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from squish_convert.signing import check_signature, sign

import squish_core as squish

pytest.importorskip("model_signing", reason="needs model-signing, the extra `sign` of squish-convert")


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A private key and its public one."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec

    folder, key = tmp_path_factory.mktemp("keys"), ec.generate_private_key(ec.SECP256R1())
    private, public = folder / "key.pem", folder / "key.pub"
    private.write_bytes(key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo))
    return private, public


@pytest.mark.parametrize("is_folder", [False, True])
def test_signature_is_of_these_bytes(tmp_path: Path, keys: tuple[Path, Path], is_folder: bool) -> None:
    model = tmp_path / "model"
    file = model / "m.safetensors" if is_folder else tmp_path / "m.gguf"
    file.parent.mkdir(exist_ok=True)
    squish.save(file, {"w": np.ones(8, "f4")})
    signed, signature = (model, model / "model.sig") if is_folder else (file, tmp_path / "m.sig")
    sign(signed, keys[0], signature)
    assert check_signature(signed, keys[1], signature) == ()
    command = [sys.executable, "-m", "model_signing", "verify", "key", str(signed), "--signature", str(signature)]
    judge = subprocess.run([*command, "--public_key", str(keys[1])], capture_output=True, text=True)
    assert judge.returncode == 0, judge.stderr
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    (problem,) = check_signature(signed, keys[1], signature)
    assert problem.code == "digest"


def test_unusable_key_or_signature_is_refused(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    squish.save(tmp_path / "m.gguf", {"w": np.ones(8, "f4")})
    with pytest.raises(squish.UsageError) as caught:
        sign(tmp_path / "m.gguf", keys[1], tmp_path / "m.sig")
    assert caught.value.code == "signature"
    (tmp_path / "m.sig").write_text("{}")
    with pytest.raises(squish.FormatError) as refused:
        check_signature(tmp_path / "m.gguf", keys[1], tmp_path / "m.sig")
    assert refused.value.code == "signature"


def test_signature_replaces_neither_the_key_nor_the_model(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    squish.save(tmp_path / "m.gguf", {"w": np.ones(8, "f4")})
    for other in (tmp_path / "m.gguf", keys[0]):
        before = other.read_bytes()
        with pytest.raises(squish.UsageError) as refused:
            sign(tmp_path / "m.gguf", keys[0], other)
        assert (refused.value.code, other.read_bytes()) == ("exists", before)
