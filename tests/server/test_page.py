"""The page's files and numbers; in a browser where there is one."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from typing import Any

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
    plan = served.ask("GET", "/plan?memory=8GiB&context=256").json
    assert plan["plan"]["context_length"] == 256 and "256" in plan["text"]
    for query, words in (
        ("memory=1KiB", "KiB"),
        ("context=many", "number of tokens"),
        (f"context={'9' * 5000}", "number of tokens"),
        (f"memory={'9' * 5000}GiB", "size"),
        ("memory=much", "size"),
    ):
        refused = served.ask("GET", f"/plan?{query}")
        assert refused.status in (400, 503) and words in refused.json["error"]["message"]


def test_tokens_come_with_their_drafters(served: Served) -> None:
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


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, where it and playwright are installed."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("there is no Chromium")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any, served: Served) -> Iterator[Any]:
    """The page, open; what its script complains of fails the test."""
    found = browser.new_page(viewport={"width": 1280, "height": 800})
    complaints: list[str] = []
    found.on("pageerror", lambda error: complaints.append(str(error)))
    found.goto(f"{served.url}/")
    expect(found, "#model").to_contain_text("context")
    yield found
    found.close()
    assert complaints == []


def expect(page: Any, selector: str) -> Any:
    """What is to be true of an element, now or within a minute."""
    from playwright.sync_api import expect as expected

    expected.set_options(timeout=60_000)
    return expected(page.locator(selector))


def say(page: Any, text: str) -> None:
    page.fill("#message", text)
    page.press("#message", "Enter")


def wait_until_written(page: Any, num_articles: int) -> None:
    expect(page, "article").to_have_count(num_articles)
    expect(page, "#stop").to_be_disabled()


def test_a_conversation_is_held_and_kept(page: Any, served: Served) -> None:
    assert served.service.name in page.inner_text("#model")
    assert "MiB of" in page.inner_text("#memory-text")
    page.click("summary:has-text('Settings')")
    page.fill("#most", "24")
    say(page, "Repeat after me: one two three one two three one two three.")
    wait_until_written(page, 2)
    assert page.inner_text("article.assistant .numbers").count("tokens/s") == 1
    assert "times the speed" in page.inner_text("#pays")
    say(page, "And again.")
    wait_until_written(page, 4)
    texts = page.locator("article").all_inner_texts()
    page.reload()
    page.click("#saved .open")
    expect(page, "article").to_have_count(4)
    assert page.locator("article").all_inner_texts() == texts
    page.click("#saved button[aria-label^=Delete]")
    assert page.locator("article").count() == page.locator("#saved li").count() == 0


def test_a_reply_is_stopped(page: Any, served: Served, engine: Engine) -> None:
    page.click("summary:has-text('Settings')")
    page.fill("#most", "400")
    page.fill("#temperature", "1.5")
    for _ in range(5):  # the model may be done sooner
        page.click("#new")
        say(page, "Tell me a very long story about the sea and the moon.")
        page.press("#message", "Escape")
        expect(page, "#stop").to_be_disabled()
    assert page.inner_text("#problem") == ""
    deadline = time.monotonic() + 30
    while engine.line.num_running and time.monotonic() < deadline:
        time.sleep(0.01)
    assert engine.line.num_running == 0


def test_a_refusal_is_said(page: Any) -> None:
    page.click("summary:has-text('Settings')")
    page.fill("#temperature", "1000")
    say(page, "Hello")
    expect(page, "#problem").to_contain_text("temperature is 1000")


@pytest.mark.parametrize("width", [1280, 820, 360])
def test_nothing_sticks_out_at_any_width(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.click("summary:has-text('Memory plan')")
    expect(page, "#plan-text").to_contain_text("MiB")
    say(page, "w" * 300)
    wait_until_written(page, 2)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    box = page.locator("#message").bounding_box()
    assert box["y"] + box["height"] <= 800 and box["width"] > 200


def test_the_page_is_used_by_keyboard_alone(page: Any) -> None:
    expect(page, "#message").to_be_focused()
    page.keyboard.type("Hello")
    page.keyboard.press("Enter")
    wait_until_written(page, 2)
    expect(page, "#message").to_be_focused()
    seen = []
    for _ in range(12):  # backwards through all there is
        page.keyboard.press("Shift+Tab")
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
    assert {"log", "new", "open", "skip"} <= set(seen)
