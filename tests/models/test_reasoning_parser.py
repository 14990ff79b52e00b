"""Thoughts and answers: told apart wherever the text is cut."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.models.reasoning import Piece, ReasoningStyle, joined, style_of

THINK = style_of("{{ '<think>' }}")
HARMONY = style_of("<|channel|>analysis<|message|>")
assert THINK is not None
assert HARMONY is not None

WORDS = st.sampled_from(
    ["a", "b c", " ", "\n", "\n\n", "<", "<th", "<think>", "</think>", "</", "</th", "ink>", "é"]
)
PARTS = st.sampled_from(
    ["a", " ", "analysis", "final", "assistant", "<|start|>", "<|channel|>", "<|message|>",
     "<|end|>", "<|", "<|end", "|>", "é\n"]
)  # fmt: skip


def read(style: ReasoningStyle, pieces: Iterable[str], prompt: str = "") -> tuple[str, str, bool]:
    """Reasoning, answer and whether all was left as it is."""
    parser = style.parser(prompt)
    made = [piece for text in pieces for piece in parser.push(text)] + parser.flush()
    return (
        "".join(piece for piece in made if piece.reasoning),
        "".join(piece for piece in made if not piece.reasoning),
        parser.untouched,
    )


def cut(text: str, cuts: list[int]) -> list[str]:
    places = [0, *sorted(place % (len(text) + 1) for place in cuts), len(text)]
    return [text[a:b] for a, b in zip(places, places[1:], strict=False)]


def naive(text: str, opened: bool) -> tuple[str, str]:
    """Thoughts and answer of the whole text at once."""
    if not opened:
        if not text.lstrip().startswith("<think>"):
            return "", text
        text = text.lstrip().removeprefix("<think>")
    thought, tag, answer = text.partition("</think>")
    return thought.strip(), answer.lstrip() if tag else ""


@given(st.lists(WORDS, max_size=12), st.lists(st.integers(0, 200), max_size=12), st.booleans())
def test_tags_wherever_the_text_is_cut(words: list[str], cuts: list[int], opened: bool) -> None:
    text = "".join(words)
    prompt = "user: hi\nassistant: <think>\n" if opened else "<think>x</think> hi"
    found = read(THINK, cut(text, cuts), prompt)
    assert found[:2] == naive(text, opened)
    if found[2]:
        assert found[:2] == ("", text)


@given(st.lists(PARTS, max_size=14), st.lists(st.integers(0, 200), max_size=12))
def test_channels_wherever_the_text_is_cut(parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    whole = read(HARMONY, [text])
    assert read(HARMONY, cut(text, cuts)) == whole
    if not re.search(r"<\|(start|channel|message|end)\|>", text):
        assert whole == ("", text, True)


@given(st.text(max_size=60), st.lists(st.integers(0, 200), max_size=8))
def test_text_without_marks_is_left_as_it_is(text: str, cuts: list[int]) -> None:
    for style in (THINK, HARMONY):
        assert read(style, cut(text, cuts)) == ("", text, True)


@pytest.mark.parametrize(
    ("template", "prompt", "text", "reasoning", "answer"),
    [
        ("<think>", "", "<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes."),
        ("</think>", "A: <think>\n", "Hm.\n</think>\n\nYes.", "Hm.", "Yes."),
        ("<think>", "<think>\n\n</think>\n\n", "Yes.", "", "Yes."),
        ("<think>", "", "Use <think> and </think>.", "", "Use <think> and </think>."),
        ("<think>", "", "<think>a</think>b <think>c</think>", "a", "b <think>c</think>"),
        ("<think>", "", "<think>\nnever clo", "never clo", ""),
        ("[THINK]", "", "[THINK]Hm.[/THINK]Yes.", "Hm.", "Yes."),
        ("<seed:think>", "", "<seed:think>Hm.</seed:think>Yes.", "Hm.", "Yes."),
        ("<|channel>thought", "", "<|channel>thought\nHm.\n<channel|>Yes.", "Hm.", "Yes."),
        ("<|channel>thought", "", "<|channel>thought\n<channel|>Yes.", "", "Yes."),
    ],
)
def test_tags_of_models(template: str, prompt: str, text: str, reasoning: str, answer: str) -> None:
    style = style_of(template)
    assert style is not None
    assert read(style, [text], prompt)[:2] == (reasoning, answer)
    assert read(style, text, prompt)[:2] == (reasoning, answer)


def test_channels_of_gpt_oss() -> None:
    text = (
        "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant<|channel|>analysis"
        "<|message|>More.<|end|><|start|>assistant<|channel|>final<|message|>It is 4."
    )
    assert read(HARMONY, text)[:2] == ("Let me see.\nMore.", "It is 4.")
    for end in ("<|end|>", "<|end|><|start|>assistant<|channel|>fi"):
        assert read(HARMONY, [text.split("<|end|>")[0] + end])[:2] == ("Let me see.", "")


@given(st.lists(PARTS, max_size=14))
def test_marks_that_are_tokens_are_as_if_they_were_spelt(parts: list[str]) -> None:
    parser = HARMONY.parser("")
    made = []
    for part in parts:
        whole = part in HARMONY.marks
        made += parser.mark(part) if whole else parser.push(part.replace("<", "").replace(">", ""))
    made += parser.flush()
    spelt = [p if p in HARMONY.marks else p.replace("<", "").replace(">", "") for p in parts]
    assert (
        "".join(p for p in made if p.reasoning),
        "".join(p for p in made if not p.reasoning),
    ) == (read(HARMONY, ["".join(spelt)])[:2])


def test_a_mark_within_an_answer_has_no_text() -> None:
    style = style_of("[THINK]")
    assert style is not None
    parser = style.parser("")
    assert parser.push("Yes.") == ["Yes."]
    assert parser.mark("[THINK]") == []


def test_models_that_do_not_reason() -> None:
    assert style_of("<|im_start|>{{ messages }}") is None


@given(st.lists(st.tuples(st.text(max_size=2), st.booleans()), max_size=8))
def test_neighbours_of_a_kind_are_one_piece(parts: list[tuple[str, bool]]) -> None:
    pieces = joined([Piece(text, reasoning=kind) for text, kind in parts])
    kinds = [piece.reasoning for piece in pieces]
    assert all(pieces)
    assert all(one != two for one, two in zip(kinds, kinds[1:], strict=False))
    for kind in (False, True):
        assert "".join(p for p in pieces if p.reasoning == kind) == "".join(
            text for text, own in parts if own == kind
        )
