"""Precompiled functions: the same bits as from the run-time compiler, and used only where they fit.

Where the library is not built, or is of other sources, only what needs none is tested.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest

from edgespec.errors import BackendError, OptionError
from edgespec.system import precompiled

NO_LIBRARY = precompiled.refusal()
needs_compiler = pytest.mark.skipif(find_spec("numba") is None, reason="needs Numba")
needs_library = pytest.mark.skipif(bool(NO_LIBRARY), reason=f"no precompiled kernels: {NO_LIBRARY}")


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`precompiled.chosen` as if nothing had been chosen, with these variables."""

    def choose(refusal: str = "", **variables: str) -> precompiled.Choice:
        for name in ("EDGESPEC_KERNELS", "NUMBA_DISABLE_JIT"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(precompiled, "refusal", lambda: refusal)
        return precompiled.chosen.__wrapped__()

    return choose


@needs_compiler
def test_the_library_comes_first(choose: Any) -> None:
    assert choose().source == "library"
    assert choose(refusal="they were made from other sources") == precompiled.Choice(
        "numba", "they were made from other sources"
    )


def test_without_a_library_and_a_compiler_there_is_a_sentence(
    choose: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precompiled, "find_spec", lambda name: None)
    with pytest.raises(BackendError, match="this installation has none.*edgespec.jit"):
        choose(refusal="this installation has none")


@needs_compiler
def test_a_source_can_be_forced(choose: Any) -> None:
    assert choose(EDGESPEC_KERNELS="jit").source == "numba"
    assert choose(EDGESPEC_KERNELS="library").source == "library"
    assert choose(NUMBA_DISABLE_JIT="1").source == "python"
    with pytest.raises(BackendError, match="has none"):
        choose(refusal="this installation has none", EDGESPEC_KERNELS="library")
    with pytest.raises(OptionError, match="'both'"):
        choose(EDGESPEC_KERNELS="both")


_REPLIES = """
import json, sys
import edgespec
found = []
with edgespec.load(threads=2) as engine:
    for seed in range(int(sys.argv[1])):
        options = {"temperature": 0.0} if seed % 4 == 0 else {"temperature": 0.8, "top_p": 0.9}
        prompt = f"Tell me something about the number {seed}."
        made = engine.generate(prompt, max_tokens=16, seed=seed, **options)
        found.append([made.token_ids, made.text])
print(json.dumps(found))
print([name for name in ("numba", "llvmlite") if name in sys.modules], file=sys.stderr)
"""


def _replies(source: str, count: int) -> tuple[list[Any], str]:
    environment = {**os.environ, "EDGESPEC_KERNELS": source}
    command = [sys.executable, "-c", _REPLIES, str(count)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout), done.stderr


def _compare(count: int) -> None:
    ours, imported = _replies("library", count)
    assert imported.strip() == "[]"
    theirs, _ = _replies("jit", count)
    assert ours == theirs


@needs_compiler
@needs_library
def test_replies_are_the_same() -> None:
    """And without importing a compiler."""
    _compare(20)


@needs_compiler
@needs_library
@pytest.mark.slow
def test_a_thousand_replies_are_the_same() -> None:
    _compare(1000)
