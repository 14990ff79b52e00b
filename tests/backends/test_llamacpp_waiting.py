"""Threads of llama.cpp that wait leave the processor to others."""

from __future__ import annotations

import os

import pytest

from edgespec.backends.llamacpp import library


@pytest.mark.parametrize(
    ("policy", "asked", "spins"),
    [(None, None, "1000"), (None, "7", "7"), ("active", None, None), ("passive", "9", "9")],
)
def test_they_sleep_soon_unless_the_user_says_how(
    policy: str | None, asked: str | None, spins: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("OMP_WAIT_POLICY", policy), ("GOMP_SPINCOUNT", asked)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    library.sleep_soon()
    assert os.environ.get("GOMP_SPINCOUNT") == spins
