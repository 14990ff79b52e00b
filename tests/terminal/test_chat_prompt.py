"""The line where messages are typed, with the keys that a terminal sends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from edgespec.terminal.chat import chat_files
from edgespec.terminal.chat.chat_commands import ARGUMENTS, HELP
from edgespec.terminal.chat.chat_prompt import ChatPrompt

ALT_ENTER, CTRL_C, CTRL_D, CTRL_J, ENTER, UP = (
    "\x1b\r", "\x03", "\x04", "\n", "\r", "\x1b[A",
)  # fmt: skip


def pasted(text: str) -> str:
    return f"\x1b[200~{text}\x1b[201~"


@pytest.fixture
def keys() -> Iterator[PipeInput]:
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        yield pipe


def prompt(history: Path | None = None) -> ChatPrompt:
    return ChatPrompt(HELP, ARGUMENTS, history)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (f"hello{ENTER}", "hello"),
        (pasted("one\r\ntwo\n\nfour") + ENTER, "one\ntwo\n\nfour"),
        ("see " + pasted("a\nb") + f" there{ENTER}", "see a\nb there"),
        (f"one{ALT_ENTER}two{CTRL_J}three{ENTER}", "one\ntwo\nthree"),
        (f"one\\{ENTER}two{ENTER}", "one\ntwo"),
        (f'"""one{ENTER}two"""{ENTER}', "one\ntwo"),
        (f'"""{ENTER}one{ENTER}"""{ENTER}', "one"),
        (f'say """ loudly{ENTER}', 'say """ loudly'),
        (f"forget this{CTRL_C}hello{ENTER}", "hello"),
        (f"{CTRL_C}hello{ENTER}", "hello"),
        (f"  /etc/hosts{ENTER}", "  /etc/hosts"),
    ],
)  # fmt: skip
def test_what_is_typed_is_one_message(typed: str, message: str, keys: PipeInput) -> None:
    keys.send_text(typed)
    assert prompt().read() == message


def test_leaving(keys: PipeInput) -> None:
    """The first Ctrl-C at an empty line tells how, the second does; Ctrl-D does at once."""
    asked = prompt()
    keys.send_text(CTRL_D)
    with pytest.raises(EOFError):
        asked.read()
    keys.send_text(f"{CTRL_C}{CTRL_C}")
    with pytest.raises(KeyboardInterrupt):
        asked.read()
    assert "Ctrl-D or /bye" in asked._hint
    asked = prompt()
    assert "/help" in asked._hint


def test_what_was_typed_is_remembered_in_a_private_file(
    keys: PipeInput, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGESPEC_DATA", str(tmp_path / "data"))
    place = chat_files.history_place()
    assert place is not None
    if os.name == "posix":
        assert [path.stat().st_mode & 0o077 for path in (place, place.parent)] == [0, 0]
    keys.send_text(pasted("one\ntwo") + ENTER)
    prompt(place).read()
    keys.send_text(f"{UP}{ENTER}")
    assert prompt(chat_files.history_place()).read() == "one\ntwo"
    monkeypatch.setenv("EDGESPEC_HISTORY", "0")
    assert chat_files.history_place() is None


def test_a_long_history_is_cut_between_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: PipeInput
) -> None:
    monkeypatch.setenv("EDGESPEC_DATA", str(tmp_path))
    place = tmp_path / "chats" / "history"
    place.parent.mkdir()
    place.write_text("".join(f"\n# 2026\n+message {number}\n" for number in range(60_000)))
    assert chat_files.history_place() == place
    assert place.stat().st_size < 2**19 + 100
    assert place.read_text().startswith("\n# 2026\n+message ")
    keys.send_text(f"{UP}{ENTER}")
    assert prompt(place).read() == "message 59999"


def completions(text: str) -> list[str]:
    found = prompt()._session.completer
    assert found is not None
    event = CompleteEvent(completion_requested=True)
    return [one.text for one in found.get_completions(Document(text, len(text)), event)]


def test_commands_and_what_follows_them_are_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: PipeInput
) -> None:
    del keys
    monkeypatch.setenv("EDGESPEC_DATA", str(tmp_path / "data"))
    assert completions("/s") == ["/system", "/save", "/set", "/stats"]
    assert completions("/set top") == ["top-k ", "top-p "]
    assert "edgespec-tiny" in completions("/model e")
    (tmp_path / "notes.txt").touch()
    assert completions(f"/file {tmp_path}/no") == ["tes.txt"]
    assert completions("hello /s") == completions("/file\n/s") == completions("/undo x") == []
