"""Text in and out of a terminal or a pipe."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any, BinaryIO

from edgespec.errors import EdgeSpecError, OptionError

if TYPE_CHECKING:
    from edgespec.engine.reply import Reply, Stats

_CONTROL = {code: "�" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """Text from a model or a file that cannot move the cursor or retitle the window."""
    return text.translate(_CONTROL)


def decode(raw: bytes, what: str) -> str:
    """UTF-8 text; raises EdgeSpecError that names the first byte that is not."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise EdgeSpecError(
            f"{what} is not UTF-8 text: byte 0x{raw[error.start]:02x} at position {error.start}; "
            "convert it, for example with `iconv -f latin1 -t utf-8`"
        ) from None


def read_prompt(
    argument: str | None, stdin: BinaryIO, *, stdin_is_terminal: bool, of: str = "run"
) -> str:
    """The prompt given, followed by what is piped in, a blank line between them.

    One line end at the end of the pipe is left out. Raises OptionError when there is neither.
    """
    piped = "" if stdin_is_terminal else decode(stdin.read(), "standard input")
    piped = piped.removesuffix("\n").removesuffix("\r")
    parts = [part for part in (argument, piped) if part]
    if not parts:
        raise OptionError(
            f'no text: give one, as in `edgespec {of} "Tell me a story"`, or pipe it in'
        )
    return "\n\n".join(parts)


def stats_line(stats: Stats) -> str:
    """The numbers of a reply on one line."""
    from edgespec.system.size import format_size  # brings NumPy, and `--help` imports this module

    peak, planned = format_size(stats.peak_memory_bytes), format_size(stats.planned_memory_bytes)
    tokens = f"{stats.output_tokens} token{'' if stats.output_tokens == 1 else 's'}"
    accepted = stats.tokens_per_step - 1 if stats.steps else 0.0
    joules = stats.joules_per_token
    energy = "" if joules is None else f" · {joules:.2g} joules per token"
    cached = stats.prompt_cache_tokens
    kept = (
        f"{cached:,} of {stats.prompt_tokens:,} prompt tokens read from the prompt cache · "
        if cached
        else ""
    )
    read = stats.disk_bytes_per_token
    from_disk = f" · {format_size(read)} read from disk per token" if read else ""
    return (
        f"[{kept}{tokens} · {stats.tokens_per_second:.1f} tokens/s · first token after "
        f"{stats.time_to_first_token_s:.2f} s · {accepted:.2f} drafts accepted per step · "
        f"peak memory {peak} of {planned} planned{from_disk}{energy}]"
    )


def notices(reply: Reply) -> list[str]:
    """What the reader of a reply has to know: that it is lossy, what a full context meant."""
    overflow = _overflow_line(reply)
    lossy = "[--accept typical may have changed the text]"
    return [*([lossy] if reply.stats.lossy else []), *([overflow] if overflow else [])]


def _overflow_line(reply: Reply) -> str | None:
    """What a full context meant for a reply, None when it was never full."""
    stats, said = reply.stats, []
    if stats.dropped_turns:
        plural = "" if stats.dropped_turns == 1 else "s"
        said.append(
            f"dropped the oldest {stats.dropped_turns} turn{plural} ({stats.dropped_tokens} tokens)"
        )
    elif stats.dropped_tokens:
        said.append(f"dropped {stats.dropped_tokens} older tokens")
    if reply.finish_reason == "context":
        said.append(
            "stopped; use a larger --context, or --on-overflow drop-turns or sliding to go on "
            "without the oldest text"
        )
    return f"[context full: {'; '.join(said)}]" if said else None


def tolerate_any_encoding() -> None:
    """Let a character the terminal does not have become a question mark, never an error."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]


def print_json(values: dict[str, Any] | list[dict[str, Any]]) -> None:
    """Print values for programs on stdout."""
    print(json.dumps(values, indent=2, ensure_ascii=False))
