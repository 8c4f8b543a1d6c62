"""How threads of torch wait in a command: asleep, so that a busy machine runs those that they wait for."""

from __future__ import annotations

import os

import pytest
from squish_torch.libraries import required_by_command


@pytest.mark.parametrize(("policy", "expected"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_wait_asleep_unless_the_environment_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, policy: str | None, expected: str
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", policy or "")  # restored after the test
    if policy is None:
        del os.environ["OMP_WAIT_POLICY"]
    with required_by_command():
        assert os.environ["OMP_WAIT_POLICY"] == expected
