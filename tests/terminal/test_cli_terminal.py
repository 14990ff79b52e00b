"""What only a terminal sees: the chat prompt, its commands, progress, numbers."""

from __future__ import annotations

import io
import re
import time

import pytest
from rich.console import Console

from edgespec.engine.engine import Engine
from edgespec.engine.reply_options import ReplyOptions
from edgespec.errors import EdgeSpecError, OptionError
from edgespec.models.reasoning import Piece
from edgespec.terminal.grid import bar
from edgespec.terminal.markdown_text import MarkdownText
from edgespec.terminal.progress import ProgressLine, describe
from edgespec.terminal.show_pieces import show_pieces
from edgespec.terminal.text_io import decode, printable, read_prompt
from edgespec.terminal.wrapped_text import WrappedText


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


def test_a_slow_start_is_told_of_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a line for each stage, unless nobody wants to know."""
    monkeypatch.setattr("edgespec.terminal.progress._SLOW_S", 0.3)
    monkeypatch.delenv("EDGESPEC_PROGRESS", raising=False)
    pipe, quiet = io.StringIO(), io.StringIO()
    with ProgressLine(pipe) as progress:
        for stage in ("load", "prefill", "kernels"):
            progress(stage, 1, 4)
            time.sleep(0.7)
        monkeypatch.setenv("EDGESPEC_PROGRESS", "0")
        with ProgressLine(quiet) as silent:
            silent("load", 1, 4)
            time.sleep(0.7)
    lines = pipe.getvalue().splitlines()
    assert [line.startswith("edgespec: ") for line in lines] == [True, True]
    assert "loading the model" in lines[0]
    assert "compiling" in lines[1]
    assert quiet.getvalue() == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a bc def ghij", "a bc\ndef\nghij"),
        ("  a bcde\n\n- f", "  a\nbcde\n\n- f"),
        ("abcdefgh ij", "abcdefgh\nij"),
        ("日本語の文", "日本\n語の\n文"),
        ("```\na bc def\n```\na bc def", "```\na bc def\n```\na bc\ndef"),
        ("a ", "a"),
        ("", ""),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 99])
def test_lines_break_between_words_however_the_text_comes(text: str, shown: str, size: int) -> None:
    out: list[str] = []
    wrapped = WrappedText(out.append, lambda: 5)
    for start in range(0, len(text), size):
        wrapped.write(text[start : start + size])
    wrapped.flush()
    assert "".join(out) == shown


def test_a_reply_at_a_terminal_shows_thoughts_dim(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stdout", screen)
    show_pieces(
        iter([Piece("hm ", reasoning=True), Piece("so", reasoning=True), Piece("it\x1b[2Jis")])
    )
    assert screen.getvalue() == "\x1b[2mhm so\x1b[0m\n\nit�[2Jis\n"


def test_markdown_is_laid_out_block_by_block() -> None:
    screen = Screen()
    view = MarkdownText(Console(file=screen, force_terminal=True, width=30, color_system=None))
    text = "# Title\n\nsome *text* [here](http://x.org)\n\n```\ncode\n\nmore\n```\n1. one\n2. two"
    for start in range(0, len(text), 7):
        view.write(text[start : start + 7])
    view.flush()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    for words in ("Title", "some text", "http://x.org", "code", "more", "2 two"):
        assert words in shown
    assert "*" not in shown.replace("**", "")
    assert "\x1b]8" not in screen.getvalue()


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
    with pytest.raises(OptionError, match="no text"):
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
