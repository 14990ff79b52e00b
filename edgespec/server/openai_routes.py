"""OpenAI's protocol: chat completions, completions, models and embeddings."""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from edgespec.engine.reply import Reply, Stats, TokenLogprob
from edgespec.engine.request import Request
from edgespec.errors import OptionError
from edgespec.models.tokenizers.tokenizer import Tokenizer
from edgespec.server.choices import News, news, whole
from edgespec.server.openai_requests import Asked, ChatAsked, CompletionAsked, EmbeddingAsked
from edgespec.server.service import Service, client_of, read, several
from edgespec.server.streaming import events, while_connected
from edgespec.server.tool_calls import ToolCall, may_begin, parse

_FINISH = {"stop": "stop", "length": "length", "context": "length", "cancelled": "stop"}


class OpenAiRoutes:
    """What OpenAI's clients ask for, of one service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._engine = service.engine

    def routes(self) -> list[Route]:
        return [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/embeddings", self.embeddings, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
        ]

    async def models(self, _: HttpRequest) -> Response:
        return JSONResponse(
            {"object": "list", "data": [self._model(name) for name in self._service.names]}
        )

    async def model(self, request: HttpRequest) -> Response:
        name = request.path_params["name"]
        self._service.check_name(name)
        return JSONResponse(self._model(name))

    def _model(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._service.started_s,
            "owned_by": "edgespec",
            "context_length": self._engine.plan.context_length,
        }

    async def chat(self, http: HttpRequest) -> Response:
        asked = await read(http, ChatAsked)
        self._service.check_name(asked.model)
        tools = asked.usable_tools()
        keywords, sliding = asked.keywords(), asked.on_overflow == "sliding"
        request = await self._service.prepared(
            lambda: self._engine.request(messages=asked.turns(), tools=tools, **keywords),
            sliding=sliding,
        )
        names = [str(tool.get("function", {}).get("name")) for tool in tools or ()]
        answer = _Answer(self._service.name, "chat.completion", self._engine.tokenizer, names)
        return await self._answered(http, asked, several(request, asked.n), answer)

    async def completions(self, http: HttpRequest) -> Response:
        asked = await read(http, CompletionAsked)
        self._service.check_name(asked.model)
        keywords, sliding = asked.keywords(), asked.on_overflow == "sliding"
        requests: list[Request] = []
        for prompt in asked.prompts():

            def make(prompt: str | list[int] = prompt) -> Request:
                return self._engine.request(prompt, **keywords)

            request = await self._service.prepared(make, sliding=sliding)
            requests += several(request, asked.n)
        answer = _Answer(self._service.name, "text_completion", self._engine.tokenizer)
        return await self._answered(http, asked, requests, answer)

    async def _answered(
        self, http: HttpRequest, asked: Asked, requests: list[Request], answer: _Answer
    ) -> Response:
        answer.num_prompt = sum(len(one.prompt_ids) for one in requests) // asked.n
        client, sliding = client_of(http, asked.user), asked.on_overflow == "sliding"
        if asked.stream:
            found = news(self._service, client, requests, sliding=sliding)
            return await events(answer.chunks(found, usage=asked.wants_usage))
        work = whole(self._service, client, requests, sliding=sliding)
        return JSONResponse(answer.whole(await while_connected(http, work)))

    async def embeddings(self, http: HttpRequest) -> Response:
        asked = await read(http, EmbeddingAsked)
        self._service.check_name(asked.model)
        given: Any = asked.input
        if given == []:
            raise OptionError("input has no text; name one, or a list of them")
        texts = [given] if isinstance(given, str) or isinstance(given[0], int) else given
        vectors: list[NDArray[np.float32]] = []
        num_tokens = 0
        async with self._service.desk.turn(client_of(http, asked.user)):
            for text in texts:
                vector, num = await self._service.embedded(text, asked.pooling)
                num_tokens += num
                vectors.append(vector[: asked.dimensions] if asked.dimensions else vector)
        data = [
            {"object": "embedding", "index": index, "embedding": _encoded(vector, asked)}
            for index, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
        return JSONResponse(
            {"object": "list", "data": data, "model": self._service.name, "usage": usage}
        )


def _encoded(vector: Any, asked: EmbeddingAsked) -> Any:
    if asked.encoding_format == "base64":
        return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode("ascii")
    return [float(value) for value in vector]


class _Answer:
    """The JSON of one answer, whole or in chunks."""

    def __init__(
        self, model: str, kind: str, tokenizer: Tokenizer, tools: Sequence[str] = ()
    ) -> None:
        self._is_chat = kind == "chat.completion"
        self.num_prompt = 0
        """Tokens of all prompts."""
        self._kind, self._tokenizer, self._tools = kind, tokenizer, tools
        self._head = {
            "id": f"{'chatcmpl' if self._is_chat else 'cmpl'}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
        }

    def whole(self, replies: Sequence[Reply]) -> dict[str, Any]:
        choices = [self._choice(index, reply) for index, reply in enumerate(replies)]
        return {
            **self._head,
            "object": self._kind,
            "choices": choices,
            "usage": _usage(self.num_prompt, replies),
            "edgespec": [_numbers(reply.stats) for reply in replies],
        }

    def _choice(self, index: int, reply: Reply) -> dict[str, Any]:
        found: dict[str, Any] = {"index": index, "finish_reason": _FINISH[reply.finish_reason]}
        logprobs = reply.logprobs
        if not self._is_chat:
            told = None if logprobs is None else self._old_logprobs(logprobs)
            return {**found, "text": reply.text, "logprobs": told}
        text, calls = parse(reply.text, self._tools) if self._tools else (reply.text, [])
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        if calls:
            message |= {"content": text or None, "tool_calls": _calls(calls)}
            found["finish_reason"] = "tool_calls"
        told = None if logprobs is None else {"content": self._logprobs(logprobs)}
        return {**found, "message": message, "logprobs": told}

    async def chunks(
        self, found: AsyncIterator[News], *, usage: bool
    ) -> AsyncIterator[dict[str, Any]]:
        replies: list[Reply] = []
        begun: set[int] = set()
        held: dict[int, str] = {}
        async for item in found:
            index = item.index
            if self._is_chat and index not in begun:
                begun.add(index)
                yield self._chunk(index, {"role": "assistant", "content": ""})
            if self._tools and not item.piece.reasoning:
                text = held.get(index, "") + item.piece
                shown = may_begin(text)
                held[index] = text[shown:]
            else:
                text, shown = str(item.piece), len(item.piece)
            if item.reply is None:
                if shown:
                    name = "reasoning_content" if item.piece.reasoning else "content"
                    chunk = self._chunk(index, {name: text[:shown]}, logprobs=item.logprobs)
                    yield chunk | self._origins(item)
                continue
            replies.append(item.reply)
            reason = _FINISH[item.reply.finish_reason]
            rest = held.pop(index, "")
            if rest:
                rest, calls = parse(rest, self._tools)
                if calls:
                    reason = "tool_calls"
                    numbered = [{"index": n, **one} for n, one in enumerate(_calls(calls))]
                    yield self._chunk(index, {"tool_calls": numbered})
            delta = {"content": rest} if rest else {}
            yield self._chunk(index, delta, item.logprobs, reason, item.reply.stats)
        if usage:
            yield self._empty() | {"choices": [], "usage": _usage(self.num_prompt, replies)}

    def _origins(self, item: News) -> dict[str, Any]:
        """The tokens with their drafters, where that was asked for."""
        if not item.tokens:
            return {}
        spelled = self._tokenizer.token_bytes
        tokens = [[spelled(token).decode("utf-8", "replace"), by] for token, by in item.tokens]
        return {"edgespec": {"tokens": tokens}}

    def _empty(self) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._is_chat else self._kind
        return {**self._head, "object": kind}

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: Sequence[TokenLogprob] = (),
        reason: str | None = None,
        stats: Stats | None = None,
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "finish_reason": reason, "logprobs": None}
        if self._is_chat:
            choice["delta"] = delta
            if logprobs:
                choice["logprobs"] = {"content": self._logprobs(logprobs)}
        else:
            choice["text"] = delta.get("content", "")
            if logprobs:
                choice["logprobs"] = self._old_logprobs(logprobs)
        numbers = {} if stats is None else {"edgespec": _numbers(stats)}
        return self._empty() | {"choices": [choice]} | numbers

    def _logprobs(self, found: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        return [
            {
                **self._token(one.token_id, one.logprob),
                "top_logprobs": [self._token(token, logprob) for token, logprob in one.top],
            }
            for one in found
        ]

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        spelled = self._tokenizer.token_bytes(token)
        return {
            "token": spelled.decode("utf-8", "replace"),
            "logprob": logprob,
            "bytes": list(spelled),
        }

    def _old_logprobs(self, found: Sequence[TokenLogprob]) -> dict[str, Any]:
        """In the form of completions."""
        spelled = [self._token(one.token_id, one.logprob)["token"] for one in found]
        offsets = [sum(map(len, spelled[:place])) for place in range(len(spelled))]
        return {
            "tokens": spelled,
            "token_logprobs": [one.logprob for one in found],
            "top_logprobs": [
                {self._token(token, logprob)["token"]: logprob for token, logprob in one.top}
                for one in found
            ],
            "text_offset": offsets,
        }


def _calls(calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{secrets.token_hex(8)}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in calls
    ]


def _usage(num_prompt: int, replies: Sequence[Reply]) -> dict[str, Any]:
    written = sum(len(reply.token_ids) for reply in replies)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": written,
        "total_tokens": num_prompt + written,
        "prompt_tokens_details": {
            "cached_tokens": sum(reply.stats.cached_tokens for reply in replies)
        },
    }


def _numbers(stats: Stats) -> dict[str, Any]:
    """What speculation brought, under the names of `run --json`."""
    names = (
        "seed", "tokens_per_second", "tokens_per_step", "drafted", "accepted", "by_source",
        "estimated_speedup", "time_to_first_token_s", "prefill_tokens_per_second",
        "peak_memory_bytes", "planned_memory_bytes", "lossy", "notes",
    )  # fmt: skip
    return {name: stats[name] for name in names}
