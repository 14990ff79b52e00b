"""Who is let in, and what is too much."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from edgespec.engine.engine import Engine
from edgespec.errors import OptionError
from edgespec.server.guard import Rules
from edgespec.server.run import ServeOptions
from tests.support.http_server import Served, serving

KEY = "a-key-that-nobody-sees"


@pytest.fixture(scope="module")
def guarded(engine: Engine) -> Iterator[Served]:
    rules = Rules(("box.lan",), ("https://page.example",), KEY, 1 << 16)
    with serving(engine, rules) as found:
        yield found


def test_without_the_key_nothing_but_health_answers(guarded: Served) -> None:
    for key in ("", "Bearer ", "Bearer wrong", f"Basic {KEY}", f"Bearer {KEY}x"):
        found = guarded.ask("GET", "/v1/models", Authorization=key)
        assert found.status == 401, key
        assert KEY not in found.text
    assert guarded.ask("GET", "/metrics", Authorization="").status == 401
    assert guarded.ask("GET", "/health", Authorization="").status == 200
    assert guarded.ask("GET", "/v1/models").status == 200
    assert guarded.ask("GET", "/v1/models", Authorization="", X_Api_Key=KEY).status == 200


def test_the_key_is_never_written(
    guarded: Served, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        guarded.ask("GET", "/v1/models")
        guarded.ask("POST", "/v1/chat/completions", b"{")
    assert KEY not in caplog.text
    assert KEY not in repr(Rules(api_key=KEY)) + repr(ServeOptions(api_key=KEY))


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:{port}", 200),
        ("127.0.0.1:{port}", 200),
        ("[::1]:{port}", 200),
        ("192.168.1.4:{port}", 200),
        ("BOX.lan", 200),
        ("rebound.example:{port}", 403),
        ("localhost.evil.example", 403),
        ("", 403),
        ("[", 403),
    ],
)
def test_only_its_own_names_reach_the_server(guarded: Served, host: str, status: int) -> None:
    found = guarded.ask("GET", "/v1/models", Host=host.format(port=guarded.port))
    assert found.status == status


def test_pages_of_other_origins_are_refused(guarded: Served) -> None:
    host = f"127.0.0.1:{guarded.port}"
    assert guarded.ask("GET", "/v1/models", Origin="https://evil.example").status == 403
    assert guarded.ask("GET", "/v1/models", Origin="null").status == 403
    assert guarded.ask("GET", "/v1/models", Origin=f"http://{host}").status == 200
    found = guarded.ask("GET", "/v1/models", Origin="https://page.example")
    assert found.headers["access-control-allow-origin"] == "https://page.example"
    asked = {
        "Origin": "https://page.example",
        "Access_Control_Request_Method": "POST",
        "Access_Control_Request_Headers": "authorization",
        "Authorization": "",
    }
    assert guarded.ask("OPTIONS", "/v1/chat/completions", **asked).status == 200


def test_large_bodies_are_refused(guarded: Served) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x" * (1 << 17)}]}
    assert guarded.ask("POST", "/v1/chat/completions", body).status == 413
    for length in ("-1", "9" * 5000):
        found = guarded.ask("GET", "/v1/models", Content_Length=length)
        assert found.status in (400, 413)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 60_000, b'{"messages": []}', b'{"n": 1e999}'],
)
def test_bodies_that_are_no_request(guarded: Served, body: bytes) -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/api/chat"):
        if body.startswith(b'{"') and path == "/api/chat":
            continue  # how Ollama is asked to load
        found = guarded.ask("POST", path, body)
        assert found.status == 400, (path, found.text)
        assert found.json["error"]["message"]


def test_unknown_paths_and_methods(guarded: Served) -> None:
    assert guarded.ask("GET", "/v2/models").status == 404
    assert guarded.ask("GET", "/v1/chat/completions").status == 405
    counted = guarded.ask("GET", "/metrics").text
    assert 'path="other",status="404"' in counted and "/v2" not in counted


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"host": "0.0.0.0"}, "needs a key"),
        ({"host": "box.lan"}, "needs a key"),
        ({"port": 70000}, "port 70000"),
        ({"cors": ("*",)}, "--cors takes an origin"),
        ({"timeout_s": 0.0}, "--timeout"),
    ],
)
def test_options_that_would_be_unsafe(options: dict[str, object], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        ServeOptions(**options)  # type: ignore[arg-type]
    assert ServeOptions(host="0.0.0.0", api_key="k").port == 8080
