"""The page's files and numbers; in a browser where there is one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgespec.engine.engine import Engine
from edgespec.server.guard import Rules
from tests.support.http_server import Served, serving

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="module")
def guarded(engine: Engine) -> Iterator[Served]:
    with serving(engine, Rules(api_key="a-key")) as found:
        yield found


def test_the_page_needs_no_key_and_nothing_from_elsewhere(guarded: Served) -> None:
    texts = []
    for path, kind in (
        ("/", "text/html"),
        ("/page/page.css", "text/css"),
        ("/page/page.js", "text/javascript"),
    ):
        found = guarded.ask("GET", path, Authorization="")
        assert found.status == 200 and found.headers["content-type"].startswith(kind)
        assert "default-src 'self'" in found.headers["content-security-policy"]
        texts.append(found.text)
    for text in texts:
        assert not re.search(r"https?://", text)
    for name in re.findall(r'(?:src|href)="(page/[^"]+)"', texts[0]):
        assert guarded.ask("GET", f"/{name}").status == 200
    for path in ("/page/none.js", "/page/..%2fapp.py", "/page/index.html.py"):
        assert guarded.ask("GET", path).status == 404
    for path in ("/status", "/plan"):
        assert guarded.ask("GET", path, Authorization="").status == 401


def test_every_control_of_the_page_is_there_and_has_a_name(guarded: Served) -> None:
    page = guarded.ask("GET", "/").text
    script = guarded.ask("GET", "/page/page.js").text
    ids = set(re.findall(r'\bid="([\w-]+)"', page))
    assert set(re.findall(r'\$\("([\w-]+)"\)', script)) <= ids
    for control in re.findall(r"<(?:input|textarea|meter) id=\"([\w-]+)\"", page):
        assert f'for="{control}"' in page or re.search(rf'<label[^>]*><input id="{control}"', page)


def test_the_numbers_of_the_page(served: Served, engine: Engine) -> None:
    found = served.ask("GET", "/status").json
    assert found["model"] == engine.file.path.stem
    assert found["memory_resident_bytes"] > 0
    assert found["memory_budget_bytes"] == engine.plan.budget_bytes
    plan = served.ask("GET", "/plan?memory=300MiB&context=256").json
    assert plan["plan"]["context_length"] == 256 and "256" in plan["text"]
    for query, words in (
        ("memory=1KiB", "KiB"),
        ("context=many", "number of tokens"),
        ("memory=much", "size"),
    ):
        refused = served.ask("GET", f"/plan?{query}")
        assert refused.status in (400, 503) and words in refused.json["error"]["message"]


def test_tokens_come_with_their_drafters(served: Served) -> None:
    import json

    words = "one two three one two three one two three one two"
    body = {"model": "", "messages": [{"role": "user", "content": f"Repeat: {words}"}],
            "stream": True, "origins": True, "max_tokens": 40, "temperature": 0}  # fmt: skip
    answer = served.ask("POST", "/v1/chat/completions", body)
    chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line[:7] == "data: {"]
    told = [pair for one in chunks for pair in one.get("edgespec", {}).get("tokens", [])]
    text = "".join(one["choices"][0]["delta"].get("content") or "" for one in chunks)
    assert "".join(spelled for spelled, _ in told) == text
    drafted = chunks[-1]["edgespec"]["accepted"]
    assert sum(bool(by) for _, by in told) <= drafted  # an end that was drafted is not told


@pytest.mark.skipif(not any(map(shutil.which, BROWSERS)), reason="there is no Chromium")
def test_a_browser_shows_the_page(served: Served, tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)))
    found = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}",
         "--virtual-time-budget=4000", "--dump-dom", f"{served.url}/"],
        capture_output=True, text=True, timeout=120, env=os.environ | {"HOME": str(tmp_path)},
    )  # fmt: skip
    assert served.service.name in found.stdout, found.stderr
    assert "MiB of" in found.stdout
