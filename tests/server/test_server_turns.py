"""Who waits for whom, and what becomes of those who leave."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from edgespec.engine.engine import Engine
from edgespec.server.desk import Desk, DeskFullError
from edgespec.server.service import Limits
from tests.support.http_server import Served, serving

LONG: dict[str, Any] = {
    "model": "tiny", "prompt": "the cat and the hat", "max_tokens": 480, "ignore_eos": True
}  # fmt: skip


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_clients_take_turns_however_much_they_ask() -> None:
    order: list[str] = []

    async def ask(desk: Desk, client: str) -> None:
        async with desk.turn(client):
            order.append(client)
            await asyncio.sleep(0)

    async def all_of_them() -> None:
        desk = Desk(1, 100)
        async with desk.turn("first"):
            asked = [asyncio.create_task(ask(desk, client)) for client in "aaaaabbc"]
            await asyncio.sleep(0)
            assert desk.num_waiting == 8
        await asyncio.gather(*asked)
        assert desk.num_waiting == 0

    asyncio.run(all_of_them())
    assert "".join(order) == "abcabaaa"


def test_who_leaves_the_line_takes_nobodys_turn() -> None:
    async def wait(desk: Desk, client: str) -> str:
        async with desk.turn(client):
            return client

    async def all_of_them() -> list[str]:
        desk = Desk(2, 100)
        async with desk.turn("first"), desk.turn("second"):
            asked = [asyncio.create_task(wait(desk, client)) for client in "abcd"]
            await asyncio.sleep(0)
            asked[0].cancel()
            asked[2].cancel()
            await asyncio.sleep(0)
            assert desk.num_waiting == 2
        found = await asyncio.gather(*asked, return_exceptions=True)
        async with desk.turn("x"), desk.turn("y"):  # both turns are there again
            pass
        return [one for one in found if isinstance(one, str)]

    assert asyncio.run(all_of_them()) == ["b", "d"]


def test_a_full_desk_refuses() -> None:
    async def fill() -> None:
        desk = Desk(1, 1)
        async with desk.turn("a"):
            waiting = asyncio.create_task(desk.turn("b").__aenter__())
            await asyncio.sleep(0)
            with pytest.raises(DeskFullError):
                await desk.turn("c").__aenter__()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    asyncio.run(fill())


def begin(served: Served, **more: Any) -> http.client.HTTPConnection:
    """Ask for a long reply, and do not read it."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    body = json.dumps(LONG | {"max_tokens": 100_000, "on_overflow": "sliding"} | more)
    connection.request("POST", "/v1/completions", body)
    return connection


def finished(connection: http.client.HTTPConnection) -> tuple[int, str]:
    """Status and body of an answer."""
    with contextlib.closing(connection), connection.getresponse() as answer:
        return answer.status, answer.read().decode()


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_reply(served: Served, engine: Engine, stream: bool) -> None:
    connection = begin(served, stream=stream)
    until(lambda: engine.line.num_running == 1)
    connection.close()
    until(lambda: engine.line.num_running == 0)
    assert served.service.desk.num_waiting == 0


def test_clients_that_wait_may_leave(served: Served, engine: Engine) -> None:
    running = [begin(served, stream=True) for _ in range(engine.plan.sequences)]
    until(lambda: engine.line.num_running == engine.plan.sequences)
    waiting = [begin(served, stream=stream) for stream in (True, False)]
    until(lambda: served.service.desk.num_waiting == 2)
    for connection in waiting:
        connection.close()
    until(lambda: served.service.desk.num_waiting == 0)
    for connection in running:
        connection.close()
    until(lambda: engine.line.num_running == 0)
    assert served.ask("POST", "/v1/completions", LONG | {"max_tokens": 3}).status == 200


def test_too_many_are_refused_and_too_long_is_given_up(engine: Engine) -> None:
    with serving(engine, limits=Limits(most_waiting=0, timeout_s=1.0)) as served:
        running = [begin(served) for _ in range(engine.plan.sequences)]
        until(lambda: engine.line.num_running == engine.plan.sequences)
        refused = served.ask("POST", "/v1/completions", LONG)
        assert refused.status == 429 and refused.headers["retry-after"]
        answers = [finished(connection) for connection in running]
        assert {status for status, _ in answers} == {504}
        assert "--timeout" in answers[0][1]
        _, streamed = finished(begin(served, stream=True))
        assert '"timeout"' in streamed and streamed.endswith("data: [DONE]\n\n")
        until(lambda: engine.line.num_running == 0)


def test_health_answers_while_replies_are_written(served: Served, engine: Engine) -> None:
    connection = begin(served, stream=True)
    until(lambda: engine.line.num_running == 1)
    assert served.ask("GET", "/health").json == {"status": "ok"}
    assert "edgespec_requests_running 1\n" in served.ask("GET", "/metrics").text
    connection.close()


def test_what_was_done_is_counted(engine: Engine) -> None:
    with serving(engine) as served:
        for _ in range(3):
            served.ask("POST", "/v1/completions", LONG | {"max_tokens": 7})
        text = served.ask("GET", "/metrics").text
    assert 'edgespec_requests_total{path="/v1/completions",status="200"} 3\n' in text
    assert 'edgespec_tokens_total{kind="completion"} 21\n' in text
    assert 'edgespec_replies_total{finish_reason="length"} 3\n' in text
    assert 'edgespec_reply_seconds_bucket{le="+Inf"} 3\n' in text
    for line in text.splitlines():
        assert re.fullmatch(r"# TYPE \w+ (counter|gauge|histogram)|\w+(\{[^{}]*\})? \S+", line), (
            line
        )


def test_the_server_stops_while_replies_are_written(engine: Engine) -> None:
    before = threading.active_count()
    with serving(engine) as served:
        connection = begin(served, stream=True)
        until(lambda: engine.line.num_running == 1)
    until(lambda: engine.line.num_running == 0)
    connection.close()
    assert threading.active_count() <= before + 8  # a pool's threads stay
