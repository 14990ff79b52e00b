"""Ollama's protocol, as far as editors and chat programs use it."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from edgespec.engine.reply import Reply
from edgespec.engine.reply_options import ReplyKeywords
from edgespec.engine.request import Request
from edgespec.errors import OptionError
from edgespec.models.grammars import sent_schema
from edgespec.server.choices import News, news, whole
from edgespec.server.service import Service, client_of, read
from edgespec.server.streaming import lines, while_connected
from edgespec.server.tool_calls import may_begin, parse
from edgespec.version import __version__

_OPTIONS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "seed": "seed",
    "stop": "stop",
    "repeat_penalty": "repetition_penalty",
    "repeat_last_n": "repetition_window",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "speculation": "speculation",
}
"""Ollama's names and ours; it ignores what it does not know, and so does this."""


class _Asked(BaseModel):
    model_config = ConfigDict(extra="ignore")

    model: str = ""
    stream: bool = True
    options: dict[str, Any] = Field(default_factory=dict)
    think: bool | str | None = None
    format: str | dict[str, Any] | None = None

    def keywords(self) -> ReplyKeywords:
        found: Any = {
            ours: self.options[theirs]
            for theirs, ours in _OPTIONS.items()
            if theirs in self.options
        }
        most = self.options.get("num_predict", -1)
        if isinstance(most, int) and most > 0:
            found["max_tokens"] = most
        else:
            found["max_tokens"] = 2**20  # until the model ends, or the context
        if isinstance(found.get("seed"), int):
            found["seed"] %= 2**64
        if isinstance(found.get("speculation"), str):
            found["speculation"] = found["speculation"] != "off"
        if isinstance(self.think, bool):
            found["thinking"] = self.think
        if self.format:
            found["schema"] = (
                {"type": "object"} if self.format == "json" else sent_schema(self.format)
            )
        known: ReplyKeywords = found
        return known


class _ChatAsked(_Asked):
    messages: list[dict[str, Any]] = Field(default_factory=list)
    tools: list[dict[str, Any]] | None = None


class _GenerateAsked(_Asked):
    prompt: str = ""
    system: str | None = None
    raw: bool = False
    suffix: str | None = None
    images: list[str] | None = None


class _EmbedAsked(BaseModel):
    model_config = ConfigDict(extra="ignore")

    model: str = ""
    input: str | list[str] = Field(default_factory=list)
    dimensions: int | None = None


class OllamaRoutes:
    """What Ollama's clients ask for, of one service."""

    def __init__(self, service: Service) -> None:
        self._service, self._engine = service, service.engine

    def routes(self) -> list[Route]:
        return [
            Route("/api/chat", self.chat, methods=["POST"]),
            Route("/api/generate", self.generate, methods=["POST"]),
            Route("/api/embed", self.embed, methods=["POST"]),
            Route("/api/tags", self.tags),
            Route("/api/ps", self.tags),
            Route("/api/show", self.show, methods=["POST"]),
            Route("/api/version", self.version),
        ]

    async def version(self, _: HttpRequest) -> Response:
        return JSONResponse({"version": __version__})

    async def tags(self, _: HttpRequest) -> Response:
        names = self._service.names
        return JSONResponse({"models": [self._model(name) for name in names]})

    def _model(self, name: str) -> dict[str, Any]:
        started = datetime.fromtimestamp(self._service.started_s, UTC)
        return {
            "name": f"{name}:latest",
            "model": f"{name}:latest",
            "modified_at": started.isoformat(),
            "size": self._engine.file.path.stat().st_size,
            "digest": self._engine.file.fingerprint.hex(),
            "details": self._details(),
        }

    def _details(self) -> dict[str, Any]:
        spec = self._engine.file.spec
        return {
            "format": self._engine.file.path.suffix.removeprefix("."),
            "family": spec.architecture,
            "families": [spec.architecture],
            "parameter_size": "",
            "quantization_level": self._engine.plan.quantisation,
        }

    async def show(self, http: HttpRequest) -> Response:
        asked = await read(http, _Asked)
        self._service.check_name(asked.model)
        template = self._engine.file.chat_template
        spec = self._engine.file.spec
        return JSONResponse(
            {
                "details": self._details(),
                "template": "" if template is None else template.source,
                "capabilities": [
                    "completion",
                    "embedding",
                    *(["tools"] if template is not None else []),
                ],  # fmt: skip
                "model_info": {
                    "general.architecture": spec.architecture,
                    f"{spec.architecture}.context_length": self._engine.plan.context_length,
                },
            }
        )

    async def chat(self, http: HttpRequest) -> Response:
        asked = await read(http, _ChatAsked)
        if not asked.messages:  # how Ollama is asked to load a model
            return JSONResponse(self._line("message", {"role": "assistant", "content": ""}, "load"))
        tools = asked.tools or None
        names = [str(tool.get("function", {}).get("name")) for tool in tools or ()]

        def make() -> Request:
            turns = [{**one, "content": one.get("content") or ""} for one in asked.messages]
            return self._engine.request(messages=turns, tools=tools, **asked.keywords())

        return await self._answered(http, asked, make, "message", names)

    async def generate(self, http: HttpRequest) -> Response:
        asked = await read(http, _GenerateAsked)
        if not asked.prompt:
            return JSONResponse(self._line("response", "", "load"))
        if asked.images or asked.suffix:
            raise OptionError("images and suffix are not supported; leave them out")

        def make() -> Request:
            keywords = asked.keywords()
            if asked.system is None or asked.raw or self._engine.file.chat_template is None:
                keywords["raw"] = asked.raw
                return self._engine.request(asked.prompt, **keywords)
            turns = [("system", asked.system), ("user", asked.prompt)]
            messages = [{"role": role, "content": text} for role, text in turns]
            return self._engine.request(messages=messages, **keywords)

        return await self._answered(http, asked, make, "response", [])

    async def embed(self, http: HttpRequest) -> Response:
        asked, begun = await read(http, _EmbedAsked), time.perf_counter()
        self._service.check_name(asked.model)
        texts = [asked.input] if isinstance(asked.input, str) else asked.input
        vectors, num_tokens = [], 0
        async with self._service.desk.turn(client_of(http)):
            for text in texts:
                vector, num = await self._service.embedded(text, "mean")
                vectors.append([float(value) for value in vector[: asked.dimensions]])
                num_tokens += num
        return JSONResponse(
            {
                "model": self._service.name,
                "embeddings": vectors,
                "total_duration": int((time.perf_counter() - begun) * 1e9),
                "load_duration": 0,
                "prompt_eval_count": num_tokens,
            }
        )

    async def _answered(
        self, http: HttpRequest, asked: _Asked, make: Any, kind: str, tools: list[str]
    ) -> Response:
        self._service.check_name(asked.model)
        request = await self._service.prepared(make)
        client = client_of(http)
        if asked.stream:
            return await lines(self._lines(news(self._service, client, [request]), kind, tools))
        (reply,) = await while_connected(http, whole(self._service, client, [request]))
        text, calls = parse(reply.text, tools) if tools else (reply.text, [])
        return JSONResponse(self._last(kind, text, reply, calls, thoughts=reply.reasoning))

    async def _lines(
        self, found: AsyncIterator[News], kind: str, tools: list[str]
    ) -> AsyncIterator[dict[str, Any]]:
        held = ""
        async for item in found:
            if item.piece.reasoning:
                yield self._line(kind, self._content(kind, "", str(item.piece)))
                continue
            held += item.piece
            shown = may_begin(held) if tools else len(held)
            text, held = held[:shown], held[shown:]
            if text:
                yield self._line(kind, self._content(kind, text))
            if item.reply is not None:
                rest, calls = parse(held, tools) if held else ("", [])
                yield self._last(kind, rest, item.reply, calls)

    def _content(self, kind: str, text: str, thoughts: str = "", calls: Any = ()) -> Any:
        """What stands under `message` or `response`."""
        if kind == "response":
            return text
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if thoughts:
            message["thinking"] = thoughts
        if calls:
            message["tool_calls"] = calls
        return message

    def _line(self, kind: str, content: Any, done_reason: str = "") -> dict[str, Any]:
        line = {
            "model": self._service.name,
            "created_at": datetime.now(UTC).isoformat(),
            kind: content,
            "done": bool(done_reason),
        }
        return line | {"done_reason": done_reason} if done_reason else line

    def _last(
        self, kind: str, text: str, reply: Reply, calls: Any, *, thoughts: str = ""
    ) -> dict[str, Any]:
        stats = reply.stats
        made = [
            {"function": {"name": one.name, "arguments": json.loads(one.arguments)}}
            for one in calls
        ]
        reason = "length" if reply.finish_reason in ("length", "context") else "stop"
        num_written = len(reply.token_ids)
        writing_s = num_written / stats.tokens_per_second if stats.tokens_per_second else 0.0
        reading_s = stats.time_to_first_token_s
        return self._line(kind, self._content(kind, text, thoughts, made), reason) | {
            "total_duration": int((reading_s + writing_s) * 1e9),
            "load_duration": 0,
            "prompt_eval_count": stats.prompt_tokens,
            "prompt_eval_duration": int(reading_s * 1e9),
            "eval_count": num_written,
            "eval_duration": int(writing_s * 1e9),
        }
