"""Names as a constraint: what is written behind a dot exists, with speculation as without."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgespec
from edgespec import OptionError
from edgespec.backends.passes import TokenTree
from edgespec.engine.engine import Engine
from tests.support.equality import verify_everything

NAMES = ("append", "apply", "items", "name", "names", "value_of_item")
CODE = "def add(self, item):\n    self."
DEREFERENCE = re.compile(rb"(?<!\.)\.([A-Za-z_\x80-\xff][A-Za-z0-9_\x80-\xff]*)")


@pytest.fixture(scope="module")
def engine(bundled_model: Path) -> Iterator[Engine]:
    """Everything that is drafted is verified."""
    with edgespec.load(bundled_model, threads=1, sequences=3, context=512) as opened:
        verify_everything(opened)
        yield opened


def may_begin(text: bytes, *, ends: bool = False) -> bool:
    """Whether names behind dots are names, the last one the beginning of one unless it ends."""
    for found in DEREFERENCE.finditer(text):
        word = found.group(1).decode(errors="replace")
        is_open = found.end() == len(text) and not ends
        if not any(name.startswith(word) if is_open else name == word for name in NAMES):
            return False
    return True


def masked_greedily(engine: Engine, prompt: str, num_tokens: int) -> list[int]:
    """Of each plain step's tokens the likeliest that may come, looked at as text."""
    tokenizer = engine.tokenizer
    ids, text = tokenizer.encode(prompt), b"x" + prompt.encode()
    written = list[int]()
    with engine.line.free_slot() as slot:
        slot.sequence.truncate(0)
        slot.ids.clear()
        slot.sequence.prefill(ids[:-1])
        for _ in range(num_tokens):
            last = np.array([written[-1] if written else ids[-1]], np.int32)
            row = slot.sequence.forward(TokenTree.chain(last)).logits[0]
            slot.sequence.commit([0])
            for token in np.argsort(-row, kind="stable").tolist():
                spelled = tokenizer.token_bytes(token)
                is_end = token in tokenizer.end_ids
                if may_begin(text, ends=True) if is_end else spelled and may_begin(text + spelled):
                    break
            if is_end:
                break
            text += spelled
            written.append(token)
        slot.sequence.truncate(0)
    return written


@pytest.mark.parametrize("prompt", [CODE, "x.na", CODE + "apply()\n    self."])
def test_greedy_replies_are_those_of_a_mask_at_each_step(engine: Engine, prompt: str) -> None:
    options: dict[str, Any] = {"max_tokens": 16, "temperature": 0.0, "names": NAMES, "raw": True}
    expected = masked_greedily(engine, prompt, 16)
    for speculation in (True, False):
        assert engine.generate(prompt, speculation=speculation, **options).token_ids == expected
    assert len(expected) > 3


@pytest.mark.parametrize("cuts", [{}, {"top_k": 0, "top_p": 1.0, "min_p": 0.0}])
def test_names_do_not_depend_on_speculation(engine: Engine, cuts: dict[str, Any]) -> None:
    for seed in range(4):
        options = {"max_tokens": 40, "seed": seed, "raw": True, "names": NAMES, **cuts}
        plain = engine.generate(CODE, speculation=False, **options)
        found = engine.generate(CODE, **options)
        assert (found.token_ids, found.text) == (plain.token_ids, plain.text)
        assert may_begin((CODE + found.text).encode(), ends=found.finish_reason == "stop")
    together = engine.generate_batch([CODE, "x.na", CODE], **options)
    assert together[0].token_ids == plain.token_ids


def test_what_is_certain_of_a_name_takes_no_pass(engine: Engine) -> None:
    options: dict[str, Any] = {"raw": True, "names": NAMES, "temperature": 0.0, "max_tokens": 8}
    found = engine.generate("self.value_", **options)
    assert found.text.startswith("of_item")
    assert found.stats.by_source["grammar"]["accepted"] > 0


def test_a_name_that_is_none_binds_nothing(engine: Engine) -> None:
    """What the user began is the user's; names bind what comes after."""
    reply = engine.generate("x.zz", raw=True, names=NAMES, seed=1, max_tokens=30)
    assert may_begin(("x" + reply.text).encode())


def test_suggestions_are_names(engine: Engine) -> None:
    found = engine.suggest(CODE, k=3, max_tokens=6, names=NAMES)
    assert len(found) == 3
    for one in found:
        assert _begins(one.text, NAMES)
        start = one.token_ids[0]
        ids = [*engine.tokenizer.encode(CODE), start]
        alone = engine.generate(ids, max_tokens=5, temperature=0.0, names=NAMES)
        assert one.token_ids == [start, *alone.token_ids]
    free = engine.suggest(CODE, k=3, max_tokens=6)
    assert not all(_begins(one.text, NAMES) for one in free)


def _begins(text: str, names: Sequence[str]) -> bool:
    word = re.match(r"\w*", text)
    assert word is not None
    return any(name.startswith(word.group()) for name in names)


def test_what_cannot_be_is_refused(engine: Engine) -> None:
    with pytest.raises(OptionError, match="no identifier"):
        engine.generate(CODE, names=["+"], max_tokens=2)
    with pytest.raises(OptionError, match="give one of"):
        engine.generate(CODE, names=NAMES, regex="a", max_tokens=2)
    with pytest.raises(OptionError, match="drop ignore_eos"):
        engine.generate(CODE, names=NAMES, ignore_eos=True, max_tokens=2)
