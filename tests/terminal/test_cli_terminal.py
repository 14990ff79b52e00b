"""What only a terminal sees: the chat prompt, its commands, progress, numbers."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from typing import Any

import pytest

import edgespec
from edgespec.engine.engine import Engine
from edgespec.engine.reply_options import ReplyOptions
from edgespec.errors import EdgeSpecError, OptionError
from edgespec.terminal.chat_screen import ChatScreen
from edgespec.terminal.grid import bar
from edgespec.terminal.progress import ProgressLine, describe
from edgespec.terminal.text_io import decode, printable, read_prompt, write_pieces
from tests.support.gguf_models import CHATML, write_gguf


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = write_gguf(tmp_path_factory.mktemp("talk") / "tiny.gguf", template=CHATML)
    with edgespec.load(path, threads=1) as opened:
        yield opened


@pytest.fixture
def talk(engine: Engine) -> ChatScreen:
    options = ReplyOptions(max_tokens=4, seed=1, ignore_eos=True)
    return ChatScreen(engine.chat(), options, ProgressLine(enabled=False))


def typing(monkeypatch: pytest.MonkeyPatch, *answers: str | type[BaseException]) -> None:
    """Let `input` give these lines, then the end of input."""
    waiting = iter(answers)

    def answer(prompt: str = "") -> str:
        said: Any = next(waiting, EOFError)
        if isinstance(said, str):
            return said
        raise said

    monkeypatch.setattr("builtins.input", answer)


def test_turns_go_on_until_the_user_leaves(
    talk: ChatScreen, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typing(monkeypatch, "hello", "  ", '"""two', 'lines"""', "/bye", "never asked")
    talk.interactive("first")
    said = [turn["content"] for turn in talk.chat.messages if turn["role"] == "user"]
    assert said == ["first", "hello", "two\nlines"]
    assert capsys.readouterr().err == ""


def test_commands(
    talk: ChatScreen, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typing(
        monkeypatch, "hello", "/stats", "again", "/clear", "/set temperature 0", "/set seed x",
        "/set top-p 7", "/set", "/set x", "/help", "/nonsense",
    )  # fmt: skip
    talk.interactive(None)
    out, err = capsys.readouterr()
    assert talk.chat.messages == []
    assert talk.reply.temperature == 0.0
    assert talk.reply.top_p == 0.95
    assert err.count("tokens/s") == 1
    for words in (
        "new conversation",
        "x is not a number",
        "top_p",
        "/set takes",
        "/bye",
        "/nonsense",
    ):
        assert words in out


def test_an_error_in_a_turn_leaves_the_conversation(
    talk: ChatScreen, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typing(monkeypatch, "hello", "too long " * 400, "still there?")
    talk.interactive(None)
    said = [turn["content"] for turn in talk.chat.messages if turn["role"] == "user"]
    assert said == ["hello", "still there?"]
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_ctrl_c_stops_the_reply_and_a_second_one_leaves(
    talk: ChatScreen, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typing(monkeypatch, "hello", "go on", KeyboardInterrupt)
    written: list[str] = []

    def interrupt_the_first(pieces: Iterator[str]) -> None:
        written.append(next(pieces))
        if len(written) == 1:
            raise KeyboardInterrupt
        write_pieces(pieces)

    monkeypatch.setattr("edgespec.terminal.chat_screen.write_pieces", interrupt_the_first)
    with pytest.raises(KeyboardInterrupt):
        talk.interactive(None)
    roles = [turn["role"] for turn in talk.chat.messages]
    assert roles == ["user", "assistant", "user", "assistant"]
    assert talk.chat.messages[1]["content"].startswith(written[0])


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_drawn_after_a_while_and_cleared() -> None:
    screen = Screen()
    with ProgressLine(screen) as progress:
        progress("load", 1, 4)
        time.sleep(0.05)
        assert screen.getvalue() == ""
        time.sleep(0.6)
        assert "loading the model" in screen.getvalue()
        assert " 25 %" in screen.getvalue()
        progress("load", 4, 4)
        assert screen.getvalue().endswith("\r\x1b[K")


def test_progress_is_silent_where_nobody_looks() -> None:
    pipe = io.StringIO()
    with ProgressLine(pipe) as progress:
        progress("load", 1, 4)
        time.sleep(0.5)
    assert pipe.getvalue() == ""


def test_progress_without_a_measure_counts_seconds() -> None:
    assert describe("kernels", 0, 1, 7.2).endswith("7 s")
    assert " 50 %" in describe("prefill", 5, 10, 1.0)


@pytest.mark.parametrize(
    ("part", "whole", "drawn"),
    [(0, 8, ""), (8, 8, "█" * 20), (4, 8, "█" * 10), (1, 10**9, "▏"), (3, 0, "█" * 20)],
)
def test_bars(part: int, whole: int, drawn: str) -> None:
    assert bar(part, whole) == drawn.ljust(20)


def test_control_characters_become_visible() -> None:
    assert printable("a\x1b[31mb\r\nc\td\x9b") == "a�[31mb�\nc\td�"


def test_prompts_are_read_strictly() -> None:
    with pytest.raises(EdgeSpecError, match="position 1"):
        decode(b"a\xff", "it")
    with pytest.raises(OptionError, match="no prompt"):
        read_prompt(None, io.BytesIO(b"\n"), stdin_is_terminal=False)
    assert read_prompt("a", io.BytesIO(b"never read"), stdin_is_terminal=True) == "a"
    assert read_prompt(None, io.BytesIO(b" x \r\n"), stdin_is_terminal=False) == " x "


def test_the_command_line_has_the_defaults_of_the_library() -> None:
    import inspect

    from edgespec import cli

    library = inspect.signature(Engine.request).parameters
    options = ReplyOptions()
    for name in ("max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty"):
        for command in (cli.run, cli.chat):
            assert inspect.signature(command).parameters[name].default == library[name].default
        assert getattr(options, name) == library[name].default
