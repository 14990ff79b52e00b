"""Every program in examples/ runs as it is, with the bundled model."""

from __future__ import annotations

import asyncio
import csv
import http.client
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.command_line import ROOT
from tests.support.http_server import running

EXAMPLES = ROOT / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))
NOTEBOOK = EXAMPLES / "notebook.ipynb"
MOST_LINES = 80


def loaded(name: str, *needs: str) -> ModuleType:
    """The module of an example; the test is skipped where a library that it shows is missing."""
    for package in needs:
        pytest.importorskip(package, reason=f"examples/{name}.py needs {package}")
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # where pydantic looks for the types of annotations
    spec.loader.exec_module(module)
    return module


@contextmanager
def served(name: str, *needs: str) -> Iterator[int]:
    """An example's application on a port of this machine."""
    with running(loaded(name, "uvicorn", *needs).app, lifespan="on") as port:
        yield port


@pytest.fixture(autouse=True)
def no_other_model(monkeypatch: pytest.MonkeyPatch, bundled_model: Path) -> None:
    monkeypatch.delenv("EDGESPEC_MODEL", raising=False)


def test_a_web_socket_holds_a_conversation() -> None:
    with served("web_socket", "starlette", "websockets") as port:
        from websockets.sync.client import connect

        with connect(f"ws://127.0.0.1:{port}/chat") as socket:
            replies = []
            for message in ("Tell me a story.", "And another one.", "What came next?"):
                socket.send(message)
                replies.append(list(iter(socket.recv, "")))
            assert all(replies) and max(map(len, replies)) > 1  # "Hello!" comes in one piece
        with connect(f"ws://127.0.0.1:{port}/chat") as leaving:
            leaving.send("Tell me a long story.")
            leaving.recv()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/")
        assert b"new WebSocket" in connection.getresponse().read()
        connection.close()


def test_a_fastapi_app_streams() -> None:
    with served("fastapi_app", "fastapi") as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

        def ask(**body: Any) -> tuple[int, str]:
            text = json.dumps(body)
            connection.request("POST", "/ask", text, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

        found = [ask(question="Who are you?", seed=1, max_tokens=12) for _ in range(2)]
        assert found[0] == found[1] and found[0][0] == 200 and found[0][1]
        assert ask(question="Who are you?", max_tokens=0)[0] == 422
        status, text = ask(question="word " * 790, max_tokens=12)
        assert status == 200 or "context" in text
        connection.request("GET", "/health")
        health = json.loads(connection.getresponse().read())
        assert 0 < health["planned_bytes"] <= health["budget_bytes"]
        connection.close()


def test_a_textual_app_answers_and_stops() -> None:
    module = loaded("textual_app", "textual")
    import edgespec

    async def talk(engine: edgespec.Engine) -> list[str]:
        app = module.ChatApp(engine)
        async with app.run_test() as pilot:
            await pilot.press(*"Hello", "enter")
            await app.workers.wait_for_complete()
            await pilot.press(*"Tell a long story", "enter")
            await pilot.press("escape")
            await app.workers.wait_for_complete()
            await pilot.pause()
            return [str(part.render()) for part in app.query("#talk Static")]

    with edgespec.load() as engine:
        shown = asyncio.run(talk(engine))
    assert shown[0] == "> Hello" and shown[1]
    assert shown[2] == "> Tell a long story" and len(shown) == 4


def test_a_csv_file_gets_a_column(tmp_path: Path) -> None:
    module, out = loaded("batch_csv"), tmp_path / "out.csv"
    module.main(str(module.REVIEWS), str(out))
    with out.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    with module.REVIEWS.open(newline="", encoding="utf-8") as file:
        assert [row["review"] for row in rows] == [row["review"] for row in csv.DictReader(file)]
    assert all(row["reply"] and row["finish_reason"] in ("stop", "length") for row in rows)


def test_questions_are_answered_from_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module, folder = loaded("rag_folder"), tmp_path / "garden"
    shutil.copytree(module.DOCS, folder, ignore=shutil.ignore_patterns(".*"))
    came = []
    for _ in range(2):
        module.main("When are beans sown, and in what soil?", folder)
        out = capsys.readouterr().out
        assert "Beans are sown in May" in out
        found = re.search(r"(\d+) of \d+ prompt tokens came from a file", out)
        assert found is not None
        came.append(int(found[1]))
    assert came[1] > 20
    assert (folder / ".vectors.npz").exists()


def test_an_agent_calls_functions(capsys: pytest.CaptureFixture[str]) -> None:
    loaded("tool_agent", "llguidance").main()
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    steps = [json.loads(line) for line in said]
    assert "name" in steps[0] and "answer" in steps[-1]


def test_people_are_extracted(capsys: pytest.CaptureFixture[str]) -> None:
    loaded("extract_json", "llguidance", "pydantic").main("Anna is 34.")
    assert re.match(r"Person\(name='.*', age=\d+, city=.*\): the schema gave [1-9]\d* of",
                    capsys.readouterr().out)  # fmt: skip


def test_replies_end_when_their_time_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    loaded("async_cancel").main("0.02")
    last = capsys.readouterr().out.splitlines()[-2:]
    assert all(re.match(r"(cancelled|length) after \d+ tokens", line) for line in last)


def test_samples_vote(capsys: pytest.CaptureFixture[str]) -> None:
    loaded("vote").main(num_samples="8")
    assert re.search(r"won; \d of 8 replies were not needed", capsys.readouterr().out)


def test_the_notebook_runs_and_holds_no_output(tmp_path: Path) -> None:
    """In a process of its own, as its budget counts all that a process holds."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for cell in cells:
        assert cell["outputs"] == [] and cell["execution_count"] is None
    program = tmp_path / "notebook.py"
    program.write_text("\n".join("".join(cell["source"]) for cell in cells), encoding="utf-8")
    line = [sys.executable, str(program)]
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert "tokens a step" in done.stdout


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_an_example_is_short_and_tested(path: Path) -> None:
    assert path.read_text(encoding="utf-8").count("\n") <= MOST_LINES
    assert f'"{path.stem}"' in Path(__file__).read_text(encoding="utf-8")
