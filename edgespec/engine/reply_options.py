"""What `Engine.generate`, `Engine.stream` and the commands take to write a reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from edgespec.system.option_fields import Option


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyOptions:
    """How a reply is drawn, when it ends, and whether it is speculated on."""

    max_tokens: Annotated[
        int, Option("Maximum number of tokens to generate.", metavar="N", short="-n")
    ] = 512
    temperature: Annotated[
        float,
        Option(
            "Sampling temperature; 0 always picks the most likely token.", metavar="T", short="-t"
        ),
    ] = 0.8
    top_k: Annotated[
        int, Option("Sample from the K most likely tokens; 0 turns this off.", metavar="K")
    ] = 40
    top_p: Annotated[
        float,
        Option(
            "Sample from the most likely tokens whose probabilities add up to P; 1 turns this off.",
            metavar="P",
        ),
    ] = 0.95
    min_p: Annotated[
        float,
        Option(
            "Drop tokens less than P times as likely as the best; 0 turns this off.", metavar="P"
        ),
    ] = 0.05
    repetition_penalty: Annotated[
        float, Option("Values above 1 discourage repetition.", metavar="R")
    ] = 1.0
    seed: Annotated[
        int | None,
        Option("Random seed; the same seed gives the same text. Random by default.", metavar="S"),
    ] = None
    speculation: Annotated[
        bool,
        Option(
            "Draft tokens ahead and verify several in one pass; the text is the same without.",
            off="Generate one token at a time; the text is the same, only slower.",
        ),
    ] = True
    max_nodes: Annotated[
        int | None, Option("Maximum tokens verified in one pass of this reply.", shell=False)
    ] = None
    ignore_eos: Annotated[bool, Option("Keep going when the model would end its reply.")] = False
    accept: Annotated[
        str,
        Option(
            "Which drafts are kept: exact keeps what the model alone would write; typical also "
            "keeps likely ones, which changes the text.",
            metavar="exact|typical",
        ),
    ] = "exact"
    on_overflow: Annotated[
        str,
        Option(
            "When the context is full: stop, drop the oldest turns, or keep a sliding window.",
            metavar="stop|drop-turns|sliding",
        ),
    ] = "stop"
    raw: Annotated[bool, Option("Send the prompt as is, without the chat template.")] = False
    thinking: Annotated[
        bool | None,
        Option("Let the model reason before it answers; by default as its chat template does."),
    ] = None
    prefix: Annotated[
        str | None,
        Option("Start with the system message saved by `edgespec prefix save`.", metavar="NAME"),
    ] = None
