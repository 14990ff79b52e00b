"""Conversations at a terminal: turns, commands, what is kept, and one in a pseudo-terminal."""

from __future__ import annotations

import json
import os
import re
import select
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgespec.engine.reply_options import ReplyOptions
from edgespec.errors import OptionError, TemplateError
from edgespec.loading.load_options import LoadOptions
from edgespec.terminal.chat import chat_files
from edgespec.terminal.chat.attached_file import attached_file
from edgespec.terminal.chat.chat_commands import COMMANDS, find_command
from edgespec.terminal.chat.chat_screen import ChatScreen
from edgespec.terminal.chat.chat_session import ChatSession
from edgespec.terminal.chat.converse import converse
from edgespec.terminal.chat.hold_chat import last_chat
from edgespec.terminal.chat.settings import set_option
from tests.support.command_line import environment
from tests.support.gguf_models import CHATML, write_gguf

REPLY = ReplyOptions(max_tokens=4, seed=1, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("chat") / "tiny.gguf", template=CHATML)


@pytest.fixture(scope="module")
def opened(model: Path) -> Iterator[ChatSession]:
    with ChatSession(LoadOptions(model, threads=1), REPLY) as session:
        yield session


@pytest.fixture
def screen(opened: ChatSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ChatScreen:
    monkeypatch.setenv("EDGESPEC_DATA", str(tmp_path / "data"))
    opened.chat.reset()
    opened.chat.system = None
    return ChatScreen(opened, REPLY, keeps=True)


def talk(screen: ChatScreen, *lines: str | type[BaseException], first: str | None = None) -> None:
    """Let somebody type these lines and leave."""
    waiting = iter(lines)

    def read() -> str:
        said = next(waiting, EOFError)
        if isinstance(said, str):
            return said
        raise said

    converse(screen, read, first)


def said(screen: ChatScreen) -> list[str]:
    turns = screen.session.chat.messages
    return [turn["content"] for turn in turns if turn["role"] == "user"]


def test_turns_go_on_until_the_user_leaves(
    screen: ChatScreen, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(screen, "hello", "  ", "two\nlines", "/bye", "never asked", first="first")
    assert said(screen) == ["first", "hello", "two\nlines"]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "text", ["/etc/hosts explain", "/tmp", "/ hello", "/2 of it", "/help\nme", "hello /help"]
)
def test_only_commands_are_commands(text: str) -> None:
    assert find_command(text) == (None, text)


def test_an_unknown_command_is_no_message(
    screen: ChatScreen, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(screen, "/hlep", "/xyzzy what")
    assert said(screen) == []
    assert "did you mean /help?" in capsys.readouterr().out


def test_help_names_all(screen: ChatScreen, capsys: pytest.CaptureFixture[str]) -> None:
    talk(screen, "/help")
    out = capsys.readouterr().out
    assert all(command.name in out and command.help in out for command in COMMANDS)
    assert "Alt-Enter" in out


def test_settings(screen: ChatScreen, capsys: pytest.CaptureFixture[str]) -> None:
    talk(
        screen, "/set temperature 0", "/set seed x", "/set top-p 7", "/set thinking off", "/set",
        "/set speculation off", "/set max_tokens 3", "/set seed default", "/set temp 1",
        "/set top-k", "/set markdown on", "/set system Be brief.", "hello", "/stats", "again",
        "/plan",
    )  # fmt: skip
    reply = screen.reply
    assert (reply.temperature, reply.top_p, reply.thinking) == (0.0, 0.95, False)
    assert (reply.max_tokens, reply.seed, reply.speculation) == (3, None, False)
    assert screen.markdown
    assert screen.session.chat.system == "Be brief."
    out, err = capsys.readouterr()
    assert "did you mean temperature?" in err
    assert "takes a value" in err
    assert err.count("seed takes a whole number, and 'x' is none") == 1
    for listed in ("stop default", "thinking off", "speculation on"):
        assert f"{listed.split()[0]:<19} {listed.split()[1]}" in out
    assert "The last reply came at" in out or "About " in out
    assert "top_p" in err
    assert (out + err).count("tokens/s") == 3  # of the reply before, the one after, and the plan
    with pytest.raises(OptionError, match="on or off"):
        set_option(reply, "thinking", "perhaps")


def test_turns_are_taken_back_and_written_again(
    screen: ChatScreen, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(screen, "/undo", "/retry", "hello", "go on")
    chat = screen.session.chat
    before = chat.messages[-1]["content"]
    talk(screen, "/retry")
    assert said(screen) == ["hello", "go on"]
    assert chat.messages[-1]["content"] != before  # another seed
    stats = screen.last_stats
    assert stats is not None
    assert stats.cached_tokens == stats.prompt_tokens - 1
    talk(screen, "/undo")
    assert said(screen) == ["hello"]
    out = capsys.readouterr().out
    for words in ("nothing to take back", "no reply to write again", "Took back: go on"):
        assert words in out


def test_conversations_are_saved_loaded_and_resumed(
    screen: ChatScreen, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(screen, "hello", "/save talk", f"/save {tmp_path / 'mine.json'}", "and then?")
    messages = screen.session.chat.messages
    assert last_chat().messages == messages
    assert last_chat().model == str(screen.session.engine.file.path)
    talk(screen, "/clear", "/load", "/load talk")
    assert screen.session.chat.messages == messages[:2]
    assert chat_files.saved_names() == ["last", "talk"]
    (tmp_path / "notes.json").write_text('{"precious": 1}')
    talk(
        screen,
        f"/save {tmp_path / 'notes.json'}",
        "/load none",
        "/save ../no-such-folder/y.json",
        "/save .x",
    )
    assert json.loads((tmp_path / "notes.json").read_text()) == {"precious": 1}
    out, err = capsys.readouterr()
    assert "talk\n" in out
    assert "A conversation of 1 turn." in out
    assert len(err.splitlines()) == 4


def test_nothing_is_kept_where_nothing_is_to_be(
    screen: ChatScreen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("EDGESPEC_HISTORY", "0")
    talk(screen, "hello", "/save talk")
    assert not (tmp_path / "data").exists()
    assert "EDGESPEC_HISTORY" in capsys.readouterr().err
    with pytest.raises(OptionError, match="resume"):
        last_chat()


def test_files_go_along_with_messages(
    screen: ChatScreen, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "my notes.txt"
    path.write_text("one ``` two\n", encoding="utf-8")
    assert attached_file(str(path)) == ("my notes.txt:\n````\none ``` two\n````", "")
    assert attached_file(f'"{path}" what is it?')[1] == "what is it?"
    talk(screen, f"/file {path}", "explain", f'/file "{path}" and this', "/file none", "/file")
    assert said(screen) == [
        "my notes.txt:\n````\none ``` two\n````\n\nexplain",
        "my notes.txt:\n````\none ``` two\n````\n\nand this",
    ]
    (tmp_path / "raw.bin").write_bytes(b"\xff")
    (tmp_path / "long.txt").write_text("word " * 4000)
    talk(screen, f"/file {tmp_path / 'raw.bin'}", f"/file {tmp_path / 'long.txt'}")
    err = capsys.readouterr().err
    for words in ("cannot read none", "takes a path", "not UTF-8", "the context holds"):
        assert words in err


def test_another_model_goes_on(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("EDGESPEC_DATA", str(tmp_path / "data"))
    other = write_gguf(tmp_path / "other.gguf", template=CHATML, seed=5)
    plain = write_gguf(tmp_path / "plain.gguf")
    with ChatSession(LoadOptions(model, threads=1), REPLY, "Be brief.") as session:
        screen = ChatScreen(session, REPLY)
        talk(screen, "hello", f"/model {other}", "go on", f"/model {plain}", "/model none", "/plan")
        assert session.engine.file.path == other
        assert said(screen) == ["hello", "go on"]
        assert session.chat.system == "Be brief."
        talk(screen, "still there?")
        assert len(said(screen)) == 3
    out, err = capsys.readouterr()
    assert "no chat template" in err
    assert "cannot find the model" in err
    assert "context 512" in out


def test_a_model_without_a_template_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    stages: list[str] = []
    load = LoadOptions(
        write_gguf(tmp_path / "plain.gguf"), progress=lambda stage, *_: stages.append(stage)
    )
    with pytest.raises(TemplateError, match="run --raw"):
        ChatSession(load, REPLY)
    assert stages == []


def test_an_error_in_a_turn_leaves_the_conversation(
    screen: ChatScreen, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(screen, "hello", "too long " * 400, "still there?")
    assert said(screen) == ["hello", "still there?"]
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_last_reply_is_copied_by_the_terminal(
    screen: ChatScreen, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "there")
    talk(screen, "/copy", "hello", "/copy")
    out = capsys.readouterr().out
    assert "no reply to copy" in out
    assert "\x1b]52;c;" in out


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_whole_chat_at_a_terminal(bundled_model: Path, tmp_path: Path) -> None:
    """Pasted lines are one turn, Ctrl-C tells how to leave, and the conversation can be resumed."""
    arguments = ("-m", str(bundled_model), "--backend", "native")
    with Terminal(tmp_path, "chat", *arguments, "--seed", "1", "-n", "9") as tty:
        tty.wait("Send a message")
        tty.type("\x1b[200~Tell me\na story\x1b[201~\r")
        tty.wait("[a-z]+ [a-z]+ [a-z]+")
        tty.wait("Send a message")
        tty.type("/etc/hosts?\r")
        tty.wait("[a-z]+ [a-z]+ [a-z]+")
        tty.wait("Send a message")
        tty.type("\x03")
        tty.wait("Ctrl-C ?again")  # what is on the screen already is not drawn again
        tty.type("\x04")
        assert tty.end() == 0
    with Terminal(tmp_path, "chat", *arguments, "--resume") as tty:
        tty.wait("A conversation of 2 turns")
        tty.wait("/etc/hosts")
        tty.wait("Send a message")
        tty.type("/stats\r/set max-tokens 4\rhi\r")
        tty.wait(r"planned\]")
        found = re.search(r"memory ([\d.]+) MiB of ([\d.]+) MiB planned", tty.text)
        assert found is not None
        assert float(found[1]) <= float(found[2])  # what the screen holds was planned for
        tty.wait("Send a message")
        tty.type("\x03\x03")
        assert tty.end() == 130
    kept = json.loads((tmp_path / "data" / "chats" / "last.json").read_text())
    assert [turn["content"] for turn in kept["messages"][::2]] == [
        "Tell me\na story",
        "/etc/hosts?",
        "hi",
    ]


class Terminal:
    """`edgespec` in a pseudo-terminal of 80 columns."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        import pty

        known = environment() | {"TERM": "xterm", "EDGESPEC_DATA": str(folder / "data")}
        self._pid, self._place = pty.fork()
        if not self._pid:
            os.environ.clear()
            os.environ.update(known, COLUMNS="80", LINES="24")
            os.execv(sys.executable, [sys.executable, "-m", "edgespec", *arguments])
        self._seen, self._known = "", 0

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._place)

    def type(self, keys: str) -> None:
        os.write(self._place, keys.encode())

    def wait(self, pattern: str, *, seconds: float = 60) -> None:
        """Until the screen has shown this after what was waited for before."""
        end = time.monotonic() + seconds
        while (found := re.compile(pattern).search(self._seen, self._known)) is None:
            ready, _, _ = select.select([self._place], [], [], max(end - time.monotonic(), 0))
            assert ready and self._read(), (pattern, self._seen[self._known :])
        self._known = found.end()

    @property
    def text(self) -> str:
        """What was shown, in one line."""
        return " ".join(self._seen.split())

    def end(self) -> int:
        """The exit code."""
        while select.select([self._place], [], [], 60)[0] and self._read():
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def _read(self) -> bool:
        try:
            raw = os.read(self._place, 65536)
        except OSError:  # what Linux says of a terminal whose program has ended
            return False
        if b"\x1b[6n" in raw:  # asks where the cursor is
            os.write(self._place, b"\x1b[1;1R")
        self._seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", raw.decode("utf-8", "replace"))
        return bool(raw)
