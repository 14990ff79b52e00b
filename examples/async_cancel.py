"""Two replies at once in one event loop; each is stopped when its time is over.

python examples/async_cancel.py [SECONDS]
"""

import asyncio
import os
import sys

import edgespec


async def tell(engine: edgespec.Engine, topic: str, seconds: float) -> edgespec.Reply:
    """A story that ends after these seconds at the latest; the event loop is never blocked."""
    loop = asyncio.get_running_loop()
    prompt = f"Tell me a long story about {topic}."
    async with engine.stream(prompt, max_tokens=500, ignore_eos=True) as stream:
        alarm = loop.call_later(seconds, stream.cancel)  # any thread may call it, too
        async for piece in stream:
            print(f"[{topic}] {piece!r}")
        alarm.cancel()
    return stream.reply


async def stories(engine: edgespec.Engine, seconds: float) -> None:
    replies = await asyncio.gather(
        tell(engine, "a dog", seconds), tell(engine, "the sea", seconds / 2)
    )
    for reply in replies:
        print(
            f"{reply.finish_reason} after {reply.stats.output_tokens} tokens: {reply.text[:60]}..."
        )


def main(seconds: str = "0.2") -> None:
    with edgespec.load(os.environ.get("EDGESPEC_MODEL"), sequences=2) as engine:
        asyncio.run(stories(engine, float(seconds)))


if __name__ == "__main__":
    main(*sys.argv[1:])
