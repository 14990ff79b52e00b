"""A FastAPI app that streams replies; requests at the same time share the model's passes.

pip install edgespec fastapi uvicorn
python examples/fastapi_app.py
curl -N 127.0.0.1:8000/ask -H "Content-Type: application/json" -d '{"question": "Who are you?"}'
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

import edgespec


class Question(BaseModel):
    """What a client sends."""

    question: str = Field(max_length=4000)
    max_tokens: int = Field(200, ge=1, le=1000)
    seed: int | None = Field(None, ge=0)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    with edgespec.load(os.environ.get("EDGESPEC_MODEL"), sequences=4) as app.state.engine:
        yield


app = FastAPI(title="Ask a small model", lifespan=lifespan)


@app.post("/ask")
async def ask(asked: Question) -> StreamingResponse:
    """The answer as plain text while it is written; a client that leaves ends it."""
    try:
        stream = app.state.engine.stream(
            asked.question, max_tokens=asked.max_tokens, seed=asked.seed
        )
    except edgespec.EdgeSpecError as error:
        raise HTTPException(400, str(error)) from None
    return StreamingResponse(pieces(stream), media_type="text/plain; charset=utf-8")


async def pieces(stream: edgespec.Stream) -> AsyncIterator[str]:
    async with stream:
        async for piece in stream:
            yield piece


@app.get("/health")
def health() -> dict[str, int]:
    """What the model may use of this machine's memory, and what the plan says it will."""
    plan = app.state.engine.plan
    return {"budget_bytes": plan.budget_bytes, "planned_bytes": plan.planned_bytes}


if __name__ == "__main__":
    uvicorn.run(app, port=8000)
