"""A chat over a web socket: each connection is a conversation, and closing it ends the reply.

pip install edgespec starlette uvicorn websockets
python examples/web_socket.py        # then open http://127.0.0.1:8000
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

import edgespec

PAGE = """<!doctype html><title>Chat</title><pre id="log"></pre>
<form id="form"><input id="text" size="60" autofocus></form>
<script>
  const socket = new WebSocket(`ws://${location.host}/chat`);
  socket.onmessage = ({data}) => { log.textContent += data || "\\n\\n"; };
  form.onsubmit = (event) => {
    event.preventDefault();
    log.textContent += `> ${text.value}\\n`;
    socket.send(text.value);
    text.value = "";
  };
</script>"""


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """One engine for all connections; four replies share its passes, others wait in line."""
    with edgespec.load(os.environ.get("EDGESPEC_MODEL"), sequences=4) as app.state.engine:
        yield


async def page(_: Request) -> Response:
    return HTMLResponse(PAGE)


async def chat(socket: WebSocket) -> None:
    """Answers each message piece by piece; an empty message marks the end of a reply."""
    await socket.accept()
    with socket.app.state.engine.chat("You are a friendly assistant.") as talk:
        async for message in socket.iter_text():
            async with talk.stream(message, max_tokens=200, on_overflow="drop-turns") as reply:
                async for piece in reply:
                    await socket.send_text(piece)
            await socket.send_text("")


app = Starlette(routes=[Route("/", page), WebSocketRoute("/chat", chat)], lifespan=lifespan)

if __name__ == "__main__":
    uvicorn.run(app, port=8000)
