"""The command line on 64-bit ARM: Debian's Python in an emulator, the wheel made here, no compiler.

`make test-arm` makes what this needs (`tests/support/arm_python.py`); elsewhere it is skipped.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from edgespec.system.size import MIB
from tests.support import arm_python
from tests.support.command_line import Finished, edgespec
from tests.terminal.test_plain_run import PROGRAM

pytestmark = pytest.mark.skipif(not arm_python.PYTHON.exists(), reason="`make test-arm` makes it")
SHORT = ("--max-tokens", "8", "--seed", "7")


def arm(*arguments: object, stdin: str = "") -> Finished:
    """Run `edgespec` in the emulator."""
    return python("-m", "edgespec", *map(str, arguments), stdin=stdin)


def python(*arguments: str, stdin: str = "") -> Finished:
    found = subprocess.run(
        [arm_python.PYTHON, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=arm_python.PLACE / "site",
        env=arm_python.environment() | {"EDGESPEC_PROGRESS": "0"},
        timeout=600,
    )
    return Finished(found.returncode, found.stdout, found.stderr)


def values(found: Finished) -> Any:
    assert found.code == 0, found.err
    return json.loads(found.out)


def test_the_library_is_used_and_nothing_is_amiss() -> None:
    found = {one["name"]: one for one in values(arm("doctor", "--json"))["findings"]}
    assert found["kernels"]["status"] == "ok"
    assert "precompiled" in found["kernels"]["text"]
    assert [one for one in found.values() if one["status"] == "problem"] == []


def test_a_reply_is_the_one_of_this_machine_and_keeps_its_budget() -> None:
    asked = ("run", "--json", *SHORT, "Tell me a short story.")
    ours, theirs = values(edgespec(*asked)), values(arm(*asked, "--memory", "300MiB"))
    assert theirs["token_ids"] == ours["token_ids"]
    assert theirs["stats"]["peak_memory_bytes"] <= 300 * MIB
    assert theirs["plan"]["backend"] == "native"


def test_a_chat_and_a_batch_too(tmp_path: Path) -> None:
    asked = ("chat", "--json", *SHORT)
    ours, theirs = values(edgespec(*asked, stdin=b"Hi.\n")), values(arm(*asked, stdin="Hi.\n"))
    assert theirs["token_ids"] == ours["token_ids"]
    prompts = tmp_path / "prompts"
    prompts.write_text('{"prompt": "One"}\n{"prompt": "Two"}\n', "utf-8")
    texts = []
    for run in (edgespec, arm):
        done = run("batch", prompts, *SHORT)
        assert done.code == 0, done.err
        texts.append([json.loads(line)["text"] for line in done.out.splitlines()])
    assert texts[0] == texts[1] and len(texts[0]) == 2


def test_a_budget_that_is_too_small_is_refused_with_numbers() -> None:
    arm("run", "--memory", "20MiB", "hello").assert_refused(1, "MiB")


def test_a_plain_run_imports_nothing_heavy() -> None:
    """Once the machine was measured."""
    python("-c", PROGRAM)
    found = python("-c", PROGRAM)
    assert (found.code, found.err) == (0, "[]\n")
